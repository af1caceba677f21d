//! What both sides of the ring agree on.
//!
//! The BPF programs know *shapes*: take these arguments, read that out-pointer, report at entry or at return. Only user
//! space knows the meaning of a probe (an allocation, a launch, a mark). Three things cross the border and are declared
//! here: the records ([`record`], [`stack`]), the probe rows, which say what to fetch ([`row`]), and the reasons why a
//! call is *not* reported ([`miss`]).
#![no_std]

pub mod config;
pub mod miss;
pub mod python;
pub mod record;
pub mod row;
pub mod site;
pub mod stack;
pub mod unwind;
pub mod watch;

pub use config::Config;
pub use miss::Miss;
pub use python::PythonLayout;
pub use record::{CallRecord, Header, Kind, LibraryRecord, Object, ObjectsRecord, ProcessRecord, TextRecord};
pub use row::{ArrayShape, Fetch, ListShape, ObjectShape, ProbeRow, Source, When};
pub use site::{ArgPlace, SitePlaces};
pub use stack::{CodeRecord, PythonFrame, Replaced, SnapshotRecord, StackEnd, StackRecord};
pub use watch::{WatchSite, WatchStart, WatchedProcess};
