//! Questions to a container runtime: gRPC on a Unix socket.

use std::{error::Error, future::Future, io, path::Path, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    HeaderMap, Request, StatusCode,
    body::Bytes,
    client::conn::http2,
    header::{CONTENT_TYPE, TE, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::{net::UnixStream, task::JoinHandle, time::timeout};

use super::messages::{Containers, Sandboxes};

/// For connection and answers together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer: a container of a node takes some hundred.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Bytes of an answer's head.
const MAX_HEAD_BYTES: u32 = 16 << 10;
/// Head of a message: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;
/// A request without a filter, behind its head.
const NO_FILTER: &[u8] = &[0; HEAD_BYTES];
/// Versions of the interface, the newest first.
const VERSIONS: [&str; 2] = ["runtime.v1", "runtime.v1alpha2"];
/// gRPC's code for a method or version that is not there.
const UNIMPLEMENTED: u32 = 12;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Timeout,
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
    #[error("it refuses, gRPC status {code}: {message}")]
    Refused { code: u32, message: String },
    #[error("its answer is none of a container runtime: {0}")]
    Malformed(&'static str),
}

/// All pods and containers.
pub(super) async fn ask(socket: &Path) -> Result<(Sandboxes, Containers), CallError> {
    timeout(PATIENCE, exchange(socket)).await.map_err(|_| CallError::Timeout)?
}

async fn exchange(socket: &Path) -> Result<(Sandboxes, Containers), CallError> {
    let mut connection = Connection::open(socket).await?;
    let [newest, older] = VERSIONS;
    match connection.both(newest).await {
        Err(CallError::Refused { code: UNIMPLEMENTED, .. }) => connection.both(older).await,
        answer => answer,
    }
}

/// A connection, and the task that moves its bytes.
struct Connection {
    sender: http2::SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Tasks of the connection run beside the agent's loop.
#[derive(Clone, Copy)]
pub(super) struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

impl Connection {
    async fn open(socket: &Path) -> Result<Self, CallError> {
        let stream = UnixStream::connect(socket).await.map_err(CallError::Connect)?;
        let mut builder = http2::Builder::new(Local);
        builder.max_header_list_size(MAX_HEAD_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let task = tokio::task::spawn_local(async move {
            // Whoever waits for an answer has the error, too.
            let _ = connection.await;
        });
        Ok(Self { sender, task })
    }

    async fn both(&mut self, version: &str) -> Result<(Sandboxes, Containers), CallError> {
        let sandboxes = self.list(version, "ListPodSandbox").await?;
        Ok((sandboxes, self.list(version, "ListContainers").await?))
    }

    async fn list<M: Message + Default>(&mut self, version: &str, method: &str) -> Result<M, CallError> {
        let request = Request::post(format!("http://localhost/{version}.RuntimeService/{method}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, concat!("memscope-bpf/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from_static(NO_FILTER)))
            .map_err(|_| CallError::Malformed("no request can be made"))?;
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(CallError::Malformed("its HTTP status is not 200"));
        }
        let body = Limited::new(body, MAX_ANSWER_BYTES + HEAD_BYTES).collect().await.map_err(unread)?;
        // Without a body, the head is the end, too.
        let status = body.trailers().and_then(status).or_else(|| status(&head.headers));
        match status {
            Some((0, _)) => message(&body.to_bytes()),
            Some((code, message)) => Err(CallError::Refused { code, message }),
            None => Err(CallError::Malformed("no gRPC status")),
        }
    }
}

/// Why a body has no end.
fn unread(error: Box<dyn Error + Send + Sync>) -> CallError {
    match error.downcast::<hyper::Error>() {
        Ok(error) => CallError::Http(*error),
        Err(_) => CallError::Malformed("it is longer than 16 MiB"),
    }
}

/// gRPC's code, 0: all is well, and its text.
fn status(headers: &HeaderMap) -> Option<(u32, String)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status")?.parse().ok()?;
    Some((code, text("grpc-message").unwrap_or_default().chars().take(200).collect()))
}

/// The one message of a body.
fn message<M: Message + Default>(bytes: &[u8]) -> Result<M, CallError> {
    let short = CallError::Malformed("no whole message");
    let Some((&[compressed, a, b, c, d], message)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Err(short) };
    if compressed != 0 || u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(short);
    }
    M::decode(message).map_err(|_| CallError::Malformed("fields of other types"))
}
