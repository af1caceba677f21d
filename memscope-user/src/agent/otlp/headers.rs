//! Headers of all requests, from a file: a receiver's token, for example.

use std::{
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use hyper::{
    HeaderMap,
    header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, USER_AGENT},
};

use crate::regular;

/// A larger file is no file of headers.
const MAX_BYTES: u64 = 16 << 10;
/// The agent sets these.
const OURS: [HeaderName; 6] = [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT];

/// Reads a file of lines `name: value`. It must be for its owner alone. An empty path: no headers.
pub(super) fn read(path: &Path) -> io::Result<HeaderMap> {
    if path.as_os_str().is_empty() {
        return Ok(HeaderMap::new());
    }
    let file = regular::open(path)?;
    let mode = file.metadata()?.mode() & 0o777;
    if mode & 0o077 != 0 {
        let text = format!("it has a secret and mode {mode:04o}: others may read it; set mode 0600");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it has more than 16 KiB"));
    }
    parse(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Messages name a line by its number: its text may be a secret.
fn parse(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| format!("line {}: {why}", number + 1);
        let (name, value) = line.split_once(':').ok_or_else(|| wrong("its form is `name: value`"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong("that is no name of a header"))?;
        if OURS.contains(&name) {
            return Err(wrong(&format!("the agent sets `{name}` itself")));
        }
        let mut value: HeaderValue = value.trim().parse().map_err(|_| wrong("that is no value of a header"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn lines_are_headers() {
        let headers = parse("Authorization: Bearer abc:d\n\nX-Tenant:  7 \n").expect("headers");
        assert_eq!(
            (headers["authorization"].as_bytes(), headers["x-tenant"].as_bytes()),
            (&b"Bearer abc:d"[..], &b"7"[..])
        );
        assert!(headers.values().all(HeaderValue::is_sensitive));
        let wrong = ["secret", "a b: secret", "x: secret\u{1}", "Host: secret", "content-LENGTH: 5"];
        for text in wrong {
            let why = parse(&format!("a: b\n{text}")).expect_err("refused");
            assert!(why.starts_with("line 2: ") && !why.contains("secret"), "{why}");
        }
    }

    /// A file that others may read is refused, as are those that are too long or no file.
    #[test]
    fn files_are_checked() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("headers");
        fs::write(&path, "a: b\n").expect("written");
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        for (bits, is_fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o644, false)] {
            mode(bits);
            assert_eq!(read(&path).is_ok(), is_fine, "{bits:o}");
        }
        mode(0o600);
        fs::write(&path, "a".repeat(20_000)).expect("written");
        assert!(read(&path).is_err());
        assert!(read(place.path()).is_err() && read(Path::new("/no/such/file")).is_err());
        assert!(read(Path::new("")).expect("no headers").is_empty());
    }
}
