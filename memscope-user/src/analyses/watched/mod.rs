//! Which operator changed a watched block? Block watch looks while the program runs ([`watch`](crate::watch)); no event
//! shows it. So there is no analysis here: its findings and their text.

mod finding;
mod text;

pub use self::finding::{Conclusion, PassedOperator, PassedSides, Watched, WatchedBlock, WatchedFree};
pub use self::text::write;
