//! Texts as Python stores them.

use std::fmt::Write as _;

/// A text of `kind` bytes per character (1, 2 or 4). Halves of surrogates (undecodable bytes) and values beyond Unicode
/// are written as in a Python literal; an incomplete last character is dropped. All other characters, control
/// characters too, are kept: outputs escape them.
#[must_use]
pub fn text(bytes: &[u8], kind: u8) -> String {
    let mut out = String::with_capacity(bytes.len());
    match kind {
        1 => bytes.iter().for_each(|byte| push(&mut out, (*byte).into())),
        2 => bytes.as_chunks().0.iter().for_each(|unit| push(&mut out, u16::from_le_bytes(*unit).into())),
        4 => bytes.as_chunks().0.iter().for_each(|unit| push(&mut out, u32::from_le_bytes(*unit))),
        _ => {}
    }
    out
}

fn push(out: &mut String, point: u32) {
    if let Some(character) = char::from_u32(point) {
        out.push(character);
        return;
    }
    // Writing to a string cannot fail.
    let _ = if point <= 0xffff { write!(out, "\\u{point:04x}") } else { write!(out, "\\U{point:08x}") };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_one_two_or_four_bytes() {
        assert_eq!(text(b"caf\xe9\n", 1), "café\n");
        assert_eq!(text(&[0x08, 0x5e, 0x00, 0x67], 2), "师最");
        assert_eq!(text(&[0x0d, 0xf4, 0x01, 0, b'x', 0, 0, 0], 4), "🐍x");
    }

    #[test]
    fn what_is_no_character_is_escaped() {
        // As os.fsdecode gives an undecodable byte.
        assert_eq!(text(&[0xff, 0xdc], 2), "\\udcff");
        assert_eq!(text(&[0xff, 0xff, 0xff, 0xff], 4), "\\Uffffffff");
        assert_eq!(text(&[1, 2, 3], 0), "");
        assert_eq!(text(&[b'a', 0, b'b'], 2), "a");
    }
}
