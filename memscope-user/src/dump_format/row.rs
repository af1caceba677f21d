//! A row of a dump as it is read: what its cells say, in values.

use crate::model::{AccessKind, AllocApi, Device, Module, Name, OpPhase, PageType, Pool, Stacks};

/// The subject of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A block is handed out.
    Malloc(Pool),
    /// A block ends.
    Free(Pool),
    /// The pool has a block back.
    Returned(Pool),
    Access(AccessKind),
    Op(OpPhase),
    /// Whether it begins.
    AtbOp(bool),
    Launch,
    Mark,
    RangeStart,
    RangeEnd,
    AclInit,
    AclFinalize,
    Step,
    OutOfMemory,
}

/// A row. Missing numbers are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DumpRow {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) time_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) device: Device,
    /// File of the row, by its position among the given files.
    pub(crate) file: u32,
    /// Line of the row in its file, or number of the row in its table.
    pub(crate) line: u64,
    pub(crate) ptr: Option<u64>,
    pub(crate) allocation_id: Option<u64>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) total_bytes: Option<u64>,
    /// Active bytes of a pool; stream of a launch; flag word of a failed allocation.
    pub(crate) number: Option<u64>,
    /// No call of the program stands behind the row.
    pub(crate) shadow: bool,
    /// The block is older than the trace.
    pub(crate) found: bool,
    pub(crate) page: PageType,
    pub(crate) api: AllocApi,
    pub(crate) module_id: Option<Module>,
    /// The owner of a block, as the dump has it.
    pub(crate) owner: Option<Name>,
    /// Pool of an access.
    pub(crate) pool: Pool,
    /// Boxed: most rows are block rows, which have no texts.
    pub(crate) texts: Option<Box<Texts>>,
    pub(crate) stacks: Stacks,
}

/// Texts of a row, unchanged; missing ones are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    pub(crate) name: String,
    /// Type of a tensor's elements; function that failed; domain of a mark.
    pub(crate) word: String,
    /// How a tensor is laid out.
    pub(crate) format: String,
    /// Shape of a tensor.
    pub(crate) shape: String,
}

impl DumpRow {
    pub(crate) fn texts(&self) -> &Texts {
        static NONE: Texts =
            Texts { name: String::new(), word: String::new(), format: String::new(), shape: String::new() };
        self.texts.as_deref().unwrap_or(&NONE)
    }
}
