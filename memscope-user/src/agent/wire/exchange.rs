//! One request over one connection, which is closed behind it. Redirects are not followed.

use std::{error::Error, io, pin::pin, time::Duration};

use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Request, Response,
    body::{Body, Bytes, Incoming},
    client::conn::http1,
    header::{CONNECTION, HeaderValue},
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout_at},
};

/// Bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Lines of an answer's head.
const MAX_HEADERS: usize = 64;
/// Bytes of an answer's body.
const MAX_BODY_BYTES: usize = 64 << 10;

/// An answer. Its body is `None` where that was too long, or did not end.
pub(in crate::agent) type Answered = Response<Option<Bytes>>;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(in crate::agent) enum ExchangeError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("no answer: {0}")]
    Http(#[source] hyper::Error),
}

/// How a server is reached.
pub(in crate::agent) trait Connect {
    type Stream: AsyncRead + AsyncWrite + Unpin;
    fn connect(&self) -> impl Future<Output = io::Result<Self::Stream>>;
}

/// Sends a request. Connection and answer have this time together.
pub(in crate::agent) async fn exchange<C, B>(
    connect: &C,
    mut request: Request<B>,
    patience: Duration,
) -> Result<Answered, ExchangeError>
where
    C: Connect,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let deadline = Instant::now() + patience;
    let head = async {
        let stream = connect.connect().await.map_err(ExchangeError::Connect)?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
        builder.handshake(TokioIo::new(stream)).await.map_err(ExchangeError::Http)
    };
    let late = |_| ExchangeError::Timeout(patience);
    let (mut sender, connection) = timeout_at(deadline, head).await.map_err(late)??;
    let exchange = async {
        let answer = timeout_at(deadline, sender.send_request(request)).await.map_err(late)?;
        let (head, body) = answer.map_err(ExchangeError::Http)?.into_parts();
        Ok(Response::from_parts(head, read(body, deadline).await))
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
async fn read(body: Incoming, deadline: Instant) -> Option<Bytes> {
    let whole = timeout_at(deadline, Limited::new(body, MAX_BODY_BYTES).collect()).await.ok()?.ok()?;
    Some(whole.to_bytes())
}
