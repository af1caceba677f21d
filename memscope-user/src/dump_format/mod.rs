//! The format of dumps: columns, and how cells spell texts, numbers and call stacks (contract §3, §6).
//!
//! Sinks write it, `input` reads it back; neither knows the other.

pub(crate) mod number;
pub(crate) mod row;
pub(crate) mod stack_cell;
pub(crate) mod text;

pub use stack_cell::last_line;

/// Columns of a row; the CSV header and the database column names.
pub const COLUMNS: [&str; 12] = [
    "ID",
    "Event",
    "Event Type",
    "Name",
    "Timestamp(ns)",
    "Process Id",
    "Thread Id",
    "Device Id",
    "Ptr",
    "Attr",
    "Call Stack(Python)",
    "Call Stack(C)",
];
