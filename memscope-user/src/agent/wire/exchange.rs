//! One request over one connection, which is closed behind it. Redirects are not followed.

use std::{io, pin::pin, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::RETRY_AFTER,
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};

use super::{answer::Answer, endpoint::Endpoint};

/// Bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Lines of an answer's head.
const MAX_HEADERS: usize = 64;
/// Bytes of an answer's body.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum PostError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("no answer: {0}")]
    Http(#[source] hyper::Error),
}

/// How a receiver is reached.
pub(super) trait Connect {
    type Stream: AsyncRead + AsyncWrite + Unpin;
    async fn connect(&self) -> io::Result<Self::Stream>;
}

impl Connect for Endpoint {
    type Stream = TcpStream;

    async fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect((self.host.as_str(), self.port)).await
    }
}

/// Sends a request. Connection and answer have this time together.
pub(super) async fn post<C: Connect>(
    connect: &C,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, PostError> {
    let deadline = Instant::now() + patience;
    let head = async {
        let stream = connect.connect().await.map_err(PostError::Connect)?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
        builder.handshake(TokioIo::new(stream)).await.map_err(PostError::Http)
    };
    let late = |_| PostError::Timeout(patience);
    let (mut sender, connection) = timeout_at(deadline, head).await.map_err(late)??;
    let exchange = async {
        let answer = timeout_at(deadline, sender.send_request(request)).await.map_err(late)?;
        let (head, body) = answer.map_err(PostError::Http)?.into_parts();
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Answer { status: head.status, retry_after, body: read(body, deadline).await })
    };
    let mut exchange = pin!(exchange);
    // The connection does the work; when it has ended, what it read is still to be taken.
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    }
}

/// A body that is short and ends in time.
async fn read(body: Incoming, deadline: Instant) -> Option<Vec<u8>> {
    let whole = timeout_at(deadline, Limited::new(body, MAX_BODY_BYTES).collect()).await.ok()?.ok()?;
    Some(whole.to_bytes().into())
}
