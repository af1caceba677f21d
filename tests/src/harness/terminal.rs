//! What terminals obey.

/// The first character in a text that a terminal obeys, or that turns the direction of what is written: controls but ends of lines and tabs,
/// marks of direction, separators of lines and paragraphs.
#[must_use]
pub fn obeyed(text: &str) -> Option<char> {
    text.chars().find(|character| {
        matches!(*character as u32, 0..=8 | 11..=31 | 0x7f..=0x9f | 0x61c | 0x200e | 0x200f | 0x2028..=0x202e | 0x2066..=0x2069)
    })
}
