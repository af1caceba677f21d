//! Listens, and counts connections and tracers.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::Write as _,
    os::unix::net::UnixListener as StdListener,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Notify,
    task::LocalSet,
    time::{sleep, timeout},
};

use super::{client, say};
use crate::{
    cli::{args::DaemonArgs, signals::Signals},
    daemon::{
        limits::{Limits, Usage},
        listen::Socket,
        protocol::Reply,
    },
};

/// At the daemon's end, tracers have this long to end in order.
const FAREWELL: Duration = Duration::from_secs(30);
/// After an accept that failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between reports of refusals.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What all connections share.
pub(super) struct Daemon {
    pub(super) args: DaemonArgs,
    /// Some child has ended.
    pub(super) child_ended: Notify,
    state: RefCell<State>,
}

struct State {
    usage: Usage,
    /// Tracers by the processes that they trace, or are going to.
    tracers: BTreeMap<u32, Pid>,
    ending: bool,
    reported: Option<Instant>,
    unreported: u64,
}

/// Serves until a signal asks to end.
pub(super) fn run(listener: StdListener, limits: Limits, args: DaemonArgs, socket: &Socket) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state =
        State { usage: Usage::new(limits), tracers: BTreeMap::new(), ending: false, reported: None, unreported: 0 };
    let daemon = Rc::new(Daemon { args, child_ended: Notify::new(), state: RefCell::new(state) });
    LocalSet::new().block_on(&runtime, serve(listener, daemon, socket))
}

async fn serve(listener: StdListener, daemon: Rc<Daemon>, socket: &Socket) -> Result<()> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener).context("cannot listen")?;
    let signals = Signals::new()?;
    say(&daemon.args, format_args!("listening on {socket}"));
    loop {
        tokio::select! {
            caught = signals.next() => {
                let signal = caught?.signal;
                match signal {
                    Signal::SIGCHLD => daemon.child_ended.notify_waiters(),
                    Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => {
                        say(&daemon.args, format_args!("{signal}: ending"));
                        break;
                    }
                    // There is no terminal to hang up, and nothing to read again.
                    _ => {}
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(&daemon, stream),
                Err(_) => sleep(PAUSE).await,
            },
        }
    }
    // No further connections.
    drop(listener);
    daemon.end(&signals).await
}

/// Answers a connection, if its user is within the limit.
fn admit(daemon: &Rc<Daemon>, stream: UnixStream) {
    // Only the user at the other end is known so far, and counted.
    let Ok(peer) = stream.peer_cred() else { return };
    let uid = peer.uid();
    if let Err(why) = daemon.with(|state| state.usage.connect(uid)) {
        daemon.report_refusal(uid, &why);
        // Not awaited: a user who opens too many may not read either.
        if let Ok(mut stream) = stream.into_std() {
            let _ = stream.write(&Reply::refused(why).line());
        }
        return;
    }
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        let tracer = client::serve(&daemon, stream).await;
        daemon.with(|state| state.usage.disconnect(uid));
        if let Some(tracer) = tracer {
            tracer.wait(&daemon).await;
        }
    });
}

impl Daemon {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.borrow_mut())
    }

    /// Reserves room for a process, or returns why there is none.
    pub(super) fn reserve(&self, pid: u32, uid: u32) -> Result<(), String> {
        self.with(|state| {
            if state.ending {
                return Err("the daemon is ending".to_owned());
            }
            if state.tracers.contains_key(&pid) {
                return Err(format!("process {pid} has a tracer that has not begun yet, or is ending; try again"));
            }
            state.usage.trace(uid, Instant::now())
        })
    }

    /// The room is not needed any more.
    pub(super) fn release(&self, pid: u32, uid: u32) {
        self.with(|state| {
            state.tracers.remove(&pid);
            state.usage.end(uid);
        });
    }

    /// A tracer was started.
    pub(super) fn started(&self, pid: u32, tracer: Pid) {
        self.with(|state| state.tracers.insert(pid, tracer));
    }

    /// Reports a refusal for a user, at a bounded rate, so that no log fills up.
    pub(super) fn report_refusal(&self, uid: u32, why: &str) {
        let unreported = self.with(|state| {
            if state.reported.is_some_and(|reported| reported.elapsed() < REPORT_INTERVAL) {
                state.unreported += 1;
                return None;
            }
            state.reported = Some(Instant::now());
            Some(std::mem::take(&mut state.unreported))
        });
        if let Some(unreported) = unreported {
            let reply = Reply::refused(why);
            let more = if unreported > 0 {
                format!(" ({unreported} refusals before were not reported)")
            } else {
                String::new()
            };
            say(&self.args, format_args!("refused to user {uid}: {}{more}", reply.text));
        }
    }

    /// Has all tracers end in order, and waits for them.
    async fn end(&self, signals: &Signals) -> Result<()> {
        self.with(|state| {
            state.ending = true;
            // Their process numbers are not reused until they are awaited.
            for tracer in state.tracers.values() {
                let _ = kill(*tracer, Signal::SIGTERM);
            }
        });
        let all_ended = async {
            while self.with(|state| !state.tracers.is_empty()) {
                if let Ok(caught) = timeout(PAUSE, signals.next()).await
                    && caught?.signal == Signal::SIGCHLD
                {
                    self.child_ended.notify_waiters();
                }
            }
            Ok(())
        };
        timeout(FAREWELL, all_ended).await.unwrap_or_else(|_| {
            let left = self.with(|state| state.tracers.len());
            say(&self.args, format_args!("{left} tracer(s) have not ended in time; they go on ending by themselves"));
            Ok(())
        })
    }
}
