//! Text that terminals show and do not obey: paths, names and messages may contain anything that another user has
//! chosen.

use std::{
    fmt::{self, Display, Write as _},
    io::{self, Write},
};

/// How characters are escaped that must not reach a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As Rust writes them: `\x1b`, `\u{202e}`.
    Text,
    /// As JSON writes them in its strings: `\u001b`, `\u202e`.
    Json,
}

/// A value on one line: its ends of lines and tabs are escaped as well, so that it cannot forge a line of ours.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

impl<T: Display> Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

        impl fmt::Write for Escaped<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                if text.bytes().all(is_plain) {
                    return self.0.write_str(text);
                }
                text.chars().try_for_each(|character| match character {
                    '\n' => self.0.write_str("\\n"),
                    '\t' => self.0.write_str("\\t"),
                    _ => escape(character, Style::Text, self.0),
                })
            }
        }

        write!(Escaped(f), "{}", self.0)
    }
}

/// Passes text on and escapes characters that must not reach a terminal. Lines stay lines, and tabs stay tabs.
#[derive(Debug)]
pub struct CleanWriter<W> {
    to: W,
    style: Style,
    /// The first bytes of an incomplete character.
    part: Vec<u8>,
}

impl<W: Write> CleanWriter<W> {
    /// Writes to `to`.
    pub const fn new(to: W, style: Style) -> Self {
        Self { to, style, part: Vec::new() }
    }

    fn write_clean(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.iter().all(|byte| is_plain(*byte) || matches!(byte, b'\n' | b'\t')) {
            return self.to.write_all(bytes);
        }
        let mut clean = String::with_capacity(2 * bytes.len());
        for chunk in bytes.utf8_chunks() {
            for character in chunk.valid().chars() {
                // Memory takes everything.
                let _ = match character {
                    '\n' | '\t' => clean.write_char(character),
                    _ => escape(character, self.style, &mut clean),
                };
            }
            for byte in chunk.invalid() {
                let _ = match self.style {
                    Style::Text => write!(clean, "\\x{byte:02x}"),
                    Style::Json => clean.write_char(char::REPLACEMENT_CHARACTER),
                };
            }
        }
        self.to.write_all(clean.as_bytes())
    }
}

impl<W: Write> Write for CleanWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.is_empty() && bytes.is_ascii() {
            self.write_clean(bytes)?;
            return Ok(bytes.len());
        }
        let mut whole = std::mem::take(&mut self.part);
        whole.extend_from_slice(bytes);
        self.part = whole.split_off(whole.len() - unfinished(&whole));
        self.write_clean(&whole)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let part = std::mem::take(&mut self.part);
        self.write_clean(&part)?;
        self.to.flush()
    }
}

/// Length of the incomplete character at the end; 0 if there is none.
fn unfinished(bytes: &[u8]) -> usize {
    const LONGEST: usize = 4;
    let Some(back) = bytes.iter().rev().take(LONGEST - 1).position(|byte| byte & 0xc0 != 0x80) else { return 0 };
    let length = match bytes[bytes.len() - 1 - back] {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    };
    if back + 1 < length { back + 1 } else { 0 }
}

/// Printable ASCII: most of all text.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Whether a terminal may obey the character, or it changes the display of the text around it, or is invisible.
const fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            // Zero widths, marks of direction.
            | '\u{200b}'..='\u{200f}'
            // Ends of lines and paragraphs, embedding and override of direction.
            | '\u{2028}'..='\u{202e}'
            // Invisible operators, isolation of direction.
            | '\u{2060}'..='\u{206f}'
            // Byte order mark, annotations, tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Writes a character, escaped if necessary.
fn escape(character: char, style: Style, to: &mut impl fmt::Write) -> fmt::Result {
    match (style, character) {
        _ if !is_hidden(character) => to.write_char(character),
        (Style::Json, _) => character.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(to, "\\u{unit:04x}")),
        (Style::Text, '\r') => to.write_str("\\r"),
        (Style::Text, '\0'..='\u{7f}') => write!(to, "\\x{:02x}", character as u32),
        (Style::Text, _) => write!(to, "\\u{{{:x}}}", character as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(style: Style, pieces: &[&[u8]]) -> String {
        let mut out = CleanWriter::new(Vec::new(), style);
        for piece in pieces {
            out.write_all(piece).expect("memory takes everything");
        }
        out.flush().expect("memory takes everything");
        String::from_utf8(out.to).expect("text")
    }

    /// No character that terminals obey passes, and all others do.
    #[test]
    fn every_character() {
        let mut kept = 0_u32;
        for character in '\0'..=char::MAX {
            let text = character.to_string();
            let (line, report) = (OneLine(&text).to_string(), written(Style::Text, &[text.as_bytes()]));
            let obeyed = matches!(character as u32,
                0..=0x1f | 0x7f..=0x9f | 0x61c | 0x200e | 0x200f | 0x2028..=0x202e | 0x2066..=0x2069);
            if obeyed {
                assert!(line.starts_with('\\') && line.bytes().all(is_plain), "{line:?}");
            }
            if obeyed && !matches!(character, '\n' | '\t') {
                assert_eq!(report, line);
            } else if line == text {
                assert_eq!(report, text);
                kept += 1;
            }
            // A reader of JSON gets the original. Characters that JSON must escape are escaped before.
            if character >= ' ' && !matches!(character, '"' | '\\') {
                let json = written(Style::Json, &[format!("\"{text}\"").as_bytes()]);
                assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
                assert!(!obeyed || json.bytes().all(is_plain), "{json}");
            }
        }
        // Of 0x110000, without 0x800 surrogates: nearly all.
        assert!(kept > 0x10_0000, "{kept}");
    }

    /// Make sure how escapes look, and that a value stays on its line.
    #[test]
    fn escapes() {
        let hostile = "a\x1b]0;b\x07\r\nc\t\u{9b}d\u{202e}中文é";
        assert_eq!(OneLine(hostile).to_string(), r"a\x1b]0;b\x07\r\nc\t\u{9b}d\u{202e}中文é");
        assert_eq!(written(Style::Text, &[hostile.as_bytes()]), "a\\x1b]0;b\\x07\\r\nc\t\\u{9b}d\\u{202e}中文é");
        assert_eq!(written(Style::Json, &["\"\u{7f}\u{e0041}\"\n".as_bytes()]), "\"\\u007f\\udb40\\udc41\"\n");
    }

    /// The splitting of a text into pieces makes no difference, and invalid bytes are shown as bytes.
    #[test]
    fn pieces() {
        let hostile = "é中\u{202e}😀\u{9b}x".as_bytes();
        let whole = written(Style::Text, &[hostile]);
        assert_eq!(whole, r"é中\u{202e}😀\u{9b}x");
        for cut in 0..=hostile.len() {
            let (left, right) = hostile.split_at(cut);
            assert_eq!(written(Style::Text, &[left, right]), whole, "{cut}");
        }
        let single: Vec<&[u8]> = hostile.chunks(1).collect();
        assert_eq!(written(Style::Text, &single), whole);
        assert_eq!(written(Style::Text, &[b"a\xff\x9b", b"\xe4", b"b\xf0\x9f"]), r"a\xff\x9b\xe4b\xf0\x9f");
    }
}
