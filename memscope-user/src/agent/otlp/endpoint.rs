//! Where messages go: `http://host:port` or `https://host`, maybe with a path. Pure.

use hyper::Uri;

use crate::agent::wire;

/// A receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) server: wire::Endpoint,
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
        let form = "its form is http://host:port or https://host, such as http://127.0.0.1:4318";
        let uri: Uri = text.parse().map_err(|_| wrong(form))?;
        let Some(authority) = uri.authority() else { return Err(wrong(form)) };
        if authority.as_str().contains('@') {
            return Err(wrong("a password has its place in otlp.headers_file"));
        }
        let Some(server) = wire::Endpoint::of(&uri) else { return Err(wrong(form)) };
        // No receiver has its port without TLS by default.
        let has_port = server.is_secure || authority.port_u16().is_some();
        if !has_port || uri.query().is_some() {
            return Err(wrong(form));
        }
        Ok(Some(Self { server, path: uri.path().trim_end_matches('/').to_owned() }))
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
        let authority = endpoint.server.authority.to_str().expect("a text").to_owned();
        (authority, endpoint.server.port, endpoint.path("/v1/logs"))
    }

    #[test]
    fn endpoints_have_host_port_and_path() {
        assert_eq!(Endpoint::parse(""), Ok(None));
        assert_eq!(parse("http://127.0.0.1:4318"), ("127.0.0.1:4318".into(), 4318, "/v1/logs".into()));
        assert_eq!(parse("HTTP://collector.obs:80/"), ("collector.obs:80".into(), 80, "/v1/logs".into()));
        assert_eq!(parse("http://[::1]:4318/otlp/"), ("[::1]:4318".into(), 4318, "/otlp/v1/logs".into()));
        assert_eq!(parse("https://collector"), ("collector".into(), 443, "/v1/logs".into()));
    }

    #[test]
    fn others_are_refused() {
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
            assert!(
                Endpoint::parse(text).is_err_and(|why| why.ends_with("or https://host, such as http://127.0.0.1:4318")),
                "{text}"
            );
        }
        assert!(Endpoint::parse("http://a:b@h:4318").is_err_and(|why| why.contains("otlp.headers_file")));
    }
}
