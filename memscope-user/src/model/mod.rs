//! The words of this project as types: what a stage hands to the next.

mod event;
mod finding;
mod module;

pub use event::{
    Alloc, AllocApi, AllocFailed, Block, Device, Event, EventKind, Free, FreeCause, Launch, Mark, PageType, Pool,
    ProcessStart, System, UnknownFree,
};
pub use finding::{Confidence, Finding, Fluctuation, Held, HeldModule, Leak, LossLine, RatioRecord, RunEnd, StepLeaks};
pub use module::module_name;
