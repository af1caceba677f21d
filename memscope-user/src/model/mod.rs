//! The words of this project as types: what a stage hands to the next.

mod event;
mod finding;

pub use event::{
    Alloc, AllocApi, AllocFailed, Block, Device, Event, EventKind, Free, FreeCause, Launch, Mark, PageType, Pool,
    ProcessStart, System, UnknownFree,
};
pub use finding::{Confidence, Finding, Fluctuation, Held, HeldModule, Leak, LossLine, RatioRecord, RunEnd, StepLeaks};
