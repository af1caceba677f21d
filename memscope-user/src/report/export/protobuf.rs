//! Protocol buffers, as far as profiles need them: numbers, and values with a length.

/// A message in the making.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// A number; 0 is left out.
    pub(super) fn number(&mut self, field: u32, value: u64) -> &mut Self {
        if value != 0 { self.present(field, value) } else { self }
    }

    /// A number that is there also if it is 0.
    pub(super) fn present(&mut self, field: u32, value: u64) -> &mut Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    /// Bytes with their length, also when empty.
    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A message inside of this one.
    pub(super) fn message(&mut self, field: u32, inner: &Self) -> &mut Self {
        self.bytes(field, &inner.0)
    }

    /// Numbers in one piece.
    pub(super) fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut inner = Self::default();
        values.into_iter().for_each(|value| inner.varint(value));
        self.message(field, &inner)
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the encoding's documentation: field 1 with 150 is 08 96 01, field 2 with "testing" 12 07 …, and
    /// packed numbers 3, 270, 86942 of field 6 are 32 06 03 8e 02 9e a7 05.
    #[test]
    fn encoding_of_the_documentation() {
        let mut message = Message::default();
        message.number(1, 150).bytes(2, b"testing").number(3, 0).packed(6, [3, 270, 86942]);
        let expected = [&[8, 0x96, 1, 0x12, 7][..], b"testing", &[0x32, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]].concat();
        assert_eq!(message.into_bytes(), expected);
    }
}
