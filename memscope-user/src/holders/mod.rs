//! Who still holds a device block: the path from a root of the program down to it, through objects of Python and C++, read out
//! of the host memory of a living process.
//!
//! Nothing runs in the process, it is not stopped, and no debug symbols are needed. One pass over its memory writes down
//! each word that is a pointer (`pointers`); each step from a block up is then a look-up. `heap` says which block of which
//! allocator a word lies in, `python` and `cpp` what that is, `graph` whether the word counts and what it is called,
//! and `pool` which blocks the framework's allocator has. Before a path is shown each word of it is read again.
//!
//! Everything that is read is hostile: chains, trees, counts and names are bounded, and no value of the process is an index or
//! a length without a check. Memory is read through `source`, so that tests and the fuzzer read images instead.

mod answer;
#[cfg(feature = "trace")]
mod cpp;
#[cfg(feature = "trace")]
mod graph;
#[cfg(feature = "trace")]
mod group;
#[cfg(feature = "trace")]
mod heap;
#[cfg(all(feature = "trace", any(test, feature = "fuzzing")))]
mod image;
#[cfg(feature = "trace")]
mod live;
#[cfg(feature = "trace")]
mod look;
#[cfg(feature = "trace")]
mod memory;
#[cfg(feature = "trace")]
mod pointers;
#[cfg(feature = "trace")]
mod pool;
#[cfg(feature = "trace")]
mod python;
#[cfg(all(feature = "trace", any(test, feature = "fuzzing")))]
mod sample;
#[cfg(feature = "trace")]
mod source;
#[cfg(feature = "trace")]
mod symbols;
mod text;
#[cfg(feature = "trace")]
mod trail;
#[cfg(feature = "trace")]
mod tree;

pub use self::{
    answer::{Branch, Effort, Group, Holder, Holders, PoolNow, State, Sum},
    text::write_text,
};
#[cfg(feature = "trace")]
pub use self::{
    live::{OpenError, Process},
    look::{Asked, Question, Refused, Which},
};

/// Looks for the holders of a block in a process that others have made up.
#[cfg(feature = "fuzzing")]
pub(crate) fn any_process(bytes: &[u8]) {
    sample::changed(bytes);
}

/// Answers a question about a living process, from outside.
///
/// # Errors
///
/// If there is nothing to look at, or the process ends meanwhile.
#[cfg(feature = "trace")]
pub fn holders(process: &Process, question: &Question) -> Result<Holders, Refused> {
    let command = crate::os::process::command(process.pid());
    look::look(process, question).map(|found| Holders { pid: process.pid(), command, ..found })
}
