//! Blocks, and the devices that they are on.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::{HeldAs, Module, Name, Pool, Stacks};

/// Where an event belongs. The number is the physical NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// An NPU.
    Npu(u32),
    /// Host memory.
    Cpu,
    /// Unknown, or none: the row goes to every device file of the process.
    None,
}

/// Page size of a driver block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageType {
    /// 4 KiB or 64 KiB.
    #[default]
    Normal,
    /// 2 MiB.
    Huge,
    /// 1 GiB.
    Giant,
}

/// Driver call that made a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllocApi {
    /// `halMemAlloc`: an address.
    #[default]
    Alloc,
    /// `halMemCreate`: a physical handle; its value replaces the address.
    Create,
    /// `aclrtHostRegisterV2`: pinned memory of the program.
    Register,
}

/// One block, from its allocation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the block in its process, from 1.
    pub allocation_id: u64,
    /// The pool, or the driver.
    pub pool: Pool,
    /// Device that the memory is on ([`Device::Cpu`] for host memory).
    pub device: Device,
    /// The result of the call: an address, or a handle for [`AllocApi::Create`].
    pub addr: u64,
    /// Size in bytes: as the driver was asked for it, or as the pool rounded it.
    pub size_bytes: u64,
    /// Bytes requested from the pool, where known.
    pub requested_bytes: Option<u64>,
    /// Time of the allocation, nanoseconds since the Unix epoch.
    pub alloc_time_ns: u64,
    /// Event id of the allocation.
    pub alloc_id: u64,
    /// Thread that allocated it.
    pub tid: u32,
    /// Step during which it was allocated; 0 before the first.
    pub step: u32,
    /// Kernel launches of the process seen before it.
    pub kernel_index: u64,
    /// Driver module that asked for it, where known.
    pub module_id: Option<Module>,
    /// Page size.
    pub page: PageType,
    /// Driver call.
    pub api: AllocApi,
    /// Outermost function of ACL or runtime around the driver's call; `None` for a direct call.
    pub caller: Option<Name>,
    /// Where it was allocated.
    pub stacks: Stacks,
    /// The owner as known at the allocation (contract §8.5); only with the analysis decompose.
    pub owner: Option<Name>,
    /// It is older than the trace: found in the pool's own books when the process was attached to. Its time, step and thread
    /// are those of the finding, and it has no stack.
    pub found: bool,
    /// Of a found block: its purpose, by the objects that held it.
    pub held_as: Option<HeldAs>,
}

impl Block {
    /// What tells its place from others without a call stack: its size in bytes. `None` where a stack names the place.
    #[must_use]
    pub const fn size_of_place(&self) -> Option<u64> {
        if self.stacks.is_empty() { Some(self.size_bytes) } else { None }
    }
}

impl Device {
    /// `npu:0` or `host`; `none` without a device.
    #[must_use]
    pub fn name_or(self, none: &str) -> String {
        match self {
            Self::Npu(number) => format!("npu:{number}"),
            Self::Cpu => "host".to_owned(),
            Self::None => none.to_owned(),
        }
    }
}

/// `npu:0`, `host`, or null.
impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Npu(number) => serializer.collect_str(&format_args!("npu:{number}")),
            Self::Cpu => serializer.serialize_str("host"),
            Self::None => serializer.serialize_none(),
        }
    }
}

impl JsonSchema for Device {
    fn schema_name() -> Cow<'static, str> {
        "Device".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`npu:N`, `host`, or null where it is not known.",
            "type": ["string", "null"],
            "pattern": "^(npu:[0-9]+|host)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In JSON a device is its word.
    #[test]
    fn devices_serialize_as_words() {
        let devices = [Device::Npu(7), Device::Cpu, Device::None];
        assert_eq!(serde_json::to_string(&devices).expect("JSON"), r#"["npu:7","host",null]"#);
    }
}
