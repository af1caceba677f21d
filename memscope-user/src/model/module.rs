//! Modules: the users of the driver's memory, as the driver numbers them.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

/// Name of modules without one.
pub const UNKNOWN_MODULE: &str = "UNKNOWN";

/// A module of the driver, defined by a [backend](crate::backend).
#[derive(Clone, Copy)]
pub struct Module(&'static ModuleInfo);

/// A backend's description of a module.
#[derive(Clone, Copy, Debug)]
pub struct ModuleInfo {
    /// Its number.
    pub id: u8,
    /// Its name, or [`UNKNOWN_MODULE`].
    pub name: &'static str,
    /// Its role.
    pub role: ModuleRole,
}

/// A module's role in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleRole {
    /// The vendor's runtime.
    Runtime,
    /// The library of collective communication.
    Communication,
    /// Another.
    Other,
}

impl Module {
    /// One of a backend's modules.
    #[must_use]
    pub const fn known(info: &'static ModuleInfo) -> Self {
        Self(info)
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u8 {
        self.0.id
    }

    /// Its role.
    #[must_use]
    pub const fn role(self) -> ModuleRole {
        self.0.role
    }
}

/// Name of the driver module that requested a block; `UNKNOWN` for none and for modules without a name.
#[must_use]
pub const fn module_name(module: Option<Module>) -> &'static str {
    match module {
        Some(module) => module.0.name,
        None => UNKNOWN_MODULE,
    }
}

impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Module {}

impl PartialOrd for Module {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Module {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.id().cmp(&other.id())
    }
}

impl Hash for Module {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.id(), f)
    }
}

/// Its number.
impl Serialize for Module {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.id())
    }
}

impl JsonSchema for Module {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        u8::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        u8::json_schema(generator)
    }
}
