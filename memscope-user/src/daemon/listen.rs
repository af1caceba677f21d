//! The daemon's socket: its own, or one that systemd has opened for it.

use std::{
    env, fmt, fs, io,
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _, chown},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use thiserror::Error;

/// The descriptor of a single socket (`sd_listen_fds(3)`).
const PASSED: i32 = 3;
/// Default path. Its folder is ours to make.
pub const DEFAULT_SOCKET: &str = "/run/memscope-bpf/daemon.sock";
const FOLDER_MODE: u32 = 0o755;
/// Writing to a socket means connecting to it.
const EVERYBODY: u32 = 0o666;
const GROUP_ONLY: u32 = 0o660;

/// There is no socket.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another daemon has it.
    #[error("a daemon listens on `{}` already", .0.display())]
    InUse(PathBuf),
    /// An existing file that must not be replaced.
    #[error("`{}` is there and is no socket: remove it, or name another place with --socket", .0.display())]
    NoSocket(PathBuf),
    /// A typing error, or a folder that needs the right owner.
    #[error("the folder of the socket `{}` does not exist: create it, or name another place with --socket", .0.display())]
    NoFolder(PathBuf),
    /// systemd has passed another kind of descriptor.
    #[error("{0} sockets were passed by systemd, and one is wanted")]
    Passed(String),
    /// The system refuses.
    #[error("cannot listen on `{}`", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A listening socket. Its file is removed with it, if it is ours.
#[derive(Debug)]
pub struct Socket {
    path: Option<PathBuf>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(out, "{}", path.display()),
            None => out.write_str("the socket that systemd has passed"),
        }
    }
}

/// Opens it, for everybody or for one group.
pub fn open(path: &Path, group: Option<u32>) -> Result<(UnixListener, Socket), ListenError> {
    if let Some(listener) = passed()? {
        return Ok((listener, Socket { path: None }));
    }
    make_room(path)?;
    let fail = |source| ListenError::Io { path: path.to_owned(), source };
    let listener = UnixListener::bind(path).map_err(fail)?;
    let socket = Socket { path: Some(path.to_owned()) };
    if group.is_some() {
        chown(path, None, group).map_err(fail)?;
    }
    let mode = if group.is_some() { GROUP_ONLY } else { EVERYBODY };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fail)?;
    Ok((listener, socket))
}

/// What systemd has opened.
fn passed() -> Result<Option<UnixListener>, ListenError> {
    let is_ours = env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    match env::var("LISTEN_FDS") {
        Ok(count) if is_ours && count == "1" => {
            // SAFETY: the descriptor was passed for us to take, and this is called once.
            let listener = UnixListener::from(unsafe { OwnedFd::from_raw_fd(PASSED) });
            let fail = |source| ListenError::Io { path: PathBuf::from("the socket of systemd"), source };
            // Another kind of socket has no such address; tracers must not inherit it.
            listener.local_addr().map_err(fail)?;
            fcntl(&listener, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|errno| fail(errno.into()))?;
            Ok(Some(listener))
        }
        Ok(count) if is_ours => Err(ListenError::Passed(count)),
        _ => Ok(None),
    }
}

/// Makes the folder if it is that of the default socket, and removes the socket of a daemon that is gone.
fn make_room(path: &Path) -> Result<(), ListenError> {
    let fail = |source| ListenError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        // That of the agent is in the same folder.
        if Some(folder) != Path::new(DEFAULT_SOCKET).parent() {
            return Err(ListenError::NoFolder(path.to_owned()));
        }
        fs::create_dir_all(folder).map_err(fail)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(fail)?;
    }
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(fail(error)),
        Ok(about) if !about.file_type().is_socket() => Err(ListenError::NoSocket(path.to_owned())),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => Err(ListenError::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(fail),
            Err(error) => Err(fail(error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_everybodys_and_goes_in_the_end() {
        let place = tempfile::tempdir().expect("temporary directory");
        let path = place.path().join("daemon.sock");
        let (_listener, socket) = open(&path, None).expect("a socket");
        assert_eq!(socket.to_string(), path.to_str().expect("plain"));
        assert_eq!(path.metadata().expect("a socket").permissions().mode() & 0o7777, 0o666);
        assert!(matches!(open(&path, None), Err(ListenError::InUse(_))));
        drop(socket);
        assert!(!path.exists());
    }

    /// A mistyped path makes no folders as root, and the message names the missing one.
    #[test]
    fn folders_are_not_made() {
        let place = tempfile::tempdir().expect("temporary directory");
        let path = place.path().join("a/b/daemon.sock");
        let refused = open(&path, None).expect_err("refused");
        assert!(matches!(&refused, ListenError::NoFolder(named) if *named == path));
        assert!(refused.to_string().contains("does not exist: create it"), "{refused}");
        assert!(!place.path().join("a").exists());
    }

    #[test]
    fn what_a_daemon_left_behind_is_replaced() {
        let place = tempfile::tempdir().expect("temporary directory");
        let path = place.path().join("daemon.sock");
        drop(UnixListener::bind(&path).expect("a socket"));
        open(&path, None).expect("a socket");
    }

    #[test]
    fn other_files_are_left_alone() {
        let place = tempfile::tempdir().expect("temporary directory");
        let path = place.path().join("file");
        fs::write(&path, "theirs").expect("a file");
        assert!(matches!(open(&path, None), Err(ListenError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).expect("a file"), "theirs");
    }
}
