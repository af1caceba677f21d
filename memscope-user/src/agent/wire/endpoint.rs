//! Where a server is: `http` or `https`, name and port. Pure.

use hyper::{
    Uri,
    header::HeaderValue,
    http::uri::{Authority, Scheme},
};

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Endpoint {
    /// Name or address, without brackets.
    pub(super) host: String,
    pub(in crate::agent) port: u16,
    /// With TLS.
    pub(in crate::agent) is_secure: bool,
    /// The header `Host`.
    pub(in crate::agent) authority: HeaderValue,
}

impl Endpoint {
    /// Of an address with scheme and host. `None`: it has another scheme, a password, or no such host or port.
    pub(in crate::agent) fn of(uri: &Uri) -> Option<Self> {
        let is_secure = *uri.scheme()? == Scheme::HTTPS;
        if !is_secure && *uri.scheme()? != Scheme::HTTP {
            return None;
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = port(authority, is_secure).filter(|port| *port > 0)?;
        let header = HeaderValue::from_str(authority.as_str()).ok()?;
        (!host.is_empty()).then_some(Self { host, port, is_secure, authority: header })
    }
}

/// `None`: what stands there is no port.
fn port(authority: &Authority, is_secure: bool) -> Option<u16> {
    let has_port = authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, rest)| rest).contains(':');
    match (has_port, is_secure) {
        (true, _) => authority.port_u16(),
        (false, true) => Some(443),
        (false, false) => Some(80),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_host_and_port() {
        let of = |text: &str| {
            let endpoint = Endpoint::of(&text.parse().expect("an address"))?;
            Some((endpoint.host, endpoint.port, endpoint.is_secure))
        };
        let expected = |host: &str, port, is_secure| Some((host.to_owned(), port, is_secure));
        assert_eq!(of("http://obs.example"), expected("obs.example", 80, false));
        assert_eq!(of("HTTPS://obs.example/bucket?x"), expected("obs.example", 443, true));
        assert_eq!(of("https://[::1]:9000/"), expected("::1", 9000, true));
        assert_eq!(of("https://[::1]/"), expected("::1", 443, true));
        for text in ["ftp://h", "https://a:b@h", "http://h:0", "http://h:99999", "/path", "h:80"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
