//! A bucket of an object store with the interface of S3.

use std::{convert::Infallible, env, io, time::Duration};

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full};
use hyper::{Uri, header::HOST};
use object_store::{
    ClientOptions, Error, ObjectStore as _, PutMode, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    },
    path::Path,
};
use tokio::runtime::{Builder, Runtime};

use super::upload::Target;
use crate::{
    agent::{
        config::UploadSettings,
        wire::{Endpoint, ExchangeError, Reach, Tls, exchange},
    },
    printable::OneLine,
};

/// For one request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Attempts beside the first one; then the file waits for the next round.
const RETRIES: usize = 2;
/// Characters of a store's text that a message shows.
const MAX_TEXT: usize = 300;
/// Sets of variables that have, or lead to, a key.
const CREDENTIALS: [&[&str]; 4] = [
    &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
    &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"],
    &["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"],
    &["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"],
];

/// A bucket, and where in it.
#[derive(Debug)]
pub(super) struct Bucket {
    store: AmazonS3,
    prefix: String,
    mode: PutMode,
    runtime: Runtime,
}

impl Bucket {
    /// Of the settings and, where they say nothing, of the usual variables (`AWS_…`).
    pub(super) fn new(settings: &UploadSettings) -> Result<Self, String> {
        let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
        if !CREDENTIALS.iter().any(|names| names.iter().all(is_set)) {
            return Err("evidence.upload needs a key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the agent's \
                        environment"
                .to_owned());
        }
        Self::over(AmazonS3Builder::from_env(), settings)
    }

    fn over(mut builder: AmazonS3Builder, settings: &UploadSettings) -> Result<Self, String> {
        let Place { bucket, prefix, endpoint } = place(settings)?;
        builder = builder.with_bucket_name(bucket).with_virtual_hosted_style_request(settings.virtual_hosted);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if !settings.region.is_empty() {
            builder = builder.with_region(&settings.region);
        }
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: PATIENCE, ..RetryConfig::default() };
        let store = builder.with_retry(retry).with_http_connector(Connector::default()).build();
        let store = store.map_err(|error| format!("evidence.upload: {}", text(&error)))?;
        let mode = if settings.put_if_absent { PutMode::Create } else { PutMode::Overwrite };
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self { store, prefix, mode, runtime: runtime.map_err(|error| error.to_string())? })
    }
}

impl Target for Bucket {
    fn put(&mut self, path: &str, bytes: Vec<u8>) -> Result<(), String> {
        let Self { store, prefix, mode, runtime } = self;
        let path = Path::from(format!("{prefix}{path}"));
        match runtime.block_on(store.put_opts(&path, bytes.into(), mode.clone().into())) {
            Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(text(&error)),
        }
    }
}

/// For a message: a store may send pages of XML.
fn text(error: &Error) -> String {
    OneLine(error.to_string().chars().take(MAX_TEXT).collect::<String>()).to_string()
}

/// What the settings say.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    bucket: String,
    /// Empty, or with a `/` at its end.
    prefix: String,
    endpoint: Option<String>,
}

/// Whether the settings make sense.
pub(in crate::agent) fn check(settings: &UploadSettings) -> Result<(), String> {
    place(settings).map(|_| ())
}

fn place(settings: &UploadSettings) -> Result<Place, String> {
    let UploadSettings { url, endpoint, virtual_hosted, .. } = settings;
    let wrong =
        || format!("evidence.upload.url is `{url}`: its form is s3://bucket/folder, such as s3://fleet/memscope");
    let (bucket, folder) =
        url.strip_prefix("s3://").map(|rest| rest.split_once('/').unwrap_or((rest, ""))).ok_or_else(wrong)?;
    let is_plain =
        |text: &str, more: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte));
    if !(3..=63).contains(&bucket.len()) || !is_plain(bucket, b".-") {
        return Err(wrong());
    }
    let folder = folder.trim_end_matches('/');
    let is_folder = |part: &str| !matches!(part, "" | "." | "..") && is_plain(part, b"-_.=");
    if !folder.is_empty() && !folder.split('/').all(is_folder) {
        return Err(wrong());
    }
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let endpoint = if endpoint.is_empty() { None } else { Some(server(endpoint, virtual_hosted.then_some(bucket))?) };
    Ok(Place { bucket: bucket.to_owned(), prefix, endpoint })
}

/// `bucket`: to be a part of the server's name.
fn server(endpoint: &str, bucket: Option<&str>) -> Result<String, String> {
    let wrong = || {
        format!(
            "evidence.upload.endpoint is `{endpoint}`: its form is https://host, such as https://obs.cn-north-4.myhuaweicloud.com"
        )
    };
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    let server = Endpoint::of(&uri).filter(|_| uri.path() == "/" && uri.query().is_none()).ok_or_else(wrong)?;
    let scheme = if server.is_secure { "https" } else { "http" };
    let authority = server.authority.to_str().map_err(|_| wrong())?;
    Ok(bucket.map_or_else(|| format!("{scheme}://{authority}"), |bucket| format!("{scheme}://{bucket}.{authority}")))
}

/// Requests by our own connections.
#[derive(Clone, Debug, Default)]
struct Connector {
    tls: Tls,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let invalid = |what| HttpError::new(HttpErrorKind::Unknown, io::Error::other(what));
        let endpoint = Endpoint::of(request.uri()).ok_or_else(|| invalid("no server of http or https"))?;
        request.headers_mut().insert(HOST, endpoint.authority.clone());
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        *request.uri_mut() = target.parse().map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let reach = Reach::new(endpoint, &self.tls).map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let (head, body) = exchange(&reach, request, PATIENCE).await.map_err(failed)?.into_parts();
        let body =
            body.ok_or_else(|| HttpError::new(HttpErrorKind::Decode, io::Error::other("its answer has no end")))?;
        let body = Full::new(body).map_err(|never: Infallible| match never {});
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

fn failed(error: ExchangeError) -> HttpError {
    let kind = match &error {
        ExchangeError::Connect(_) => HttpErrorKind::Connect,
        ExchangeError::Timeout(_) => HttpErrorKind::Timeout,
        ExchangeError::Http(_) => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

#[cfg(test)]
mod tests;
