//! Listens, and knows how many there are of everything.

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

/// Tracers have this long to end in order, when the daemon ends.
const FAREWELL: Duration = Duration::from_secs(30);
/// After an accept that failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);
/// Refusals are told at most so often.
const TOLD: Duration = Duration::from_secs(1);

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
    told: Option<Instant>,
    untold: u64,
}

/// Serves until a signal asks to end.
pub(super) fn run(listener: StdListener, limits: Limits, args: DaemonArgs, socket: &Socket) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = State { usage: Usage::new(limits), tracers: BTreeMap::new(), ending: false, told: None, untold: 0 };
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
    // Nobody else may come.
    drop(listener);
    daemon.end(&signals).await
}

/// Answers a connection, if its user has not too many of them.
fn admit(daemon: &Rc<Daemon>, stream: UnixStream) {
    // The user at the other end is all that is known so far, and all that is counted.
    let Ok(peer) = stream.peer_cred() else { return };
    let uid = peer.uid();
    if let Err(why) = daemon.with(|state| state.usage.connect(uid)) {
        daemon.tell_refusal(uid, &why);
        // Not waited for: who opens so many may not read either.
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

    /// Makes room for a process, or says why there is none.
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

    /// Says that a user was refused something, but not so often that a log fills up.
    pub(super) fn tell_refusal(&self, uid: u32, why: &str) {
        let untold = self.with(|state| {
            if state.told.is_some_and(|told| told.elapsed() < TOLD) {
                state.untold += 1;
                return None;
            }
            state.told = Some(Instant::now());
            Some(std::mem::take(&mut state.untold))
        });
        if let Some(untold) = untold {
            let reply = Reply::refused(why);
            let more = if untold > 0 { format!(" ({untold} refusals before were not told)") } else { String::new() };
            say(&self.args, format_args!("refused to user {uid}: {}{more}", reply.text));
        }
    }

    /// Has all tracers end in order, and waits for them.
    async fn end(&self, signals: &Signals) -> Result<()> {
        self.with(|state| {
            state.ending = true;
            // Their numbers are theirs until they are waited for.
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
