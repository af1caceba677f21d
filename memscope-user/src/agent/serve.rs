//! The agent's side of the control socket.

use std::{
    cell::RefCell, os::unix::net::UnixListener as StdListener, path::Path, process::Stdio, rc::Rc, sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{
    control::{Answer, Asker, MAX_LINE_BYTES, Request, Rights},
    node::Node,
    source::Source,
};
use crate::{daemon::peer::Peer, session::Speaker};

/// Connections at once.
const MAX_CONNECTIONS: usize = 16;
/// A request has to be there, and an answer taken, in this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// After an accept that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Until a tracer is looked after again.
const LOOK: Duration = Duration::from_millis(100);

/// What connections share.
pub(super) struct Shared<S> {
    pub(super) node: Rc<RefCell<Node<S>>>,
    /// Members of this group may see all.
    pub(super) group: Option<u32>,
    pub(super) speaker: Speaker,
}

/// Serves for good. To be run in a `LocalSet`.
pub(super) async fn serve<S: Source + 'static>(listener: StdListener, shared: Rc<Shared<S>>) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Rc::clone(&shared);
                tokio::task::spawn_local(async move {
                    let _permit = permit;
                    connection(stream, &shared).await;
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn connection<S: Source>(stream: UnixStream, shared: &Shared<S>) {
    let rights = rights(&stream, shared.group);
    // Also what is refused is read: otherwise the answer would be lost with what was not.
    let (mut stream, line) = read(stream).await;
    let (rights, line) = match (rights, line) {
        (Ok(rights), Some(line)) => (rights, line),
        (Err(why), _) => return refuse(stream, why).await,
        (_, None) => {
            return refuse(stream, "no request was there within 1 s, on one line of at most 64 KiB".to_owned()).await;
        }
    };
    match Request::parse(&line) {
        Err(why) => refuse(stream, why).await,
        Ok(Request::Status {}) => {
            let status = shared.node.borrow().status().seen_by(rights);
            let _ = send(&mut stream, &Answer::Status(Box::new(status))).await;
        }
        Ok(Request::Capture { .. }) if rights != Rights::All => {
            refuse(stream, "captures are for root".to_owned()).await;
        }
        Ok(Request::Capture { pid, pod, seconds, directory }) => {
            let found = pod.map(|pod| shared.node.borrow().of_pod(&pod)).unwrap_or_default();
            let pids: Vec<u32> = pid.into_iter().chain(found).collect();
            if pids.is_empty() {
                return refuse(stream, "no process of this pod is traced".to_owned()).await;
            }
            capture(&mut stream, &pids, seconds, &directory, &shared.speaker).await;
        }
    }
}

/// What who asks may do.
fn rights(stream: &UnixStream, group: Option<u32>) -> Result<Rights, String> {
    let peer = Peer::of(stream).map_err(|error| error.to_string())?;
    let mut groups = peer.check().map_err(|error| error.to_string())?;
    groups.push(peer.gid);
    match (Asker { uid: peer.uid, groups }).rights(group) {
        Rights::None => Err("no user of this machine is known for you".to_owned()),
        rights => Ok(rights),
    }
}

/// A line, if it comes in time and is not too long.
async fn read(stream: UnixStream) -> (UnixStream, Option<Vec<u8>>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let mut bounded = (&mut stream).take(MAX_LINE_BYTES as u64);
    let read = timeout(PATIENCE, bounded.read_until(b'\n', &mut line)).await;
    let is_whole = matches!(read, Ok(Ok(_))) && line.last() == Some(&b'\n');
    (stream.into_inner(), is_whole.then_some(line))
}

/// A tracer of its own beside ours: the agent's figures go on meanwhile, and its probes are gone when it ends.
async fn capture(stream: &mut UnixStream, pids: &[u32], seconds: u64, directory: &Path, speaker: &Speaker) {
    let list = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(["attach", "--pid", &list, "--duration", &format!("{seconds}s"), "--no-progress", "--quiet"]);
    command.arg("--output-path").arg(directory).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let why = format!("cannot start a tracer: {error}");
            let _ = send(stream, &Answer::Refused { why }).await;
            return;
        }
    };
    speaker.info(format_args!("capture of {list} for {seconds} s, by tracer {}", child.id()));
    let _ = send(stream, &Answer::Begun { pids: pids.to_vec() }).await;
    let status = loop {
        match child.try_wait() {
            Ok(None) => sleep(LOOK).await,
            Ok(Some(status)) => break status.code(),
            Err(_) => break None,
        }
    };
    let _ = send(stream, &Answer::Ended { status: status.unwrap_or(-1) }).await;
}

async fn refuse(mut stream: UnixStream, why: String) {
    let _ = send(&mut stream, &Answer::Refused { why }).await;
}

async fn send(stream: &mut UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    match timeout(PATIENCE, stream.write_all(&line)).await {
        Ok(sent) => sent,
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}
