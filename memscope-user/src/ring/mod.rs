//! Taking records out of the kernel: one thread drains the transport, hands whole batches on, and lets the
//! session know of processes that wait for it.

mod reader;
mod source;
mod text_fixup;
mod urgent;
mod watermark;

pub use reader::{Batch, Command, FirstNotes, Notes, OnHeld, OnRecord, Reader, Spent};
pub use source::Source;
pub use urgent::Urgent;
