//! A receiver for tests: takes requests apart by hand, notes them, and answers as it is asked to.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::{pending, ready},
    io,
    net::SocketAddr,
    rc::Rc,
};

use hyper::body::Bytes;
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex},
    net::TcpListener,
    time::Instant,
};

use super::messages::{Data, ExportAnswer, ExportLogs, ExportMetrics, PartialSuccess, PointValue};
use crate::agent::wire::Connect;

/// How it answers.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Reply {
    /// Status, further lines of the head, body.
    Status(u16, &'static str, Vec<u8>),
    /// Nothing comes back.
    Hang,
    /// A head of status 200, and no end of the body.
    HangInBody,
    /// The connection ends before anything comes back.
    Reset,
    /// What comes back is no HTTP.
    Garbage,
    /// The body goes on and on.
    Endless(u16),
    /// There is no connection.
    Closed,
}

impl Reply {
    pub(super) fn partial(rejected: i64) -> Self {
        let partial = PartialSuccess { rejected, error: "some are too old".to_owned() };
        Self::Status(200, "", ExportAnswer { partial: Some(partial) }.encode_to_vec())
    }
}

/// A request that came.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// First line and headers.
    pub(super) head: String,
    pub(super) body: Bytes,
    pub(super) at: Instant,
}

/// Answers one after the other; then status 200.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Receiver {
    replies: Rc<RefCell<VecDeque<Reply>>>,
    requests: Rc<RefCell<Vec<Request>>>,
}

impl Receiver {
    pub(super) fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self { replies: Rc::new(RefCell::new(replies.into_iter().collect())), ..Self::default() }
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.borrow().clone()
    }

    /// Listens on a port of this machine, for good.
    pub(in crate::agent) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a socket");
        let address = listener.local_addr().expect("an address");
        let receiver = self.clone();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(receiver.clone().serve(receiver.reply(), stream));
            }
        });
        address
    }

    fn reply(&self) -> Reply {
        self.replies.borrow_mut().pop_front().unwrap_or(Reply::Status(200, "", Vec::new()))
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(self, reply: Reply, mut stream: S) {
        let Some(request) = read(&mut stream).await else { return };
        self.requests.borrow_mut().push(request);
        // Who asks may go at any time.
        let _ = answer(reply, &mut stream).await;
    }

    /// Names of the events that came, in their order.
    pub(in crate::agent) fn events(&self) -> Vec<String> {
        let requests = self.requests();
        let of_logs = requests.iter().filter(|request| request.head.starts_with("POST /v1/logs "));
        let messages = of_logs.map(|request| ExportLogs::decode(request.body.clone()).expect("a message"));
        let scopes = messages.flat_map(|message| message.resources).flat_map(|resource| resource.scopes);
        scopes.flat_map(|scope| scope.records).map(|record| record.event_name).collect()
    }

    /// What each message with numbers says of a metric without attributes.
    pub(in crate::agent) fn values(&self, name: &str) -> Vec<Option<f64>> {
        let requests = self.requests();
        let of_metrics = requests.iter().filter(|request| request.head.starts_with("POST /v1/metrics "));
        let value = |request: &Request| {
            let message = ExportMetrics::decode(request.body.clone()).expect("a message");
            let metrics = message.resources.into_iter().flat_map(|it| it.scopes).flat_map(|scope| scope.metrics);
            let found = metrics.into_iter().find(|metric| metric.name == name)?;
            let point = match found.data? {
                Data::Gauge(gauge) => gauge.points.into_iter().next(),
                Data::Sum(sum) => sum.points.into_iter().next(),
                Data::Histogram(_) => None,
            }?;
            Some(match point.value? {
                PointValue::Whole(number) => number as f64,
                PointValue::Real(number) => number,
            })
        };
        of_metrics.map(value).collect()
    }
}

/// Without a socket: the clock of a test may stand still.
impl Connect for Receiver {
    type Stream = DuplexStream;

    fn connect(&self) -> impl Future<Output = io::Result<DuplexStream>> {
        let reply = self.reply();
        if matches!(reply, Reply::Closed) {
            return ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        let (ours, theirs) = duplex(4096);
        tokio::task::spawn_local(self.clone().serve(reply, theirs));
        ready(Ok(ours))
    }
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Request> {
    let at = Instant::now();
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        bytes.push(stream.read_u8().await.ok()?);
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { head, body: body.into(), at })
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(reply: Reply, stream: &mut S) -> io::Result<()> {
    match reply {
        Reply::Status(status, more, body) => {
            let head = format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&body).await?;
        }
        Reply::Hang => pending::<()>().await,
        Reply::HangInBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab").await?;
            pending::<()>().await;
        }
        Reply::Reset | Reply::Closed => {}
        Reply::Garbage => stream.write_all(b"\x16\x03\x01 what?\n\n\n\r\n\r\n").await?,
        Reply::Endless(status) => {
            let head = format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(b"400\r\n").await?;
                stream.write_all(&[b'x'; 0x400]).await?;
                stream.write_all(b"\r\n").await?;
            }
        }
    }
    stream.shutdown().await
}
