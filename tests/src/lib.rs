//! What the tests of the whole share. It stands apart from the programs it tests.

pub mod checkers;
pub mod faults;
pub mod harness;
pub mod mindspore;
pub mod torch;
