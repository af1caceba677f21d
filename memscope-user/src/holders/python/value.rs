//! Values in names: texts, numbers, tuples of these. They are the user's data: short, and shown escaped.

use memscope_common::python::TextState;

use super::{Python, layout::of_object, types::Builtin};

/// Longest text of a key that is shown.
const SHOWN: usize = 60;
/// Longest text that is read.
const MAX_TEXT: u64 = 200;
/// Items of a tuple that are shown.
const TUPLE_ITEMS: u64 = 4;

impl Python<'_> {
    /// The text of a `str`, cut at a bound.
    pub(in crate::holders) fn text(&self, object: u64) -> Option<String> {
        let words = self.memory.words(object, 5)?;
        // By the address alone: reading a type needs texts.
        if words[1] != self.str_type {
            return None;
        }
        let (len, state) = (words[2].min(MAX_TEXT) as usize, TextState::new(words[4]));
        if !state.is_compact() || !matches!(state.kind(), 1 | 2 | 4) {
            return None;
        }
        let layout = &self.layout.structs.layout;
        if state.is_ascii() {
            let bytes = self.memory.bytes(object + u64::from(layout.ascii_at), len)?;
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
        let kind = usize::from(state.kind());
        let bytes = self.memory.bytes(object + u64::from(layout.text_at), len * kind)?;
        let characters = bytes.chunks_exact(kind).map(|unit| {
            let mut number = [0; 4];
            number[..kind].copy_from_slice(unit);
            char::from_u32(u32::from_le_bytes(number)).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        Some(characters.collect())
    }

    /// A key as Python would show it; `<type>` where that would take code of the program.
    pub(in crate::holders) fn key_text(&self, object: u64) -> String {
        self.key_text_within(object, 1)
    }

    fn key_text_within(&self, object: u64, depth: u32) -> String {
        if let Some(text) = self.text(object) {
            return quoted(&text);
        }
        let Some(ty) = self.type_of(object) else { return "?".to_owned() };
        match ty.builtin {
            Builtin::Int => self.number(object).map_or_else(|| "<int>".to_owned(), |number| number.to_string()),
            Builtin::Tuple if depth > 0 => {
                let count = self.memory.word_or_0(object + of_object::SIZE);
                let item = |at| self.memory.word_or_0(object + self.layout.tuple_items() + at * 8);
                let shown = (0..count.min(TUPLE_ITEMS)).map(|at| self.key_text_within(item(at), depth - 1));
                let mut shown: Vec<String> = shown.collect();
                if count > TUPLE_ITEMS {
                    shown.push("…".to_owned());
                }
                format!("({}{})", shown.join(", "), if count == 1 { "," } else { "" })
            }
            _ => format!("<{}>", ty.name),
        }
    }

    /// The value of an `int` of up to 60 bits.
    pub(in crate::holders) fn number(&self, object: u64) -> Option<i64> {
        const DIGIT: u64 = (1 << 30) - 1;
        let words = self.memory.words(object, 4)?;
        let (digits, is_negative) = if self.layout.minor >= 12 {
            (words[2] >> 3, words[2] & 3 == 2)
        } else {
            ((words[2] as i64).unsigned_abs(), (words[2] as i64) < 0)
        };
        let value = match digits {
            0 => 0,
            1 => words[3] & DIGIT,
            2 => words[3] & DIGIT | (words[3] >> 32 & DIGIT) << 30,
            _ => return None,
        };
        let value = value as i64;
        Some(if is_negative { -value } else { value })
    }
}

/// In quotes, as Python writes it in most cases.
fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    let quote = if shown.contains('\'') && !shown.contains('"') { '"' } else { '\'' };
    format!("{quote}{shown}{quote}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `repr` has them in Python, but cut.
    #[test]
    fn texts_in_quotes() {
        assert_eq!(quoted("layer0"), "'layer0'");
        assert_eq!(quoted("it's"), "\"it's\"");
        assert_eq!(quoted(&"x".repeat(61)), format!("'{}…'", "x".repeat(60)));
    }
}
