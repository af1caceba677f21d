//! How texts of the traced program are spelt in cells (contract §3).
//!
//! The Name column and the frames of call stacks carry text that the program chose. Texts of printable characters are
//! written as they are, byte for byte like msMemScope. Otherwise, in CSV and databases alike:
//!
//! - A backslash becomes `\\`; newline, carriage return and tab become `\n`, `\r`, `\t`; every other control
//!   character (C0, DEL, C1), line separator (U+2028, U+2029) and bidirectional control becomes `\u{…}` with
//!   its code in hex. So a row is one line, a terminal is safe, and the text can be recovered exactly.
//! - A text that a spreadsheet would take for a formula, that is any number of `'` (none included) followed by
//!   `=`, `+`, `-` or `@`, gets one `'` in front. A reader that finds one or more `'` followed by one of those
//!   takes one off. (msMemScope blanks such texts.)
//!
//! In CSV a `"` inside the cell is then doubled (RFC 4180); msMemScope writes it bare, which no reader can undo.

/// Appends text of the traced program by the rules of this module.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str, double_quotes: bool) {
    if text.trim_start_matches('\'').starts_with(['=', '+', '-', '@']) {
        out.push(b'\'');
    }
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\' && byte != b'"') {
        return out.extend_from_slice(text.as_bytes());
    }
    for character in text.chars() {
        push_char(out, character, double_quotes);
    }
}

fn push_char(out: &mut Vec<u8>, character: char, double_quotes: bool) {
    match character {
        '\\' => out.extend_from_slice(br"\\"),
        '\n' => out.extend_from_slice(br"\n"),
        '\r' => out.extend_from_slice(br"\r"),
        '\t' => out.extend_from_slice(br"\t"),
        '"' if double_quotes => out.extend_from_slice(b"\"\""),
        _ if is_hidden(character) => {
            out.extend_from_slice(character.escape_unicode().to_string().as_bytes());
        }
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// Control characters, line separators, and what turns the direction of text.
pub(crate) fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Undoes the escaping of names in our own outputs (see this module). Any other text is unchanged.
pub(crate) fn unescaped(text: &str) -> String {
    let unguarded = match text.strip_prefix('\'') {
        Some(rest) if rest.trim_start_matches('\'').starts_with(['=', '+', '-', '@']) => rest,
        _ => text,
    };
    if !unguarded.contains('\\') {
        return unguarded.to_owned();
    }
    unescape(unguarded).unwrap_or_else(|| unguarded.to_owned())
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split('\\');
    out.push_str(parts.next()?);
    while let Some(part) = parts.next() {
        let mut rest = part.chars();
        match rest.next() {
            // Two backslashes: the text between them is empty, and the next part follows as it is.
            None => {
                out.push('\\');
                out.push_str(parts.next()?);
                continue;
            }
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let (code, after) = rest.as_str().strip_prefix('{')?.split_once('}')?;
                out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
                out.push_str(after);
                continue;
            }
            Some(_) => return None,
        }
        out.push_str(rest.as_str());
    }
    Some(out)
}
