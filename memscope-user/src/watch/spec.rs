//! `--watch=[start[:outid]],end[,full-content]` (contract §1.6).

use std::str::FromStr;

/// Longest name of an operator, in bytes; longer ones are cut.
const MAX_NAME_BYTES: usize = 254;
const FORM: &str = "the form is [START[:OUTPUT]],END[,full-content]";

/// The block to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    /// The operator whose outputs are watched from its end on; empty: only blocks that the script names.
    pub start: String,
    /// Number of the output, from 0; `None`: all.
    pub output_id: Option<u32>,
    /// The operator at whose end watching ends.
    pub end: String,
    /// The bytes are kept, not their checksums.
    pub full_content: bool,
}

impl FromStr for WatchSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let (Some(start), Some(end), full, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err(FORM.to_owned());
        };
        let full_content = match full.unwrap_or_default() {
            "" => false,
            "full-content" => true,
            other => return Err(format!("`{other}` is not full-content; {FORM}")),
        };
        let (start, output_id) = match start.split_once(':') {
            None => (start, None),
            Some(("", _)) => return Err(format!("there is no operator in front of the number of its output; {FORM}")),
            Some((start, number)) => (start, Some(output_number(number)?)),
        };
        if end.is_empty() {
            return Err(format!("the operator that ends watching is missing; {FORM}"));
        }
        Ok(Self { start: cut(start), output_id, end: cut(end), full_content })
    }
}

/// A plain decimal number.
fn output_number(text: &str) -> Result<u32, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    // The largest is what "unset" is called in the settings.
    text.parse()
        .ok()
        .filter(|number| plain && *number != u32::MAX)
        .ok_or_else(|| format!("`{text}` is not the number of an output: 0, 1, 2 and so on"))
}

/// The name as it is compared: its first bytes, whole characters.
#[must_use]
pub fn cut(name: &str) -> String {
    name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(start: &str, output_id: Option<u32>, end: &str, full_content: bool) -> WatchSpec {
        WatchSpec { start: start.to_owned(), output_id, end: end.to_owned(), full_content }
    }

    /// The table of the contract, and its consequences.
    #[test]
    fn forms() {
        for (text, expected) in [
            ("start:123,end,full-content", Some(spec("start", Some(123), "end", true))),
            ("start,end,", Some(spec("start", None, "end", false))),
            ("start,end", Some(spec("start", None, "end", false))),
            (",end,", Some(spec("", None, "end", false))),
            (",end", Some(spec("", None, "end", false))),
            ("start:0,end", Some(spec("start", Some(0), "end", false))),
            ("aten.add.Tensor,aten.mm", Some(spec("aten.add.Tensor", None, "aten.mm", false))),
            ("start:4294967294,end", Some(spec("start", Some(4_294_967_294), "end", false))),
            ("", None),
            ("end", None),
            (",", None),
            ("start,", None),
            (":,end", None),
            (":1,end", None),
            ("start:,end", None),
            ("start:error,end", None),
            ("start:01,end", None),
            ("start:+1,end", None),
            ("start:-1,end", None),
            ("start:4294967295,end", None),
            ("start:1:2,end", None),
            ("start,end,full-contents", None),
            ("start,end,full-content,more", None),
            ("start，end", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text:?}");
        }
    }

    /// Names are cut between characters.
    #[test]
    fn long_names_are_cut() {
        let long = format!("{}é", "a".repeat(253));
        let parsed: WatchSpec = format!("{long},{}", "b".repeat(300)).parse().expect("valid");
        assert_eq!(parsed.start, "a".repeat(253));
        assert_eq!(parsed.end, "b".repeat(254));
    }
}
