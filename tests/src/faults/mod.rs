//! The fault campaign: the tracer, its guard, the daemon and traced programs are killed, signalled and starved at random
//! moments, and what is left is held to what the programs did.
//!
//! Each round makes one fault at a moment that a seed decides, so that a round can be run again. It counts: programs
//! that were harmed (stopped, ended, changed), rows that are missing though no loss was reported, and captures that
//! cannot be recovered.

mod chance;
mod rounds;
mod tally;

pub use self::chance::Chance;
pub use self::rounds::{FAULTS, Fault};
pub use self::tally::{HEAD, Round, Tally};
