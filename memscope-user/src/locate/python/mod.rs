//! Finds the Python interpreter of a process: `find` reads files and memory, `offsets` knows the versions, `glibc` where a
//! thread keeps its state.

pub mod find;
mod glibc;
pub(crate) mod offsets;

/// Reads any bytes as the table of an interpreter that describes itself.
#[cfg(feature = "fuzzing")]
pub(crate) fn any_table(bytes: &[u8]) {
    let _ = offsets::of_table(bytes);
}
