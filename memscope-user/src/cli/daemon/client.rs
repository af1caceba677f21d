//! One connection: the peer, the request, a tracer, an answer.

use std::{
    error::Error as _,
    ffi::OsString,
    process::{Child, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use clap::{
    Parser as _,
    error::{ContextKind, ContextValue},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    net::{UnixStream, unix::pipe},
    time::timeout,
};

use super::{say, server::Daemon, tracer};
use crate::{
    cli::args::Cli,
    daemon::{
        peer::Peer,
        protocol::{self, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Reply, RequestError, Settings, Status},
    },
    kernel::tracers,
};

/// Longest wait for a request.
const REQUEST: Duration = Duration::from_secs(2);
/// Longest wait for probes. Clients wait for less; a client that is gone is not traced.
const ATTACH: Duration = Duration::from_secs(20);
/// Longest wait for an answer to be read.
const ANSWER: Duration = Duration::from_secs(1);

/// Answers a connection. Gives the tracer, if one runs.
pub(super) async fn serve(daemon: &Rc<Daemon>, stream: UnixStream) -> Option<Tracer> {
    let (reply, tracer) = match answer(daemon, &stream).await {
        Ok((status, text, tracer)) => (Reply::new(status, text), tracer),
        Err(refusal) => {
            let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
            daemon.report_refusal(uid, &refusal.why);
            (Reply::refused(refusal.why), refusal.tracer)
        }
    };
    let _ = timeout(ANSWER, write(&stream, &reply.line())).await;
    tracer
}

/// Why a process is not traced, and a tracer that has to be awaited all the same.
struct Refusal {
    why: String,
    tracer: Option<Tracer>,
}

impl<T: std::fmt::Display> From<T> for Refusal {
    fn from(why: T) -> Self {
        Self { why: why.to_string(), tracer: None }
    }
}

async fn answer(daemon: &Rc<Daemon>, stream: &UnixStream) -> Result<(Status, String, Option<Tracer>), Refusal> {
    let peer = Peer::of(stream)?;
    let request = timeout(REQUEST, read(stream)).await;
    let line = request.map_err(|_| format!("the request was not there within {} s", REQUEST.as_secs()))??;
    let settings = protocol::settings(&line)?;
    let options = options(daemon, &peer, &settings)?;
    if tracers::have(peer.pid).map_err(|error| format!("cannot ask the kernel who is traced: {error}"))? {
        return Ok((Status::Traced, format!("process {} is traced already", peer.pid), None));
    }
    let mut tracer = Tracer::start(daemon, &peer, &options)?;
    match tracer.attached(stream).await {
        Ok(()) => {
            say(
                &daemon.args,
                format_args!("process {} of user {} is traced by {}", peer.pid, peer.uid, tracer.child.id()),
            );
            Ok((Status::Ready, format!("process {} is traced", peer.pid), Some(tracer)))
        }
        Err(why) => {
            // If it has ended already, its number is still its own.
            tracer.end();
            Err(Refusal { why, tracer: Some(tracer) })
        }
    }
}

/// Reads a line of bounded length.
async fn read(stream: &UnixStream) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        stream.readable().await?;
        let room = part.len().min(MAX_REQUEST_BYTES + 1 - bytes.len());
        match stream.try_read(&mut part[..room]) {
            Ok(0) => return Err(RequestError::Incomplete.into()),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        }
        if let Some(line) = protocol::line(&bytes)? {
            return Ok(line.to_vec());
        }
    }
}

async fn write(stream: &UnixStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The command line of the tracer, which our own parser accepts.
fn options(daemon: &Daemon, peer: &Peer, settings: &Settings) -> Result<Vec<OsString>, String> {
    let Peer { pid, uid, gid, .. } = peer;
    let mut options: Vec<OsString> = vec![tracer::VERB.into()];
    options.extend(
        [("pid", pid), ("uid", uid), ("gid", gid), ("only-user", uid)]
            .map(|(name, id)| format!("--{name}={id}").into()),
    );
    options.extend(["--collect-mode=deferred", "--no-progress"].map(Into::into));
    options.push(format!("--ring-size={}", daemon.args.ring_size).into());
    options.extend(settings.options().into_iter().map(Into::into));
    let mut output = OsString::from("--output-path=");
    output.push(&settings.output_path);
    options.push(output);
    let line = [OsString::from("memscope-bpf")].into_iter().chain(options.iter().cloned());
    match Cli::try_parse_from(line) {
        Ok(_) => Ok(options),
        Err(error) => Err(invalid(&error)),
    }
}

/// The fault of a setting. The value may be several lines, or none.
fn invalid(error: &clap::Error) -> String {
    if let (Some(ContextValue::String(option)), Some(why)) = (error.get(ContextKind::InvalidArg), error.source()) {
        let name = option.split(' ').next().unwrap_or_default().trim_start_matches('-');
        return format!("{name}: {why}");
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// A tracer's process. Its room is freed when it has been awaited.
pub(super) struct Tracer {
    child: Child,
    says: Option<pipe::Receiver>,
    pid: u32,
    uid: u32,
}

impl Tracer {
    /// Starts it with nothing of the daemon's but the pidfd and a pipe.
    fn start(daemon: &Rc<Daemon>, peer: &Peer, options: &[OsString]) -> Result<Self, String> {
        let pidfd = peer.pidfd.try_clone().map_err(|error| format!("cannot start a tracer: {error}"))?;
        daemon.reserve(peer.pid, peer.uid)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(options).env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "TZ"));
        command.current_dir("/").stdin(Stdio::from(pidfd)).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                daemon.release(peer.pid, peer.uid);
                return Err(format!("cannot start a tracer: {error}"));
            }
        };
        daemon.started(peer.pid, Pid::from_raw(child.id().cast_signed()));
        let says = child.stdout.take().and_then(|pipe| pipe::Receiver::from_owned_fd(pipe.into()).ok());
        Ok(Self { child, says, pid: peer.pid, uid: peer.uid })
    }

    /// Waits until it has its probes, it has failed, or the client is gone.
    async fn attached(&mut self, stream: &UnixStream) -> Result<(), String> {
        let Some(says) = self.says.take() else { return Err("the tracer cannot be listened to".to_owned()) };
        tokio::select! {
            said = timeout(ATTACH, hear(&says)) => {
                let said = said.map_err(|_| format!("no tracer was ready within {} s", ATTACH.as_secs()))?;
                match said.strip_suffix('\n') {
                    Some(tracer::READY) => Ok(()),
                    Some(why) => Err(why.to_owned()),
                    None => Err("the tracer has ended unexpectedly".to_owned()),
                }
            }
            () = is_gone(stream) => Err("the client did not wait for the answer, or sent more than a request".to_owned()),
        }
    }

    /// Asks it to end.
    fn end(&self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
    }

    /// Waits for its end.
    pub(super) async fn wait(mut self, daemon: &Rc<Daemon>) {
        loop {
            let ended = daemon.child_ended.notified();
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            ended.await;
        }
        daemon.release(self.pid, self.uid);
        say(&daemon.args, format_args!("the tracer of process {} of user {} has ended", self.pid, self.uid));
    }
}

/// The one line that a tracer writes; empty if it ended without one.
async fn hear(says: &pipe::Receiver) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 512];
        if says.readable().await.is_err() {
            break;
        }
        match says.try_read(&mut part) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => break,
        }
        if bytes.ends_with(b"\n") || bytes.len() > MAX_REPLY_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns when the client has hung up, or sends more than allowed.
async fn is_gone(stream: &UnixStream) {
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
