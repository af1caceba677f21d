//! Starts the program so that no part of it runs untraced.
//!
//! The child waits on a pipe until it is in the process filter, then executes. The terminal, the process group and the
//! environment are unchanged (`--mstx-injection` adds to the last); under sudo the program runs as the calling user.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    unistd::{ForkResult, Pid, fork, pipe2},
};
use thiserror::Error;

use super::inherited;
use crate::os::caller::CallerError;

pub use crate::os::caller::RunAs;

/// The program could not be started.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// No such file.
    #[error("program not found: `{}`{}", program.display(), if *searched { " (searched in PATH)" } else { "" })]
    NotFound {
        /// The given name.
        program: PathBuf,
        /// Searched in `PATH`.
        searched: bool,
    },
    /// It may not be executed.
    #[error("cannot execute `{}`", program.display())]
    NotExecutable {
        /// The file.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The user to run it as is not known.
    #[error(transparent)]
    Caller(#[from] CallerError),
    /// The system refused a process.
    #[error("cannot start a process")]
    Fork(#[source] io::Error),
}

impl SpawnError {
    /// Exit status as shells give it: 127 not found, 126 not executable, 125 our own failure.
    #[must_use]
    pub const fn exit_status(&self) -> i32 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Caller(_) | Self::Fork(_) => 125,
        }
    }
}

/// Finds the program like a shell does.
pub fn find_program(program: &OsStr) -> Result<PathBuf, SpawnError> {
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(SpawnError::NotFound { program: path, searched: false })
            }
            Err(source) => Err(SpawnError::NotExecutable { program: path, source }),
        };
    }
    let mut refused = None;
    for directory in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        let path = directory.join(program);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = Some((path, error)),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some((program, source)) => SpawnError::NotExecutable { program, source },
        None => SpawnError::NotFound { program: program.into(), searched: true },
    })
}

fn executable(path: &Path) -> io::Result<()> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "no execute permission"));
    }
    Ok(())
}

/// The child before it executes.
#[derive(Debug)]
pub struct Waiting {
    /// Its process id.
    pub pid: Pid,
    go: File,
    failure: File,
    program: PathBuf,
}

/// Forks the child; it waits for [`Waiting::go`]. To be called while this process has one thread. `variables` are added to
/// its environment.
pub fn prepare(
    program: &Path,
    args: &[OsString],
    run_as: Option<&RunAs>,
    variables: &[(OsString, OsString)],
) -> Result<Waiting, SpawnError> {
    let fail = |errno: nix::Error| SpawnError::Fork(errno.into());
    let (go_reader, go_writer) = pipe2(OFlag::O_CLOEXEC).map_err(fail)?;
    let (failure_reader, failure_writer) = pipe2(OFlag::O_CLOEXEC).map_err(fail)?;
    // SAFETY: the process has one thread, so the child may use everything.
    match unsafe { fork() }.map_err(fail)? {
        ForkResult::Parent { child } => Ok(Waiting {
            pid: child,
            go: File::from(go_writer),
            failure: File::from(failure_reader),
            program: program.to_path_buf(),
        }),
        ForkResult::Child => {
            drop(go_writer);
            drop(failure_reader);
            let errno = become_program(go_reader, program, args, run_as, variables);
            let _ = File::from(failure_writer).write_all(&(errno as i32).to_ne_bytes());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(125) }
        }
    }
}

/// Returns only after a failure.
fn become_program(
    go: OwnedFd,
    program: &Path,
    args: &[OsString],
    run_as: Option<&RunAs>,
    added: &[(OsString, OsString)],
) -> nix::Error {
    let mut byte = [0];
    if File::from(go).read_exact(&mut byte).is_err() {
        // The tracer is gone before the program began.
        return nix::Error::ECANCELED;
    }
    let attempt = || -> nix::Result<std::convert::Infallible> {
        if let Some(run_as) = run_as {
            run_as.take_on()?;
        }
        let mut variables: Vec<(OsString, OsString)> = env::vars_os().collect();
        let mut own = run_as.map(RunAs::environment).unwrap_or_default();
        own.extend_from_slice(added);
        variables.retain(|(name, _)| own.iter().all(|(other, _)| other != name));
        variables.extend(own);
        let c_string = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| nix::Error::EINVAL);
        let environment = variables
            .iter()
            .map(|(name, value)| {
                let mut pair = name.clone();
                pair.push("=");
                pair.push(value);
                c_string(&pair)
            })
            .collect::<nix::Result<Vec<_>>>()?;
        let arguments = args.iter().map(|arg| c_string(arg)).collect::<nix::Result<Vec<_>>>()?;
        inherited::restore();
        nix::unistd::execve(&c_string(program.as_os_str())?, &arguments, &environment)
    };
    match attempt() {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

impl Waiting {
    /// The program to execute.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Lets the child execute. An error means that it could not, and is gone.
    pub fn go(mut self) -> Result<Pid, SpawnError> {
        self.go.write_all(&[1]).map_err(SpawnError::Fork)?;
        Ok(self.pid)
    }

    /// Splits off the result of the execution; reading it blocks until the program runs.
    pub fn failure(&self) -> io::Result<Failure> {
        Ok(Failure { pipe: self.failure.try_clone()?, program: self.program.clone() })
    }
}

/// The result of the execution.
#[derive(Debug)]
pub struct Failure {
    pipe: File,
    program: PathBuf,
}

impl Failure {
    /// Blocks until the program runs or is known not to.
    #[must_use]
    pub fn wait(mut self) -> Option<SpawnError> {
        let mut word = [0; 4];
        self.pipe.read_exact(&mut word).ok()?;
        let source = io::Error::from_raw_os_error(i32::from_ne_bytes(word));
        Some(SpawnError::NotExecutable { program: self.program, source })
    }
}
