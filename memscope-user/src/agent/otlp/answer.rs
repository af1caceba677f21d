//! What an answer means. Pure.

use std::time::Duration;

use hyper::StatusCode;
use jiff::{Timestamp, fmt::rfc2822};
use prost::Message as _;

use super::{counts::Outcome, messages::ExportAnswer};
use crate::printable::OneLine;

/// Bytes of a receiver's text that a message shows.
const MAX_TEXT_BYTES: usize = 200;

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The header `Retry-After`.
    pub(super) retry_after: Option<String>,
    /// `None`: it was too long, or did not end.
    pub(super) body: Option<Vec<u8>>,
}

/// What follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) result: Outcome,
    /// Records that the receiver did not take.
    pub(super) rejected: u64,
    /// Not before this time.
    pub(super) after: Option<Duration>,
    /// For a message, where it is worth one.
    pub(super) why: Option<String>,
}

impl Answer {
    /// `records`: those of the request.
    pub(super) fn verdict(&self, records: u64, now: Timestamp) -> Verdict {
        if self.status.is_success() {
            return self.success(records);
        }
        let why = Some(format!("it answers {}", self.status));
        // The protocol has these four; all others would fail again.
        match self.status.as_u16() {
            429 | 502 | 503 | 504 => {
                let after = self.retry_after.as_deref().and_then(|text| retry_after(text, now));
                Verdict { result: Outcome::Later, rejected: 0, after, why }
            }
            _ => Verdict { result: Outcome::Refused, rejected: records, after: None, why },
        }
    }

    /// Whatever the body is: what was taken is not sent twice.
    fn success(&self, records: u64) -> Verdict {
        let decoded = self.body.as_deref().and_then(|body| ExportAnswer::decode(body).ok());
        let partial = decoded.and_then(|answer| answer.partial).unwrap_or_default();
        let rejected = u64::try_from(partial.rejected).unwrap_or_default().min(records);
        let text = &partial.error[..partial.error.floor_char_boundary(MAX_TEXT_BYTES)];
        // A text without a number is a warning.
        let result = if rejected > 0 { Outcome::Partial } else { Outcome::Ok };
        let why = match (rejected, text) {
            (0, "") => None,
            (0, text) => Some(format!("it says `{}`", OneLine(text))),
            (_, text) => Some(format!("it rejects {rejected} of {records} records: `{}`", OneLine(text))),
        };
        Verdict { result, rejected, after: None, why }
    }
}

/// Seconds, or a time.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than a number has: the bound of the back-off holds anyway.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::otlp::messages::PartialSuccess;

    fn verdict(status: u16, retry_after: Option<&str>, body: Option<&[u8]>) -> Verdict {
        let answer = Answer {
            status: StatusCode::from_u16(status).expect("a status"),
            retry_after: retry_after.map(str::to_owned),
            body: body.map(<[u8]>::to_vec),
        };
        let now = "1994-11-06T08:49:07Z".parse().expect("a time");
        answer.verdict(10, now)
    }

    fn partial(rejected: i64, error: &str) -> Vec<u8> {
        let partial = PartialSuccess { rejected, error: error.to_owned() };
        ExportAnswer { partial: Some(partial) }.encode_to_vec()
    }

    /// Four statuses are tried again, others are not.
    #[test]
    fn statuses_decide() {
        for status in [200, 202, 204] {
            assert_eq!(verdict(status, None, Some(b"")).result, Outcome::Ok, "{status}");
        }
        for status in [429, 502, 503, 504] {
            let verdict = verdict(status, None, None);
            assert_eq!((verdict.result, verdict.rejected, verdict.after), (Outcome::Later, 0, None), "{status}");
        }
        for status in [301, 307, 400, 401, 404, 413, 500, 501] {
            let verdict = verdict(status, Some("5"), None);
            assert_eq!((verdict.result, verdict.rejected, verdict.after), (Outcome::Refused, 10, None), "{status}");
        }
    }

    /// Seconds and a date; nonsense is as none.
    #[test]
    fn retry_after_has_two_forms() {
        let after = |text| verdict(503, Some(text), None).after;
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(after("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        for text in ["", "-1", "1.5", "soon", "Sun, 99 Nov 1994"] {
            assert_eq!(after(text), None, "{text}");
        }
    }

    /// Rejected records are counted, never more than were sent; a body that is none, or no end of one, changes nothing.
    #[test]
    fn partial_success() {
        let of = |body: &[u8]| verdict(200, None, Some(body));
        let some = of(&partial(3, "too\nold"));
        assert_eq!((some.result, some.rejected), (Outcome::Partial, 3));
        assert_eq!(some.why.as_deref(), Some("it rejects 3 of 10 records: `too\\nold`"));
        assert_eq!(of(&partial(i64::MAX, "")).rejected, 10);
        let warning = of(&partial(-5, "use another name"));
        assert_eq!((warning.result, warning.rejected), (Outcome::Ok, 0));
        assert_eq!(warning.why.as_deref(), Some("it says `use another name`"));
        assert!(of(&partial(1, &"x".repeat(10_000))).why.is_some_and(|why| why.len() < 300));
        for body in [Some(&b"\xff\xff\xff"[..]), Some(b"{}"), None] {
            assert_eq!(verdict(200, None, body), Verdict { result: Outcome::Ok, rejected: 0, after: None, why: None });
        }
    }
}
