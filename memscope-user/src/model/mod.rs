//! The words of this project as types: what a stage hands to the next.

mod decomposition;
mod diff;
mod event;
mod finding;
mod fragmentation;
mod groups;
mod growth;
mod ledger;
mod loss;
mod module;
mod name;
mod peak;
mod sample;
mod span;
mod stack;

pub use decomposition::{Decomposition, OwnerNode, OwnerPart, OwnerSample, OwnerTimeline, Source};
pub use diff::{Diff, DiffSide, LiveChange, OwnerDiff, PlaceDiff, PoolDiff, SizeDiff};
pub use event::{
    Access, AccessKind, Alloc, AllocApi, AllocFailed, AllocRecovered, AtbOp, Block, BlockReturned, Device, DeviceUsage,
    DriverFigures, Event, EventKind, Free, FreeCause, Launch, Mark, Op, OpPhase, OutOfMemory, PageType, Pool,
    ProcessStart, ProcessUsage, Region, RegionKind, Snapshot, System, UnknownFree, Unmet,
};
pub use finding::{
    ByStack, DeviceUse, Finding, Fluctuation, Held, HeldModule, Inefficient, InefficientBlock, InefficientKind, Kept,
    Leak, LeftOut, MarkLeak, MarkLeaks, Oom, PoolAtOom, RatioRecord, Retry, StackSum, StepLeakPlace, StepLeaks,
    StepVerdict, StepsFrom, Suspect, Waste,
};
pub use fragmentation::{Fragmentation, FreeSpace, FreeSpaceMoment, FreeSpaceSample, Pin, PinnedSegment};
pub use groups::{LiveGroups, LiveSum, OwnerSum, PlaceSum, SizeSum};
pub use growth::{GROWTH_PARTS, GrowingSite, Growth, Increase, NotJudged, Site};
pub use ledger::{Entry, Item, Ledger, Moment, PoolSheets, Sheet, Sign};
pub use loss::{Confidence, CutStacks, Figures, LossLine, RunEnd};
pub use module::{module_id, module_name};
pub use name::Name;
pub use peak::Peak;
pub use sample::{Change, HostMemory, PoolSample, ProcessSample, Sample};
pub use span::{Exit, ExitFreed, Span};
pub use stack::{Stack, StackEnd, Stacks, end_text};
