//! Interprets data of the interpreter: texts, and lines of code. Pure; the bytes come from a traced program and are
//! hostile.

mod lines;
mod text;

pub use lines::line;
pub use text::text;
