//! Python's pickles, protocol 2, as far as snapshots need them. Repeated values are written once and referred to.

use crate::hash::HashMap;

/// A pickle in the making.
#[derive(Debug)]
pub(super) struct Pickle {
    bytes: Vec<u8>,
    texts: HashMap<String, u32>,
    memo: u32,
}

impl Pickle {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0x80, 2], texts: HashMap::default(), memo: 0 }
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// A text; the second time a reference.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        if let Some(known) = self.texts.get(text).copied() {
            return self.get(known);
        }
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        let number = self.put();
        self.texts.insert(text.to_owned(), number);
        self
    }

    /// A number of any size.
    pub(super) fn number(&mut self, value: u64) -> &mut Self {
        match value {
            0..=0xff => self.bytes.extend([b'K', value as u8]),
            0x100..=0xffff => {
                self.bytes.push(b'M');
                self.bytes.extend((value as u16).to_le_bytes());
            }
            0x1_0000..=0x7fff_ffff => {
                self.bytes.push(b'J');
                self.bytes.extend((value as u32).to_le_bytes());
            }
            // Signed, with a byte of zeros in front where the highest bit is set.
            _ => {
                self.bytes.extend([0x8a, 9]);
                self.bytes.extend(value.to_le_bytes());
                self.bytes.push(0);
            }
        }
        self
    }

    pub(super) fn boolean(&mut self, value: bool) -> &mut Self {
        self.bytes.push(if value { 0x88 } else { 0x89 });
        self
    }

    /// Two values as a tuple.
    pub(super) fn pair(&mut self, first: u64, second: u64) -> &mut Self {
        self.number(first).number(second);
        self.bytes.push(0x86);
        self
    }

    /// A dict begins: keys and values follow, then [`Self::end_dict`].
    pub(super) fn dict(&mut self) -> &mut Self {
        self.bytes.extend(b"}(");
        self
    }

    /// The innermost dict ends.
    pub(super) fn end_dict(&mut self) -> &mut Self {
        self.bytes.push(b'u');
        self
    }

    /// A list begins: values follow, then [`Self::end_list`].
    pub(super) fn list(&mut self) -> &mut Self {
        self.bytes.extend(b"](");
        self
    }

    /// The innermost list ends.
    pub(super) fn end_list(&mut self) -> &mut Self {
        self.bytes.push(b'e');
        self
    }

    /// Remembers the value written last; returns its number.
    pub(super) fn put(&mut self) -> u32 {
        let number = self.memo;
        self.memo += 1;
        self.refer(b'q', b'r', number);
        number
    }

    /// Refers to a remembered value.
    pub(super) fn get(&mut self, number: u32) -> &mut Self {
        self.refer(b'h', b'j', number);
        self
    }

    fn refer(&mut self, short: u8, long: u8, number: u32) {
        if let Ok(number) = u8::try_from(number) {
            self.bytes.extend([short, number]);
        } else {
            self.bytes.push(long);
            self.bytes.extend(number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.loads` of these bytes is `{'a': [1, 256, 65536, 2**63], 'b': (0, 0), 'c': True, 'd': 'a'}`: by the opcodes' documentation.
    #[test]
    fn opcodes() {
        let mut pickle = Pickle::new();
        pickle.dict().text("a").list().number(1).number(256).number(65536).number(1 << 63).end_list();
        pickle.text("b").pair(0, 0).text("c").boolean(true).text("d").text("a").end_dict();
        let expected = [
            &b"\x80\x02}(X\x01\0\0\0aq\0](K\x01M\0\x01J\0\0\x01\0\x8a\x09\0\0\0\0\0\0\0\x80\0e"[..],
            b"X\x01\0\0\0bq\x01K\0K\0\x86X\x01\0\0\0cq\x02\x88X\x01\0\0\0dq\x03h\0u.",
        ];
        assert_eq!(pickle.into_bytes(), expected.concat());
    }

    #[test]
    fn many_references_are_long() {
        let mut pickle = Pickle::new();
        pickle.get(255).get(256);
        assert_eq!(pickle.into_bytes(), b"\x80\x02h\xffj\0\x01\0\0.");
    }
}
