//! The agent's loop.

use std::{
    cell::RefCell,
    os::unix::net::UnixListener,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::unistd::Group;
use thiserror::Error;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::LocalSet,
};

use super::{
    config::{Config, ConfigError},
    cri,
    evidence::StartError,
    http::{self, Pages},
    node::Node,
    otlp::{self, Feed},
    serve::{self, Shared},
    source::{Source, Streaming},
};
use crate::{
    daemon::listen::{self, ListenError, Socket},
    session::{Listener, Speaker, TraceError, every},
};

/// Why the agent does not run.
#[derive(Debug, Error)]
pub enum AgentError {
    /// Its settings make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Commands cannot reach it.
    #[error(transparent)]
    Control(#[from] ListenError),
    /// The page cannot be served.
    #[error("cannot listen on {address} for the page of numbers")]
    Page {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The system refuses something.
    #[error("{what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Evidence cannot be kept.
    #[error(transparent)]
    Evidence(#[from] StartError),
    /// The trace has ended by itself.
    #[error("the trace has ended: {0}")]
    Ended(String),
}

/// How it runs.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Its settings.
    pub config: Config,
    /// End after the first whole page.
    pub once: bool,
}

/// Runs until a signal comes, or after one page. Gives the last page.
pub fn run(options: RunOptions, say: Arc<dyn Listener>) -> Result<String, AgentError> {
    let RunOptions { config, once } = options;
    config.check()?;
    let speaker = Speaker::new(Arc::clone(&say));
    // It forks, so it comes before anything of ours.
    let source = Streaming::start(&config, say)?;
    let system = |what| move |source| AgentError::System { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("cannot start the agent's loop"))?;
    let result = LocalSet::new().block_on(&runtime, work(config, once, source, speaker));
    // A look-up of a receiver's name may take the system long: the agent does not wait for it.
    runtime.shutdown_background();
    result
}

async fn work<S: Source + 'static>(
    config: Config,
    once: bool,
    source: S,
    speaker: Speaker,
) -> Result<String, AgentError> {
    let pages = Pages::default();
    let seconds = Duration::from_secs_f64;
    let (look, make) = (seconds(config.discovery.interval_seconds), seconds(config.metrics.interval_seconds));
    if !once {
        serve_pages(&config, &pages, &speaker).await?;
    }
    let group = group(&config.control.group)?;
    let socket = if once { None } else { open_socket(&config.control.socket, group)? };
    let (feed, sending) = if once { (Feed::default(), None) } else { otlp::start(&config.otlp, &speaker)? };
    let runtime = cri::start(&config.names.runtime_socket, &speaker);
    let mut node = Node::new(config, source, pages.clone(), feed, speaker.clone()).with_runtime(runtime);
    if !once {
        node.record()?;
    }
    let node = Rc::new(RefCell::new(node));
    let (listener, _socket) = socket.unzip();
    if let Some(listener) = listener {
        let shared = Shared { node: Rc::clone(&node), group, speaker: speaker.clone() };
        tokio::task::spawn_local(serve::serve(listener, Rc::new(shared)));
    }
    speaker.info(format_args!("the agent runs"));
    let ended = react(&node, once, (look, make), &speaker).await;
    node.borrow_mut().finish(Instant::now());
    let result = node.borrow_mut().source().end();
    if let Some(sending) = sending {
        sending.end().await;
    }
    match (ended, result) {
        (Ok(()), Ok(())) => Ok(pages.text()),
        (Err(error), _) => Err(error),
        (_, Err(why)) => Err(AgentError::Ended(why)),
    }
}

/// Looks and makes pages until a signal comes.
async fn react<S: Source + 'static>(
    node: &Rc<RefCell<Node<S>>>,
    once: bool,
    (look, make): (Duration, Duration),
    speaker: &Speaker,
) -> Result<(), AgentError> {
    let system = |what| move |source| AgentError::System { what, source };
    let listen = |kind| signal(kind).map_err(system("cannot listen to signals"));
    let (mut term, mut int, mut hup) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, listen(SignalKind::hangup())?);
    let (mut look, mut make) = (every(look), every(make));
    // The first is at once, when there is nothing to be seen yet.
    make.tick().await;
    loop {
        tokio::select! {
            biased;
            _ = term.recv() => return Ok(()),
            _ = int.recv() => return Ok(()),
            _ = hup.recv() => speaker.info(format_args!("settings are read at the start alone: restart the agent")),
            _ = look.tick() => {
                let joining = node.borrow_mut().look(Instant::now());
                for pid in joining {
                    join(node, pid);
                }
                if node.borrow_mut().source().has_ended() {
                    return Err(AgentError::Ended("see the messages above".to_owned()));
                }
            }
            _ = make.tick() => {
                node.borrow_mut().page(Instant::now());
                if once {
                    return Ok(());
                }
            }
        }
    }
}

/// Has a process join, without waiting for it.
fn join<S: Source + 'static>(node: &Rc<RefCell<Node<S>>>, pid: u32) {
    let answer = node.borrow_mut().source().join(pid);
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        let result = answer.await.unwrap_or_else(|_| Err("the trace has ended".to_owned()));
        node.borrow_mut().joined(pid, result, Instant::now());
    });
}

async fn serve_pages(config: &Config, pages: &Pages, speaker: &Speaker) -> Result<(), AgentError> {
    let Some(address) = config.listen()? else { return Ok(()) };
    let listener = http::open(address).await.map_err(|source| AgentError::Page { address, source })?;
    let address = listener.local_addr().unwrap_or(address);
    speaker.info(format_args!("the numbers are at http://{address}/metrics"));
    tokio::task::spawn_local(http::serve(listener, pages.clone()));
    Ok(())
}

fn open_socket(path: &Path, group: Option<u32>) -> Result<Option<(UnixListener, Socket)>, AgentError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    Ok(Some(listen::open(path, group)?))
}

fn group(name: &str) -> Result<Option<u32>, AgentError> {
    if name.is_empty() {
        return Ok(None);
    }
    let none = || ConfigError::Value(format!("control.group is `{name}`: there is no such group"));
    let found = Group::from_name(name).ok().flatten().ok_or_else(none)?;
    Ok(Some(found.gid.as_raw()))
}
