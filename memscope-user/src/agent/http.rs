//! The page over HTTP: GET alone, few connections, short times. The page is made by the agent's own clock, so asking costs it nothing.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::page::Format;

/// Connections at once; others wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// A request's head has to be there in this time.
const HEAD: Duration = Duration::from_secs(5);
/// A connection ends after this time.
const CONNECTION: Duration = Duration::from_secs(30);
/// After an accept that failed, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// The newest page, in both formats.
#[derive(Clone, Debug, Default)]
pub struct Pages(Arc<Mutex<Option<(Bytes, Bytes)>>>);

impl Pages {
    /// Another page takes its place.
    pub fn set(&self, text: String, open_metrics: String) {
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *pages = Some((text.into(), open_metrics.into()));
    }

    /// The newest page as text.
    #[must_use]
    pub fn text(&self) -> String {
        let page = self.get(Format::Text).unwrap_or_default();
        String::from_utf8_lossy(&page).into_owned()
    }

    fn get(&self, format: Format) -> Option<Bytes> {
        let pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (text, open_metrics) = pages.as_ref()?;
        Some(match format {
            Format::Text => text.clone(),
            Format::OpenMetrics => open_metrics.clone(),
        })
    }
}

/// Listens.
pub async fn open(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves for good. To be run in a `LocalSet`.
pub async fn serve(listener: TcpListener, pages: Pages) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = pages.clone();
                tokio::task::spawn_local(async move {
                    let _permit = permit;
                    // Whoever takes too long, or breaks off, is no concern of ours.
                    let _ = timeout(CONNECTION, connection(stream, pages)).await;
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn connection(stream: TcpStream, pages: Pages) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let answer = answer(&request, &pages);
        async move { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    answer_to(request.method(), request.uri().path(), accept, pages)
}

fn answer_to(method: &Method, path: &str, accept: &str, pages: &Pages) -> Response<Full<Bytes>> {
    if method != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is served\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    match path {
        "/metrics" => {
            let format = Format::accepted(accept);
            let Some(page) = pages.get(format) else {
                return plain(StatusCode::SERVICE_UNAVAILABLE, "no page is made yet\n");
            };
            let mut found = Response::new(Full::new(page));
            found.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
            found
        }
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" if pages.get(Format::Text).is_some() => plain(StatusCode::OK, "ok\n"),
        "/readyz" => plain(StatusCode::SERVICE_UNAVAILABLE, "no page is made yet\n"),
        "/" => plain(StatusCode::OK, "memscope-bpf agent: the numbers are at /metrics\n"),
        _ => plain(StatusCode::NOT_FOUND, "the numbers are at /metrics\n"),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::LocalSet,
    };

    use super::*;

    fn status(method: &Method, path: &str, pages: &Pages) -> u16 {
        answer_to(method, path, "", pages).status().as_u16()
    }

    #[test]
    fn answers_by_path_and_method() {
        let pages = Pages::default();
        assert_eq!(
            ["/metrics", "/readyz", "/healthz", "/x"].map(|path| status(&Method::GET, path, &pages)),
            [503, 503, 200, 404]
        );
        pages.set("a 1\n".into(), "a 1\n# EOF\n".into());
        assert_eq!(["/metrics", "/readyz"].map(|path| status(&Method::GET, path, &pages)), [200, 200]);
        assert_eq!(
            [Method::POST, Method::PUT, Method::DELETE].map(|method| status(&method, "/metrics", &pages)),
            [405; 3]
        );
    }

    /// What goes over a socket: the page in the format that is asked for, and no answer to a head that is too long.
    #[test]
    fn pages_are_served() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let served = async {
            let pages = Pages::default();
            pages.set("text 1\n".into(), "open 1\n# EOF\n".into());
            let listener = open(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a socket");
            let address = listener.local_addr().expect("an address");
            tokio::task::spawn_local(serve(listener, pages));
            let ask = async |head: String| {
                let mut stream = TcpStream::connect(address).await.expect("connected");
                // It may answer before all is read.
                let _ = stream.write_all(head.as_bytes()).await;
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer).await;
                String::from_utf8_lossy(&answer).into_owned()
            };
            let get = |accept: &str| {
                format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: {accept}\r\n\r\n")
            };
            let text = ask(get("text/plain")).await;
            assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\ntext 1\n"), "{text}");
            let open = ask(get("application/openmetrics-text; version=1.0.0")).await;
            assert!(open.contains("version=1.0.0") && open.ends_with("open 1\n# EOF\n"), "{open}");
            let long = ask(get(&"x".repeat(2 * MAX_HEAD_BYTES))).await;
            assert!(!long.contains("text 1"), "{long}");
        };
        LocalSet::new().block_on(&runtime, served);
    }
}
