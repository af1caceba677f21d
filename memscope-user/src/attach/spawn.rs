//! Starting the program so that nothing of it runs untraced.
//!
//! The child waits on a pipe until it is in the process filter, then executes. The terminal, the process
//! group and the environment are left alone (`--mstx-injection` adds to the last); under sudo the program runs as the calling user.

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
    sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask},
    unistd::{ForkResult, Gid, Pid, Uid, User, fork, initgroups, pipe2, setgid, setuid},
};
use thiserror::Error;

/// The program could not be started.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// No such file.
    #[error("program not found: `{}`{}", program.display(), if *searched { " (searched in PATH)" } else { "" })]
    NotFound {
        /// As given.
        program: PathBuf,
        /// Looked for in `PATH`.
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
    #[error("no such user: `{name}`")]
    NoUser {
        /// As given.
        name: String,
    },
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
            Self::NoUser { .. } | Self::Fork(_) => 125,
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

/// The user that the program is to run as.
#[derive(Clone, Debug)]
pub struct RunAs {
    user: User,
}

impl RunAs {
    /// `name` if given; else the user who called sudo; else `None`: whoever we are.
    pub fn choose(name: Option<&str>) -> Result<Option<Self>, SpawnError> {
        let by_name = |name: &str| {
            let user = User::from_name(name).ok().flatten();
            user.or_else(|| User::from_uid(Uid::from_raw(name.parse().ok()?)).ok().flatten())
        };
        match name {
            Some(name) => match by_name(name) {
                Some(user) => Ok(Some(Self { user })),
                None => Err(SpawnError::NoUser { name: name.to_owned() }),
            },
            None => Ok(sudo_ids().and_then(|(uid, _)| {
                let user = User::from_uid(Uid::from_raw(uid)).ok().flatten()?;
                (!user.uid.is_root()).then_some(Self { user })
            })),
        }
    }

    /// What the program finds in its environment.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let name = OsString::from(&self.user.name);
        vec![
            ("HOME".into(), self.user.dir.clone().into_os_string()),
            ("USER".into(), name.clone()),
            ("LOGNAME".into(), name),
        ]
    }
}

/// User and group who called sudo.
#[must_use]
pub fn sudo_ids() -> Option<(u32, u32)> {
    if !Uid::effective().is_root() {
        return None;
    }
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    Some((number("SUDO_UID")?, number("SUDO_GID")?))
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

/// Only returns when something failed.
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
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        // Rust ignores SIGPIPE for itself; a program expects the default.
        // SAFETY: the default action needs no handler.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        if let Some(RunAs { user }) = run_as {
            let name = CString::new(user.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
            initgroups(&name, user.gid)?;
            setgid(Gid::from_raw(user.gid.as_raw()))?;
            setuid(user.uid)?;
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
        nix::unistd::execve(&c_string(program.as_os_str())?, &arguments, &environment)
    };
    match attempt() {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

impl Waiting {
    /// Lets the child execute. An error means that it could not, and is gone.
    pub fn go(mut self) -> Result<Pid, SpawnError> {
        self.go.write_all(&[1]).map_err(SpawnError::Fork)?;
        Ok(self.pid)
    }

    /// Splits off what tells whether the execution failed; reading it blocks until the program runs.
    pub fn failure(&self) -> io::Result<Failure> {
        Ok(Failure { pipe: self.failure.try_clone()?, program: self.program.clone() })
    }
}

/// Tells whether the program could be executed.
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
