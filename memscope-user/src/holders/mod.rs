//! Which objects still hold a device block? The path from a root of the program down to it, through objects of Python
//! and C++, read out of the host memory of a living process.
//!
//! No code runs in the process, it is not stopped, and no debug symbols are needed. One pass over its memory records
//! each word that is a pointer (`pointers`); each step from a block up is then a look-up. `heap` finds the block and
//! allocator of a word, `python` and `cpp` its object, `graph` decides whether the word counts and names it, and `pool`
//! has the blocks of the framework's allocator. Before a path is shown each word of it is read again.
//!
//! All data read is hostile: chains, trees, counts and names are bounded, and no value of the process is an index or a
//! length without a check. Memory is read through `source`, so that tests and the fuzzer read images instead.

mod answer;
#[cfg(feature = "trace")]
mod books;
#[cfg(feature = "trace")]
mod cpp;
#[cfg(feature = "trace")]
mod deadline;
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
mod places;
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
    answer::{Branch, Effort, Group, Holder, Holders, PoolNow, PrivateNow, Purpose, State, Sum},
    text::write_text,
};
#[cfg(feature = "trace")]
pub use self::{
    books::{Books, BooksBudget, DeviceBooks, LiveBlock, NotRead, PassBudget, Purposes, books, purposes},
    live::{OpenError, Process},
    look::{Asked, Question, Refused, Which},
    places::{Budget, Cut, FoundBlock, FoundPlace, FoundPlaces, NotLooked, of_places},
    pool::Framework,
};

/// The device of a process, as it counts them, where its framework uses one and says which.
#[cfg(feature = "trace")]
#[must_use]
pub fn device(process: &Process) -> Option<u32> {
    pool::device(process)
}

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
