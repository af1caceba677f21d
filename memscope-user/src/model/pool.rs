//! Pools: allocators of blocks, the origin of their memory, and the meaning of their figures.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::Name;

/// The allocator of a block. Each pool is its own address space of blocks.
///
/// Defined by a [backend](crate::backend), and ordered as there; pools with custom names are last.
#[derive(Clone, Copy)]
pub struct Pool(Kind);

#[derive(Clone, Copy)]
enum Kind {
    /// One of the backend's.
    Known(&'static PoolInfo),
    /// Another one: of a user of mstx, or of functions that the user defined.
    Named(Name),
}

/// A backend's description of one of its pools.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PoolInfo {
    /// Its place among the backend's pools.
    pub order: u8,
    /// Spelling in the `Event Type` column (contract §6.1).
    pub event_type: &'static str,
    /// Another pool's event type, under which other tools write its rows.
    pub also_written: Option<&'static str>,
    /// Name in reports (contract §8.2).
    pub display_name: &'static str,
    /// Name on the first screen.
    pub title: &'static str,
    /// How owners of its blocks begin; empty for host memory (contract §8.5).
    pub owner: &'static str,
    /// Where it has its memory from.
    pub level: PoolLevel,
    /// Operators that work on its blocks.
    pub operators: Option<PoolOperators>,
    /// Its operators have events of their own, to align two runs by.
    pub has_operators: bool,
    /// A workspace that grows is reported with the pool's figure from before, and once more for the same block.
    pub grows_in_place: bool,
    /// A registered heap is the pool's whole memory, not one more part (contract §11).
    pub heap_is_total: bool,
    /// It is reported by a function that its library does not export, so that the wrong one may have been found.
    pub is_located: bool,
    /// It gives segments without any block back to the driver before a request fails.
    pub gives_back: bool,
}

/// Where a pool has its memory from. Analyses ask for it, never for the pool's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolLevel {
    /// Device memory, from the driver.
    Driver,
    /// Host memory, from the driver.
    Host,
    /// A framework's pool, within memory of the driver.
    Framework,
    /// Workspaces of a framework or a library of operators.
    Workspace,
    /// A pool that a program or the user has named.
    Custom,
}

/// Operators that work on a pool's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolOperators {
    /// `PyTorch`'s.
    Torch,
    /// ATB's.
    Atb,
}

impl PoolInfo {
    /// A framework's pool without peculiarities; names are empty.
    pub const BASE: Self = Self {
        order: 0,
        event_type: "",
        also_written: None,
        display_name: "",
        title: "",
        owner: "",
        level: PoolLevel::Framework,
        operators: None,
        has_operators: true,
        grows_in_place: false,
        heap_is_total: false,
        is_located: false,
        gives_back: false,
    };
}

impl Pool {
    /// One of a backend's pools.
    #[must_use]
    pub const fn known(info: &'static PoolInfo) -> Self {
        Self(Kind::Known(info))
    }

    /// A pool named by a program or the user. Short, and safe to open in a spreadsheet: no formula.
    ///
    /// [`Backend::custom_pool`](crate::backend::Backend::custom_pool) sees to it that it is never taken for one of the backend's.
    #[must_use]
    pub fn custom(name: &str) -> Self {
        const MAX_CHARS: usize = 64;
        let mut text: String = name.chars().take(MAX_CHARS).collect();
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            text.insert_str(0, "pool_");
        }
        Self(Kind::Named(Name::keep(&text)))
    }

    /// The name, if chosen by a program or the user.
    #[must_use]
    pub const fn custom_name(self) -> Option<Name> {
        match self.0 {
            Kind::Known(_) => None,
            Kind::Named(name) => Some(name),
        }
    }

    /// The pool's level: the origin of its memory.
    #[must_use]
    pub const fn level(self) -> PoolLevel {
        match self.0 {
            Kind::Known(info) => info.level,
            Kind::Named(_) => PoolLevel::Custom,
        }
    }

    /// Spelling in the `Event Type` column (contract §6.1).
    #[must_use]
    pub const fn event_type(self) -> &'static str {
        match self.0 {
            Kind::Known(info) => info.event_type,
            Kind::Named(name) => name.as_str(),
        }
    }

    /// Name in reports (contract §8.2).
    #[must_use]
    pub const fn display_name(self) -> &'static str {
        match self.0 {
            Kind::Known(info) => info.display_name,
            Kind::Named(name) => name.as_str(),
        }
    }

    /// Its name on the first screen.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self.0 {
            Kind::Known(info) => info.title,
            Kind::Named(name) => name.as_str(),
        }
    }

    /// How owners of its blocks begin; empty for host memory (contract §8.5).
    #[must_use]
    pub const fn owner(self) -> &'static str {
        match self.0 {
            Kind::Known(info) => info.owner,
            Kind::Named(name) => name.as_str(),
        }
    }

    /// Another pool's event type, under which other tools write its rows.
    #[must_use]
    pub const fn also_written(self) -> Option<&'static str> {
        match self.0 {
            Kind::Known(info) => info.also_written,
            Kind::Named(_) => None,
        }
    }

    /// Device memory, from the driver itself.
    #[must_use]
    pub const fn is_driver(self) -> bool {
        matches!(self.level(), PoolLevel::Driver)
    }

    /// Host memory, from the driver.
    #[must_use]
    pub const fn is_host(self) -> bool {
        matches!(self.level(), PoolLevel::Host)
    }

    /// Memory that no pool hands out: the driver's, of device or host.
    #[must_use]
    pub const fn is_base(self) -> bool {
        matches!(self.level(), PoolLevel::Driver | PoolLevel::Host)
    }

    /// A framework's own pool, which its tensors are in.
    #[must_use]
    pub const fn is_framework(self) -> bool {
        matches!(self.level(), PoolLevel::Framework)
    }

    /// One of a framework that this program knows, for tensors or for workspaces; the user has named the others.
    #[must_use]
    pub const fn is_known_framework(self) -> bool {
        matches!(self.level(), PoolLevel::Framework | PoolLevel::Workspace)
    }

    /// Operators that work on its blocks.
    #[must_use]
    pub const fn operators(self) -> Option<PoolOperators> {
        match self.0 {
            Kind::Known(info) => info.operators,
            Kind::Named(_) => None,
        }
    }

    /// Its operators have events of their own, to align two runs by.
    #[must_use]
    pub const fn has_operators(self) -> bool {
        match self.0 {
            Kind::Known(info) => info.has_operators,
            Kind::Named(_) => true,
        }
    }

    /// A workspace that grows is reported with the pool's figure from before, and once more for the same block.
    #[must_use]
    pub const fn grows_in_place(self) -> bool {
        matches!(self.0, Kind::Known(PoolInfo { grows_in_place: true, .. }))
    }

    /// A registered heap is the pool's whole memory, not one more part (contract §11).
    #[must_use]
    pub const fn heap_is_total(self) -> bool {
        matches!(self.0, Kind::Known(PoolInfo { heap_is_total: true, .. }))
    }

    /// It is reported by a function that its library does not export, so that the wrong one may have been found.
    #[must_use]
    pub const fn is_located(self) -> bool {
        matches!(self.0, Kind::Known(PoolInfo { is_located: true, .. }))
    }

    /// It gives segments without any block back to the driver before a request fails.
    #[must_use]
    pub const fn gives_back(self) -> bool {
        matches!(self.0, Kind::Known(PoolInfo { gives_back: true, .. }))
    }

    /// What pools are ordered and hashed by.
    fn place(self) -> (u8, Option<Name>) {
        match self.0 {
            Kind::Known(info) => (info.order, None),
            Kind::Named(name) => (u8::MAX, Some(name)),
        }
    }
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Kind::Known(one), Kind::Known(other)) => std::ptr::eq(one, other),
            (Kind::Named(one), Kind::Named(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Pool {}

impl PartialOrd for Pool {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pool {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

/// By its place, not its address, so that tables of pools are the same in every run.
impl Hash for Pool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.event_type())
    }
}

/// Its event type.
impl Serialize for Pool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.event_type())
    }
}

impl JsonSchema for Pool {
    fn schema_name() -> Cow<'static, str> {
        "Pool".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`HAL` (the driver), `HOST`, `PTA`, `PTA_WORKSPACE`, `ATB`, `MINDSPORE`, or the name of another pool.",
            "type": "string",
            "minLength": 1,
            "maxLength": 64,
        })
    }
}
