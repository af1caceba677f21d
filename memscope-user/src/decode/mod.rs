//! Bytes to records. Any bytes may come in: nothing here panics, allocates or trusts a length.

mod record;
#[cfg(test)]
mod tests;

pub use record::{
    Body, Call, Code, CodeText, DecodeError, Frames, ObjectCopy, Objects, Phase, Record, Records, Stack, TextPart,
    Values, decode, notes,
};
