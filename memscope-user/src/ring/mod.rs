//! Taking records out of the kernel: one thread drains the transport, hands whole batches on, and lets the
//! session know of processes that wait for it.

mod mend;
mod reader;
mod source;

pub use reader::{Batch, Command, FirstNotes, Notes, OnHeld, Reader, Spent, Urgent};
pub use source::{Source, monotonic_ns};
