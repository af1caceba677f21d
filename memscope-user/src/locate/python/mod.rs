//! Finds the Python interpreter of a process: `find` reads files and memory, `offsets` knows the versions, `glibc` where a
//! thread keeps its state.

pub mod find;
mod glibc;
mod offsets;
