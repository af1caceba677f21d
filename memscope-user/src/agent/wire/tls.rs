//! TLS, and the way to a server.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};

use super::{Connect, Endpoint};

/// A connection, of whichever kind.
pub(in crate::agent) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// TLS by the certificates of this machine's authorities: those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, else the system's. They are read once,
/// for the first server that needs them.
#[derive(Clone, Default)]
pub(in crate::agent) struct Tls(Arc<Mutex<Option<TlsConnector>>>);

impl Tls {
    fn connector(&self) -> io::Result<TlsConnector> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(connector) => Ok(connector.clone()),
            None => Ok(known.insert(connector()?).clone()),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The way to a server.
#[derive(Clone)]
pub(in crate::agent) struct Reach {
    endpoint: Endpoint,
    /// With TLS.
    tls: Option<TlsConnector>,
}

impl Reach {
    /// To a server, with TLS if it asks for that.
    pub(in crate::agent) fn new(endpoint: Endpoint, tls: &Tls) -> io::Result<Self> {
        let tls = endpoint.is_secure.then(|| tls.connector()).transpose()?;
        Ok(Self { endpoint, tls })
    }
}

fn connector() -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "no certificates of authorities are on this machine: install `ca-certificates`, or set SSL_CERT_FILE",
        ));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}

impl Connect for Reach {
    type Stream = Box<dyn Stream>;

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let Endpoint { host, port, .. } = &self.endpoint;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}
