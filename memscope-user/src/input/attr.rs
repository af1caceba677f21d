//! The Attr cell: `{key:value,…}` in CSV, a JSON object in databases.

use memchr::{memchr, memchr2_iter};

use super::cell::{Fault, NOT_AVAILABLE, address, not, number};

const COLUMN: &str = "Attr";

/// Declares the keys that rows are made of.
macro_rules! keys {
    ($($key:ident = $name:literal,)*) => {
        /// A key that rows are made of. Others are passed over.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Key {
            $($key,)*
        }

        impl Key {
            const COUNT: usize = [$($name),*].len();

            fn of(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$key),)*
                    _ => None,
                }
            }

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => $name,)*
                }
            }
        }
    };
}

keys! {
    AllocationId = "allocation_id",
    Addr = "addr",
    Size = "size",
    Used = "used",
    Total = "total",
    Owner = "owner",
    PageType = "page_type",
    AllocType = "alloc_type",
    Active = "active",
    Shadow = "shadow",
    Found = "found",
    Type = "type",
    Dtype = "dtype",
    Format = "format",
    Shape = "shape",
    StreamId = "streamId",
    Domain = "domain",
    WorkspacePtr = "workspace_ptr",
    WorkspaceSize = "workspace_size",
    ReqSize = "req_size",
    Flag = "flag",
    Func = "func",
}

/// Values of one Attr.
#[derive(Debug, Default)]
pub(super) struct Attr<'a>([Option<&'a str>; Key::COUNT]);

impl<'a> Attr<'a> {
    /// Parses the CSV spelling. Values may hold commas, never colons: a value ends at the last comma before the next
    /// colon. Of keys that come twice the first one counts.
    pub(super) fn of_csv(text: &'a str) -> Result<Self, Fault> {
        let mut attr = Self::default();
        if text.is_empty() || text == "{}" {
            return Ok(attr);
        }
        let fault = || not(COLUMN, text, "of the form {key:value,…}");
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or_else(fault)?;
        // The key, and where its value starts; the last comma behind that.
        let (mut open, mut comma) = (None, None);
        for at in memchr2_iter(b',', b':', inner.as_bytes()) {
            if inner.as_bytes()[at] == b',' {
                comma = Some(at);
                continue;
            }
            open = Some(match open {
                None => (&inner[..at], at + 1),
                Some((key, start)) => {
                    let end = comma.filter(|comma| *comma >= start).ok_or_else(fault)?;
                    attr.first(key, &inner[start..end]);
                    (&inner[end + 1..at], at + 1)
                }
            });
        }
        let (key, start) = open.ok_or_else(fault)?;
        attr.first(key, &inner[start..]);
        Ok(attr)
    }

    /// Parses the JSON spelling; numbers are taken like strings of digits. Of repeated keys the last one counts.
    /// `unescaped` holds texts that differ from their spelling in the cell.
    pub(super) fn of_json(text: &'a str, unescaped: &'a mut Vec<(String, String)>) -> Result<Self, Fault> {
        let mut attr = Self::default();
        if text.is_empty() || text == "{}" {
            return Ok(attr);
        }
        if plain(text, |key, value| attr.first(key, value)).is_some() {
            return Ok(attr);
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|_| not(COLUMN, text, "a JSON object"))?;
        let value = |value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        unescaped.extend(object.into_iter().map(|(key, it)| (key, value(it))));
        attr = Self::default();
        for (key, value) in unescaped {
            attr.first(key, value);
        }
        Ok(attr)
    }

    /// Keeps a value, if it is the first one of its key; otherwise false.
    fn first(&mut self, key: &str, value: &'a str) -> bool {
        let Some(key) = Key::of(key) else { return true };
        let slot = &mut self.0[key as usize];
        let is_first = slot.is_none();
        if is_first {
            *slot = Some(value);
        }
        is_first
    }

    /// The value of a key.
    pub(super) const fn get(&self, key: Key) -> Option<&'a str> {
        self.0[key as usize]
    }

    /// A decimal number; `None` if the key is missing or its value unknown.
    pub(super) fn number(&self, key: Key) -> Result<Option<u64>, Fault> {
        let known = self.get(key).filter(|value| *value != NOT_AVAILABLE);
        known.map(|value| number(COLUMN, value)).transpose().map_err(|fault| named(key, fault))
    }

    /// A signed number, if it is one.
    pub(super) fn signed(&self, key: Key) -> Option<i64> {
        self.get(key)?.parse().ok()
    }

    /// An address.
    pub(super) fn address(&self, key: Key) -> Result<Option<u64>, Fault> {
        self.get(key).map(|value| address(COLUMN, value)).transpose().map_err(|fault| named(key, fault))
    }
}

/// Calls `take` with the keys and values of a JSON object of strings without escapes, as both tools write nearly all of
/// them; `None` if it is another one, or if `take` has had a key before: the parser decides then.
fn plain<'a>(text: &'a str, mut take: impl FnMut(&'a str, &'a str) -> bool) -> Option<()> {
    // Reads all bytes, which is faster than stopping.
    let escapes = text.bytes().fold(0, |count: u32, byte| count.wrapping_add(u32::from(byte == b'\\' || byte < b' ')));
    if escapes > 0 {
        return None;
    }
    let mut rest = text.strip_prefix("{\"")?.strip_suffix("\"}")?;
    loop {
        let (key, behind) = rest.split_at(memchr(b'"', rest.as_bytes())?);
        let behind = behind.strip_prefix("\":\"")?;
        let end = memchr(b'"', behind.as_bytes());
        let value = end.map_or(behind, |end| &behind[..end]);
        if !take(key, value) {
            return None;
        }
        let Some(end) = end else { return Some(()) };
        rest = behind[end + 1..].strip_prefix(",\"")?;
    }
}

fn named(key: Key, Fault { column, what }: Fault) -> Fault {
    Fault { column, what: format!("{}: {what}", key.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_commas() {
        let attr = Attr::of_csv("{size:1,type:early_allocation,late_deallocation,shape:torch.Size([2, 3]),x:y,size:2}");
        let attr = attr.expect("valid");
        assert_eq!(attr.get(Key::Type), Some("early_allocation,late_deallocation"));
        assert_eq!(attr.get(Key::Shape), Some("torch.Size([2, 3])"));
        assert_eq!(attr.number(Key::Size), Ok(Some(1)));
        assert_eq!(attr.number(Key::Used), Ok(None));
    }

    #[test]
    fn other_things_are_faults() {
        for bad in ["x", "{", "{a}", "{a:1", "{a:1:2}"] {
            assert!(Attr::of_csv(bad).is_err(), "{bad}");
        }
        for bad in ["[]", "{", "{\"a\":\"x\"y\"}"] {
            assert!(Attr::of_json(bad, &mut Vec::new()).is_err(), "{bad}");
        }
        let mut unescaped = Vec::new();
        let attr = Attr::of_json(r#"{"size":"x","used":12}"#, &mut unescaped).expect("an object");
        assert_eq!(attr.number(Key::Used), Ok(Some(12)));
        assert_eq!(attr.number(Key::Size).expect_err("no number").what, "size: `x` is not a decimal number");
    }

    /// Results without the parser equal the parser's, and only JSON is accepted.
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
            let mut found = std::collections::BTreeMap::new();
            if plain(text, |key, value| found.insert(key.to_owned(), value.into()).is_none()).is_some() {
                read_plain += 1;
                assert_eq!(parsed, Some(found), "{text}");
            }
        }
        assert_eq!(read_plain, 5);
    }
}
