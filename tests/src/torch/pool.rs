//! What the rows of a process say of `torch_npu`'s allocator and of the memory that it takes from the driver.

use std::collections::BTreeMap;

use crate::harness::rows::Row;

/// Which of `torch_npu`'s allocators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// Tensors.
    Caching,
    /// Workspaces of operators, where they have an allocator of their own.
    Workspace,
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It was handed out.
    Alloc,
    /// The program gave it back.
    Free,
    /// It can be handed out again.
    BlockFree,
}

/// A row about a block of `torch_npu`'s.
#[derive(Clone, Debug)]
pub struct Block<'a> {
    /// The pool.
    pub pool: Pool,
    /// What.
    pub change: Change,
    /// Device.
    pub device: u32,
    /// Address.
    pub addr: u64,
    /// Bytes of the block.
    pub size: u64,
    /// The row.
    pub row: &'a Row,
}

impl<'a> Block<'a> {
    /// The block that a row is about, if it is one of `torch_npu`'s.
    #[must_use]
    pub fn of(row: &'a Row) -> Option<Self> {
        let pool = match row.event_type.as_str() {
            "PTA" => Pool::Caching,
            "PTA_WORKSPACE" => Pool::Workspace,
            _ => return None,
        };
        let change = match row.event.as_str() {
            "MALLOC" => Change::Alloc,
            "FREE" => Change::Free,
            "BLOCK_FREE" => Change::BlockFree,
            other => panic!("a row of torch_npu's with event `{other}`: {row:?}"),
        };
        let device = device_of(row).unwrap_or_else(|| panic!("a block on no device: {row:?}"));
        let addr = row.ptr.unwrap_or_else(|| panic!("no Ptr in {row:?}"));
        assert_eq!(row.attr["addr"], format!("{addr:#018x}"), "Ptr and Attr differ: {row:?}");
        Some(Self { pool, change, device, addr, size: row.number("size"), row })
    }
}

/// The rows that are about blocks of no pool: neither `torch_npu`'s, nor those that vLLM puts below it.
#[must_use]
pub fn without_pools(rows: &[Row]) -> Vec<Row> {
    rows.iter().filter(|row| row.event_type != "vllm" && Block::of(row).is_none()).cloned().collect()
}

/// Device memory that is live by the rows of the driver.
#[derive(Clone, Debug, Default)]
pub struct Driver {
    /// By device, and by the number of the block.
    live: BTreeMap<(u32, u64), Segment>,
}

/// Memory from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address, or handle of physical memory.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// It is a handle (`halMemCreate`).
    pub physical: bool,
}

impl Driver {
    /// Takes note of a row, whatever it is; gives the segment that it begins or ends.
    pub fn see(&mut self, row: &Row) -> Option<(u32, bool, Segment)> {
        let device = device_of(row)?;
        if row.event_type != "HAL" || !row.is_memory() {
            return None;
        }
        let key = (device, row.number("allocation_id"));
        if row.event == "FREE" {
            return self.live.remove(&key).map(|segment| (device, false, segment));
        }
        let physical = row.attr.get("alloc_type").is_some_and(|kind| kind == "create");
        let segment = Segment { addr: row.ptr.unwrap_or(0), size: row.number("size"), physical };
        self.live.insert(key, segment);
        Some((device, true, segment))
    }

    /// What is live on a device.
    pub fn segments(&self, device: u32) -> impl Iterator<Item = &Segment> {
        self.live.range((device, 0)..=(device, u64::MAX)).map(|(_, segment)| segment)
    }
}

fn device_of(row: &Row) -> Option<u32> {
    row.device.parse().ok()
}
