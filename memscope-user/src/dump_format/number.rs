//! Numbers in cells.

/// Appends a decimal number.
pub(crate) fn push_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `0x` and 16 digits.
pub(crate) fn push_address(out: &mut Vec<u8>, address: u64) {
    let mut text = *b"0x0000000000000000";
    for (index, digit) in text[2..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(address >> (60 - 4 * index) & 15) as usize];
    }
    out.extend_from_slice(&text);
}
