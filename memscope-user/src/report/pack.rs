//! Named columns in one deflated container, which a page unpacks without help.
//!
//! `u32 length, JSON head, columns`, little-endian. The head lists `[name, type, count, is sorted]`; columns follow in
//! that order, in byte planes: all first bytes, then all second ones. Sorted ones are stored as differences. Both
//! improve deflate.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// Effort of deflate, up to 10: the pages are small.
const LEVEL: u8 = 9;

/// Columns in the making.
#[derive(Debug, Default)]
pub(super) struct Pack {
    directory: Vec<Value>,
    bytes: Vec<u8>,
}

impl Pack {
    pub(super) fn u8(&mut self, name: &str, values: &[u8]) {
        self.enter(name, "u8", values.len(), false);
        self.bytes.extend_from_slice(values);
    }

    pub(super) fn u32(&mut self, name: &str, values: &[u32]) {
        self.enter(name, "u32", values.len(), false);
        self.planes(&values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    }

    /// Values that never fall.
    pub(super) fn sorted(&mut self, name: &str, values: &[u32]) {
        self.enter(name, "u32", values.len(), true);
        let mut before = 0;
        let differences =
            values.iter().map(|value| value.wrapping_sub(std::mem::replace(&mut before, *value)).to_le_bytes());
        self.planes(&differences.collect::<Vec<_>>());
    }

    /// Numbers up to 2^53 as they are; larger ones as the nearest that there is.
    pub(super) fn numbers(&mut self, name: &str, values: impl IntoIterator<Item = u64>) {
        let values: Vec<[u8; 8]> = values.into_iter().map(|value| (value as f64).to_le_bytes()).collect();
        self.enter(name, "f64", values.len(), false);
        self.planes(&values);
    }

    fn enter(&mut self, name: &str, kind: &str, count: usize, sorted: bool) {
        self.directory.push(json!([name, kind, count, u8::from(sorted)]));
    }

    fn planes<const N: usize>(&mut self, values: &[[u8; N]]) {
        for plane in 0..N {
            self.bytes.extend(values.iter().map(|value| value[plane]));
        }
    }

    /// Head and columns, as they are before deflate.
    pub(super) fn plain(self, mut head: Map<String, Value>) -> Vec<u8> {
        head.insert("columns".to_owned(), Value::Array(self.directory));
        let head = ascii(&Value::Object(head).to_string());
        let mut plain = (head.len() as u32).to_le_bytes().to_vec();
        plain.extend_from_slice(head.as_bytes());
        plain.extend_from_slice(&self.bytes);
        plain
    }
}

/// A raw deflate stream.
pub(super) fn deflate(plain: &[u8]) -> Vec<u8> {
    miniz_oxide::deflate::compress_to_vec(plain, LEVEL)
}

/// JSON in which all but printable ASCII is escaped. Other characters occur only in its strings.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && !character.is_ascii_control() {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two numbers of four bytes: their lowest bytes come first. Of sorted ones the second is a difference: 0x0304 - 0x0102.
    #[test]
    fn columns_are_planes() {
        let mut pack = Pack::default();
        pack.u32("a", &[0x0102, 0x0304]);
        pack.sorted("b", &[0x0102, 0x0304]);
        pack.u8("c", &[7]);
        pack.numbers("d", [1]);
        let plain = pack.plain(Map::new());
        let head = br#"{"columns":[["a","u32",2,0],["b","u32",2,1],["c","u8",1,0],["d","f64",1,0]]}"#;
        assert_eq!(plain[..4], (head.len() as u32).to_le_bytes());
        assert_eq!(&plain[4..4 + head.len()], head);
        let one = [0, 0, 0, 0, 0, 0, 0xf0, 0x3f];
        let expected = [&[2, 4, 1, 3, 0, 0, 0, 0][..], &[2, 2, 1, 2, 0, 0, 0, 0], &[7], &one].concat();
        assert_eq!(plain[4 + head.len()..], expected);
    }

    /// Whatever names a program uses, the head is printable ASCII, and means the same.
    #[test]
    fn head_is_ascii() {
        let text = "</script>\u{202e}\u{1b}[2J\u{7f}\u{1f600}\"\\";
        let head = Map::from_iter([("text".to_owned(), Value::from(text))]);
        let plain = Pack::default().plain(head);
        let json = std::str::from_utf8(&plain[4..]).expect("text");
        assert!(json.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{json}");
        assert!(json.contains(r"\u202e\u001b[2J\u007f\ud83d\ude00"), "{json}");
        let read: Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(read["text"], text);
    }

    #[test]
    fn deflate_is_undone() {
        let plain: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        let packed = deflate(&plain);
        assert!(packed.len() < plain.len());
        assert_eq!(miniz_oxide::inflate::decompress_to_vec(&packed).expect("a stream"), plain);
    }
}
