//! The protocol of the socket: one line of JSON from the client, one from the daemon, then the connection ends.
//!
//! The process is not in the request: the kernel identifies the peer.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::printable::OneLine;

/// The one version there is.
pub const VERSION: u32 = 1;
/// Bytes of a request, with the end of its line.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Bytes of a reply, with the end of its line.
pub const MAX_REPLY_BYTES: usize = 4 << 10;
/// Characters of a reply's text; each may become twelve bytes.
const MAX_REPLY_CHARS: usize = 300;
/// Linux's limit of a path.
const MAX_PATH_BYTES: usize = 4095;

/// An invalid request.
#[derive(Debug, Error)]
pub enum RequestError {
    /// No end of the line within the limit.
    #[error("the request is longer than {MAX_REQUEST_BYTES} bytes")]
    TooLong,
    /// The peer has ended the line nowhere.
    #[error("the request ends before its line does")]
    Incomplete,
    /// Bytes behind the line.
    #[error("there is more than one request")]
    Trailing,
    /// Not the expected JSON.
    #[error("the request is not understood: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Of another version.
    #[error(
        "the request is of version {0}, and this daemon knows version {VERSION} alone: install both from one release"
    )]
    Version(u32),
    /// Not a place for outputs.
    #[error("output_path is not an absolute path of at most {MAX_PATH_BYTES} bytes without `.` and `..`")]
    OutputPath,
}

/// A script's settings: values are those of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    device: Option<String>,
    level: Option<String>,
    events: Option<String>,
    call_stack: Option<String>,
    analysis: Option<String>,
    watch: Option<String>,
    format: Option<String>,
    /// Where to write, as the script sees the file system.
    pub output_path: PathBuf,
}

/// All versions have it.
#[derive(Deserialize)]
struct AnyRequest {
    version: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    #[expect(dead_code, reason = "it was looked at before")]
    version: u32,
    settings: Settings,
}

/// The line received so far; `None` if its end has not come.
pub fn line(bytes: &[u8]) -> Result<Option<&[u8]>, RequestError> {
    match bytes.iter().take(MAX_REQUEST_BYTES).position(|byte| *byte == b'\n') {
        Some(end) if end + 1 == bytes.len() => Ok(Some(&bytes[..end])),
        Some(_) => Err(RequestError::Trailing),
        None if bytes.len() >= MAX_REQUEST_BYTES => Err(RequestError::TooLong),
        None => Ok(None),
    }
}

/// The settings in a line.
pub fn settings(line: &[u8]) -> Result<Settings, RequestError> {
    let AnyRequest { version } = serde_json::from_slice(line)?;
    if version != VERSION {
        return Err(RequestError::Version(version));
    }
    let Request { settings, .. } = serde_json::from_slice(line)?;
    if is_place(&settings.output_path) { Ok(settings) } else { Err(RequestError::OutputPath) }
}

/// Whether the path is absolute and without `..`.
fn is_place(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let mut parts = bytes.split(|byte| *byte == b'/');
    path.components().next() == Some(Component::RootDir)
        && bytes.len() <= MAX_PATH_BYTES
        && !bytes.contains(&0)
        && !parts.any(|part| matches!(part, b"." | b".."))
}

impl Settings {
    /// Options of the command line. A value cannot become an option: each is in one piece with its name.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let events = self.events.as_deref().map(without_traceback);
        let named = [
            ("device", self.device.as_deref()),
            ("level", self.level.as_deref()),
            ("events", events.as_deref()),
            ("call-stack", self.call_stack.as_deref()),
            ("analysis", self.analysis.as_deref()),
            ("watch", self.watch.as_deref()),
            ("format", self.format.as_deref()),
        ];
        named.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))).collect()
    }
}

/// The Python trace is made in the script itself; it is no option of the command line.
fn without_traceback(events: &str) -> String {
    let rest: Vec<&str> = events.split([',', '，']).filter(|item| item.trim() != "traceback").collect();
    if rest.iter().all(|item| item.trim().is_empty()) { "none".to_owned() } else { rest.join(",") }
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Probes are placed: the process's calls from now on are seen.
    Ready,
    /// A tracer has had the process already.
    Traced,
    /// It is not traced; the text has the reason.
    Refused,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reply {
    version: u32,
    /// The result.
    pub status: Status,
    /// One line for the user, without control characters.
    pub text: String,
}

impl Reply {
    /// With a text of any contents.
    #[must_use]
    pub fn new(status: Status, text: impl std::fmt::Display) -> Self {
        Self { version: VERSION, status, text: one_line(&text.to_string()) }
    }

    /// The process is not traced.
    #[must_use]
    pub fn refused(why: impl std::fmt::Display) -> Self {
        Self::new(Status::Refused, why)
    }

    /// As it is sent.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        // A struct of plain fields always has a text.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// On one line, short, and without characters that terminals obey.
fn one_line(text: &str) -> String {
    let text = text.trim_end();
    match text.char_indices().nth(MAX_REPLY_CHARS) {
        Some((end, _)) => format!("{}…", OneLine(&text[..end])),
        None => OneLine(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(bytes: &[u8]) -> String {
        match line(bytes) {
            Ok(Some(line)) => settings(line).map_or_else(|error| error.to_string(), |settings| format!("{settings:?}")),
            Ok(None) => "more".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn request(settings: &str) -> Vec<u8> {
        format!("{{\"version\":1,\"settings\":{settings}}}\n").into_bytes()
    }

    #[test]
    fn all_settings_become_options() {
        let text = r#"{"device":"npu:1","level":"0","events":"alloc, traceback","call_stack":"c:3","analysis":"oom",
            "watch":"a,b","format":"db","output_path":"/a b/--quiet"}"#;
        let bytes = request(&text.replace('\n', ""));
        let settings = settings(line(&bytes).expect("in order").expect("whole")).expect("a request");
        let options = [
            "--device=npu:1",
            "--level=0",
            "--events=alloc",
            "--call-stack=c:3",
            "--analysis=oom",
            "--watch=a,b",
            "--format=db",
        ];
        assert_eq!(settings.options(), options);
        assert_eq!(settings.output_path, Path::new("/a b/--quiet"));
    }

    #[test]
    fn what_is_not_set_is_no_option() {
        let bytes = request(r#"{"output_path":"/x"}"#);
        let settings = settings(line(&bytes).expect("in order").expect("whole")).expect("a request");
        assert_eq!(settings.options(), Vec::<String>::new());
        assert_eq!(without_traceback("traceback"), "none");
        assert_eq!(without_traceback("free，traceback,launch"), "free,launch");
    }

    #[test]
    fn parts_of_a_request_are_waited_for() {
        let whole = request(r#"{"output_path":"/x"}"#);
        for end in 0..whole.len() {
            assert_eq!(said(&whole[..end]), "more", "{end}");
        }
        assert!(said(&whole).starts_with("Settings"), "{}", said(&whole));
    }

    #[test]
    fn length_is_bounded() {
        let padded = |bytes: usize| {
            let mut line = request(r#"{"output_path":"/x"}"#);
            line.pop();
            line.resize(bytes - 1, b' ');
            line.push(b'\n');
            line
        };
        assert!(said(&padded(MAX_REQUEST_BYTES)).starts_with("Settings"));
        assert_eq!(said(&padded(MAX_REQUEST_BYTES + 1)), "the request is longer than 65536 bytes");
        assert_eq!(said(&vec![b'x'; MAX_REQUEST_BYTES]), "the request is longer than 65536 bytes");
        assert_eq!(said(&vec![b'x'; MAX_REQUEST_BYTES - 1]), "more");
    }

    #[test]
    fn one_request_is_one() {
        let mut twice = request(r#"{"output_path":"/x"}"#);
        twice.extend_from_within(..);
        assert_eq!(said(&twice), "there is more than one request");
    }

    #[test]
    fn junk_is_refused() {
        let table: [(&[u8], &str); 12] = [
            (b"\n", "EOF"),
            (b"\xff\xfe\0\n", "expected value"),
            (b"[]\n", "invalid length"),
            (b"{\"version\":1\n", "EOF"),
            (b"{\"settings\":{\"output_path\":\"/x\"}}\n", "missing field `version`"),
            (b"{\"version\":1}\n", "missing field `settings`"),
            (b"{\"version\":-1,\"settings\":{}}\n", "invalid value"),
            (b"{\"version\":1,\"settings\":{}}\n", "missing field `output_path`"),
            (b"{\"version\":1,\"pid\":1,\"settings\":{\"output_path\":\"/x\"}}\n", "unknown field `pid`"),
            (b"{\"version\":1,\"settings\":{\"output_path\":\"/x\",\"probe\":\"a\"}}\n", "unknown field `probe`"),
            (b"{\"version\":1,\"settings\":{\"output_path\":\"/x\",\"events\":[1]}}\n", "invalid type"),
            (b"{\"version\":1,\"settings\":{\"output_path\":\"/x\",\"output_path\":\"/y\"}}\n", "duplicate field"),
        ];
        for (bytes, part) in table {
            assert!(said(bytes).starts_with("the request is not understood: "), "{}", said(bytes));
            assert!(said(bytes).contains(part), "{part}: {}", said(bytes));
        }
        // Deep nesting ends in an error, not in a full stack.
        let deep = [vec![b'['; 40_000], vec![b'\n']].concat();
        assert!(said(&deep).starts_with("the request is not understood"), "{}", said(&deep));
    }

    /// Of other versions only the number is read, whatever else they contain.
    #[test]
    fn other_versions_are_named() {
        let text = said(b"{\"version\":2,\"process\":1}\n");
        assert!(text.starts_with("the request is of version 2,"), "{text}");
    }

    #[test]
    fn places_are_absolute_and_plain() {
        for (path, is) in [("/", true), ("/a", true), ("/a//b/", true), ("/...", true)] {
            assert_eq!(is_place(Path::new(path)), is, "{path}");
        }
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for path in ["", "a", "./a", "/a/../b", "/..", "/a/.", "/a/./b", "/a\0b", &long] {
            assert!(!is_place(Path::new(path)), "{path}");
        }
    }

    /// Whatever a text contains, a reply is one line within its bound.
    #[test]
    fn replies_are_one_line() {
        let worst: String =
            ['\u{10ffff}', '\u{e0041}', '\u{9f}', '\n', '\x1b', '"', '\\'].iter().cycle().take(100_000).collect();
        let line = Reply::refused(worst).line();
        assert!(line.len() <= MAX_REPLY_BYTES, "{}", line.len());
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        let reply = Reply::new(Status::Ready, "a\nb\x1b[2J\u{202e}\n");
        assert_eq!(reply.line(), b"{\"version\":1,\"status\":\"ready\",\"text\":\"a\\\\nb\\\\x1b[2J\\\\u{202e}\"}\n");
    }
}
