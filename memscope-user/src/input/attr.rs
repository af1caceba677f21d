//! The Attr cell: `{key:value,…}` in CSV, a JSON object in databases.

use std::borrow::Cow;

use super::row::{Fault, address, not, number};

const COLUMN: &str = "Attr";

/// Keys and values of one Attr.
#[derive(Debug, Default)]
pub(super) struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Pairs<'a> {
    /// Parses the CSV spelling. Values may hold commas, never colons: a value ends at the last comma before the next
    /// colon.
    pub(super) fn of_csv(text: &'a str) -> Result<Self, Fault> {
        if text.is_empty() || text == "{}" {
            return Ok(Self::default());
        }
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let inner = inner.ok_or_else(|| not(COLUMN, text, "of the form {key:value,…}"))?;
        let mut pairs = Vec::with_capacity(8);
        let mut parts = inner.split(':');
        let mut key = parts.next().unwrap_or_default();
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            let (value, next) = match parts.peek() {
                Some(_) => part.rsplit_once(',').ok_or_else(|| not(COLUMN, text, "of the form {key:value,…}"))?,
                None => (part, ""),
            };
            pairs.push((Cow::Borrowed(key), Cow::Borrowed(value)));
            key = next;
        }
        if pairs.is_empty() {
            return Err(not(COLUMN, text, "of the form {key:value,…}"));
        }
        Ok(Self(pairs))
    }

    /// Parses the JSON spelling; numbers are taken like strings of digits.
    pub(super) fn of_json(text: &'a str) -> Result<Self, Fault> {
        if text.is_empty() || text == "{}" {
            return Ok(Self::default());
        }
        if let Some(pairs) = plain(text) {
            return Ok(Self(pairs));
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|_| not(COLUMN, text, "a JSON object"))?;
        let value = |value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(Self(object.into_iter().map(|(key, it)| (Cow::Owned(key), Cow::Owned(value(it)))).collect()))
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_ref())
    }

    /// A decimal number; none if the key is not there or says that it is not known.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Fault> {
        let known = self.get(key).filter(|value| *value != "N/A");
        known.map(|value| number(COLUMN, value)).transpose().map_err(|fault| named(key, fault))
    }

    /// A signed number, if it is one.
    pub(super) fn signed(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }

    /// An address.
    pub(super) fn address(&self, key: &str) -> Result<Option<u64>, Fault> {
        self.get(key).map(|value| address(COLUMN, value)).transpose().map_err(|fault| named(key, fault))
    }
}

/// Keys and values of a JSON object of strings that need no unescaping, as both tools write nearly all of them.
fn plain(text: &str) -> Option<Vec<(Cow<'_, str>, Cow<'_, str>)>> {
    if text.bytes().any(|byte| byte == b'\\' || byte < b' ') {
        return None;
    }
    let mut rest = text.strip_prefix("{\"")?.strip_suffix("\"}")?;
    let mut pairs = Vec::with_capacity(8);
    loop {
        let (key, behind) = rest.split_once("\":\"")?;
        let (value, more) = behind.split_once('"').map_or((behind, None), |(value, more)| (value, Some(more)));
        // Of keys that come twice the later one counts; that is for the parser.
        if key.contains('"') || pairs.iter().any(|(known, _)| known == key) {
            return None;
        }
        pairs.push((Cow::Borrowed(key), Cow::Borrowed(value)));
        let Some(more) = more else { return Some(pairs) };
        rest = more.strip_prefix(",\"")?;
    }
}

fn named(key: &str, Fault { column, what }: Fault) -> Fault {
    Fault { column, what: format!("{key}: {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_commas() {
        let attr =
            Pairs::of_csv("{size:1,inefficient_type:early_allocation,late_deallocation,shape:torch.Size([2, 3])}");
        let attr = attr.expect("valid");
        assert_eq!(attr.get("inefficient_type"), Some("early_allocation,late_deallocation"));
        assert_eq!(attr.get("shape"), Some("torch.Size([2, 3])"));
        assert_eq!(attr.number("size"), Ok(Some(1)));
        assert_eq!(attr.number("used"), Ok(None));
    }

    #[test]
    fn other_things_are_faults() {
        for bad in ["x", "{", "{a}", "{a:1", "{a:1:2}"] {
            assert!(Pairs::of_csv(bad).is_err(), "{bad}");
        }
        for bad in ["[]", "{", "{\"a\":\"x\"y\"}"] {
            assert!(Pairs::of_json(bad).is_err(), "{bad}");
        }
        let attr = Pairs::of_json(r#"{"size":"x","used":12}"#).expect("an object");
        assert_eq!(attr.number("used"), Ok(Some(12)));
        assert_eq!(attr.number("size").expect_err("no number").what, "size: `x` is not a decimal number");
    }

    /// What is read without the parser is what the parser says, and only what JSON is.
    #[test]
    fn plain_objects_are_those_of_json() {
        let cases = [
            r#"{"size":"1","addr":"0x10"}"#,
            r#"{"a":""}"#,
            r#"{"":""}"#,
            r#"{"a":"1","a":"2"}"#,
            r#"{"a":"1","b":2}"#,
            r#"{"a":"1\n"}"#,
            r#"{"a":"1", "b":"2"}"#,
            r#"{"a":"x,y:z{}"}"#,
            r#"{"a":"ä"}"#,
            r#"{"a":"1""b":"2"}"#,
            r#"{"a":"1","b"}"#,
            r#"{"a":"1","b":"}"#,
            r#"{"a","b":"1"}"#,
            r#"{"}"#,
            "{\"a\":\"\n\"}",
        ];
        let mut read_plain = 0;
        for text in cases {
            let parsed: Option<std::collections::BTreeMap<String, serde_json::Value>> = serde_json::from_str(text).ok();
            if let Some(pairs) = plain(text) {
                read_plain += 1;
                let found = pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
                assert_eq!(parsed, Some(found), "{text}");
            }
        }
        assert_eq!(read_plain, 5);
    }
}
