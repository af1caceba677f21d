//! Where messages go: `http://host:port`, maybe with a path. Pure.

use hyper::{Uri, header::HeaderValue};

/// A receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Name or address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The header `Host`.
    pub(super) authority: HeaderValue,
    /// Without a `/` at its end.
    path: String,
}

impl Endpoint {
    /// Reads the setting. `None`: nothing is sent.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |why: &str| format!("otlp.endpoint is `{text}`: {why}");
        let form = "its form is http://host:port, such as http://127.0.0.1:4318";
        if text.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://")) {
            return Err(wrong("the agent sends plain http only: put a collector on the node, which sends on by https"));
        }
        let uri: Uri = text.parse().map_err(|_| wrong(form))?;
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong(form)) };
        if authority.as_str().contains('@') {
            return Err(wrong("a password has its place in otlp.headers_file"));
        }
        let Some(port) = authority.port_u16().filter(|port| *port > 0) else { return Err(wrong(form)) };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() || uri.query().is_some() {
            return Err(wrong(form));
        }
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong(form))?;
        Ok(Some(Self { host, port, authority: header, path: uri.path().trim_end_matches('/').to_owned() }))
    }

    /// The path of a request.
    pub(super) fn path(&self, of_signal: &str) -> String {
        format!("{}{of_signal}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (String, u16, String) {
        let endpoint = Endpoint::parse(text).expect("an endpoint").expect("one");
        (endpoint.host.clone(), endpoint.port, endpoint.path("/v1/logs"))
    }

    #[test]
    fn endpoints_have_host_port_and_path() {
        assert_eq!(Endpoint::parse(""), Ok(None));
        assert_eq!(parse("http://127.0.0.1:4318"), ("127.0.0.1".into(), 4318, "/v1/logs".into()));
        assert_eq!(parse("HTTP://collector.obs:80/"), ("collector.obs".into(), 80, "/v1/logs".into()));
        assert_eq!(parse("http://[::1]:4318/otlp/"), ("::1".into(), 4318, "/otlp/v1/logs".into()));
    }

    #[test]
    fn others_are_refused() {
        let https = Endpoint::parse("https://collector:4318").expect_err("refused");
        assert_eq!(
            https,
            "otlp.endpoint is `https://collector:4318`: the agent sends plain http only: put a collector on the node, which sends on by https"
        );
        for text in [
            "127.0.0.1:4318",
            "http://host",
            "http://host:0",
            "http://h:99999",
            "grpc://h:4317",
            "http://:1",
            "http://h:1?q",
            "h h",
        ] {
            assert!(Endpoint::parse(text).is_err_and(|why| why.ends_with("such as http://127.0.0.1:4318")), "{text}");
        }
        assert!(Endpoint::parse("http://a:b@h:4318").is_err_and(|why| why.contains("otlp.headers_file")));
    }
}
