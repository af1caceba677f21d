//! The words of this project as types: values that one stage hands to the next.

mod block;
mod event;
mod groups;
mod kept;
mod look;
mod loss;
mod module;
mod name;
mod pool;
mod stack;
mod steps_from;

pub use block::{AllocApi, Block, Device, PageType};
pub use event::{
    Access, AccessKind, Alloc, AllocFailed, AllocRecovered, Asked, AtbOp, BlockReturned, DeviceMemory, DeviceUsage,
    DriverFigures, Event, EventKind, Fraction, Free, FreeCause, Graph, GraphChange, Launch, Mark, Op, OpPhase,
    OutOfMemory, OwnPool, OwnRules, PoolRefused, PoolSet, ProcessStart, ProcessUsage, Region, RegionKind, Setting,
    Snapshot, StreamUse, System, UnknownFree, Unmet,
};
pub use groups::{LiveGroups, LiveSum, OwnerSum, PlaceSum, SizeSum};
pub use kept::{Kept, Text};
pub use look::{FoundHeld, FoundPurpose, HeldAs, HolderPath, Look, Looked, LookedAt, PlaceLook};
pub use loss::{Confidence, CutStacks, Figures, LossLine, RunEnd, TENSOR_NOT_READABLE};
pub use module::{Module, ModuleInfo, ModuleRole, UNKNOWN_MODULE, module_name};
pub use name::Name;
pub use pool::{Pool, PoolInfo, PoolLevel, PoolOperators};
pub use stack::{Stack, StackEnd, Stacks, end_text};
pub use steps_from::StepsFrom;
