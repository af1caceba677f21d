//! The Attr column: pairs of a key and a value (contract §6.2).
//!
//! All keys and values are numbers or words without `:`, `,` and `"`, and the JSON form needs no escaping. `streamId`
//! is the runtime's number of the stream where the program queried it, else the stream pointer as a decimal number, 0
//! for the default stream (readers expect a number there; a pointer is far above any stream number). `taskId` is `N/A`:
//! no argument of a launch carries it.

use super::NOT_AVAILABLE;
use crate::dump_format::number::{push_address, push_decimal};
use crate::model::{
    Access, Alloc, AllocApi, AllocFailed, Block, BlockReturned, DriverFigures, Free, FreeCause, Launch, PageType,
    Snapshot,
};

/// Value in the Attr column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Decimal.
    Number(u64),
    /// Decimal, with a sign.
    Signed(i64),
    /// `0x` and 16 digits.
    Address(u64),
    /// A word without `:`, `,` and `"`.
    Word(&'static str),
    /// `torch.Size([2, 3])`: this and the next are the only values with commas, as in msMemScope; readers split at
    /// keys.
    Shape(&'a [i64]),
    /// `[2,3,]`: the same of a tensor of ATB.
    Sizes(&'a [i64]),
    /// The first as a part of the second in hundredths, with 6 decimals; 0 of nothing.
    Percent(u64, u64),
}

/// Longest Attr: `MALLOC` of `HAL`, or of a pool, of a block that was found.
const MAX_PAIRS: usize = 10;

/// The pairs of the Attr column, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    pairs: [(&'static str, Value<'a>); MAX_PAIRS],
    len: usize,
}

impl<'a> Attr<'a> {
    pub(super) const EMPTY: Self = Self { pairs: [("", Value::Number(0)); MAX_PAIRS], len: 0 };

    /// Of these pairs.
    pub(super) fn of<const N: usize>(pairs: [(&'static str, Value<'a>); N]) -> Self {
        let mut attr = Self::EMPTY;
        for (key, value) in pairs {
            attr.put(key, value);
        }
        attr
    }

    /// Adds a pair. In place: it is large, and made for every row.
    fn put(&mut self, key: &'static str, value: Value<'a>) -> &mut Self {
        debug_assert!(self.len < MAX_PAIRS, "no room for {key}");
        if let Some(pair) = self.pairs.get_mut(self.len) {
            *pair = (key, value);
            self.len += 1;
        }
        self
    }

    fn put_option(&mut self, key: &'static str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.put(key, Value::Number(value)),
            None => self,
        }
    }

    fn of_block(block: &Block) -> Self {
        Self::of([
            ("allocation_id", Value::Number(block.allocation_id)),
            ("addr", Value::Address(block.addr)),
            ("size", Value::Number(block.size_bytes)),
        ])
    }

    /// `made_up`: no call of the program stands behind the row, so it has no totals (contract §6.2, §7.3, §7.4).
    fn of_event(
        block: &Block,
        made_up: bool,
        (used_bytes, total_bytes): (u64, Option<u64>),
        driver: DriverFigures,
    ) -> Self {
        let mut attr = Self::of_block(block);
        if made_up {
            attr.put("shadow", Value::Word("true"));
            return attr;
        }
        if block.pool.is_host() {
            attr.put("pinned", Value::Word("true")).put("used", Value::Number(used_bytes));
            return attr;
        }
        attr.put("used", Value::Number(used_bytes));
        if !block.pool.is_driver() {
            attr.put_option("total", total_bytes);
        }
        let DriverFigures { process_used_bytes, device_used_bytes } = driver;
        attr.put_option("process_used", process_used_bytes).put_option("device_used", device_used_bytes);
        attr
    }

    pub(super) fn of_alloc(alloc: &Alloc) -> Self {
        let made_up = alloc.restored || alloc.promoted;
        let mut attr = Self::of_event(&alloc.block, made_up, (alloc.used_bytes, alloc.total_bytes), alloc.driver);
        if alloc.block.found {
            // Ours alone: msMemScope knows no block from before its start.
            attr.put("found", Value::Word("true"));
        }
        // A name has nothing in it that separates values. Made-up rows have no owner (contract §7.3).
        if let Some(owner) = alloc.block.owner.filter(|_| !made_up) {
            attr.put("owner", Value::Word(owner.as_str()));
        }
        if !alloc.block.pool.is_driver() {
            // Ours alone: msMemScope does not record the program's request to the pool.
            attr.put_option("requested", alloc.block.requested_bytes);
            return attr;
        }
        let page = match alloc.block.page {
            PageType::Normal => "normal",
            PageType::Huge => "huge",
            PageType::Giant => "giant",
        };
        let api = match alloc.block.api {
            AllocApi::Alloc | AllocApi::Register => "alloc",
            AllocApi::Create => "create",
        };
        attr.put("page_type", Value::Word(page)).put("alloc_type", Value::Word(api));
        attr
    }

    pub(super) fn of_free(free: &Free) -> Self {
        let made_up = free.cause != FreeCause::Program;
        let mut attr = Self::of_event(&free.block, made_up, (free.used_bytes, free.total_bytes), free.driver);
        // Ours alone: the row of the allocation was written before the label was known.
        if let Some(owner) = free.owner {
            attr.put("owner", Value::Word(owner.as_str()));
        }
        attr
    }

    pub(super) fn of_snapshot(snapshot: &Snapshot) -> Self {
        let Snapshot { reserved_bytes, allocated_bytes, total_bytes, free_bytes, .. } = *snapshot;
        Self::of([
            ("reserved", Value::Number(reserved_bytes)),
            ("max_reserved", Value::Number(snapshot.max_reserved_bytes)),
            ("allocated", Value::Number(allocated_bytes)),
            ("max_allocated", Value::Number(snapshot.max_allocated_bytes)),
            ("total", Value::Number(total_bytes)),
            ("free", Value::Number(free_bytes)),
            ("device_rate", Value::Percent(total_bytes.saturating_sub(free_bytes), total_bytes)),
            ("reserved_rate", Value::Percent(allocated_bytes, reserved_bytes)),
        ])
    }

    /// Ours alone: msMemScope does not record it.
    pub(super) fn of_returned(returned: &BlockReturned) -> Self {
        Self::of([
            ("allocation_id", Value::Number(returned.allocation_id.unwrap_or(0))),
            ("addr", Value::Address(returned.addr)),
            ("size", Value::Number(returned.size_bytes)),
            ("used", Value::Number(returned.used_bytes)),
            ("total", Value::Number(returned.total_bytes)),
            ("active", Value::Number(returned.active_bytes)),
        ])
    }

    pub(super) fn of_failed(failed: &AllocFailed) -> Self {
        Self::of([
            ("func", Value::Word(failed.caller.map_or(NOT_AVAILABLE, crate::model::Name::as_str))),
            ("req_size", Value::Number(failed.size_bytes)),
            ("flag", Value::Number(failed.flags)),
        ])
    }

    pub(super) fn of_suspect(block: &Block) -> Self {
        Self::of([
            ("pool", Value::Word(block.pool.event_type())),
            ("ptr", Value::Address(block.addr)),
            ("size", Value::Number(block.size_bytes)),
            ("timestamp", Value::Number(block.alloc_time_ns)),
        ])
    }

    pub(super) fn of_launch(launch: &Launch) -> Self {
        let stream = launch.stream_id.map_or(Value::Number(launch.stream), Value::Signed);
        Self::of([("streamId", stream), ("taskId", Value::Word(NOT_AVAILABLE))])
    }

    pub(super) fn of_access(access: &'a Access) -> Self {
        let mut attr = Self::of([
            ("allocation_id", Value::Number(access.allocation_id)),
            ("addr", Value::Address(access.addr)),
            ("size", Value::Number(access.size_bytes)),
            ("type", Value::Word(access.pool.event_type())),
            ("dtype", Value::Word(access.dtype)),
        ]);
        match access.format {
            Some(format) => attr.put("format", Value::Word(format)).put("shape", Value::Sizes(&access.shape)),
            None => attr.put("shape", Value::Shape(&access.shape)),
        };
        attr
    }

    fn pairs(&self) -> &[(&'static str, Value<'a>)] {
        &self.pairs[..self.len]
    }

    /// Appends the CSV cell: nothing, or `"{key:value,…}"`.
    pub fn write_csv(&self, out: &mut Vec<u8>) {
        if self.len == 0 {
            return;
        }
        let mut lead: &[u8] = b"\"{";
        for (key, value) in self.pairs() {
            out.extend_from_slice(lead);
            out.extend_from_slice(key.as_bytes());
            out.push(b':');
            value.write(out);
            lead = b",";
        }
        out.extend_from_slice(b"}\"");
    }

    /// Appends the JSON object. All values are strings: Insight reads no others.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut lead: &[u8] = b"{\"";
        for (key, value) in self.pairs() {
            out.extend_from_slice(lead);
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\":\"");
            value.write(out);
            out.push(b'"');
            lead = b",\"";
        }
        out.extend_from_slice(if self.len == 0 { b"{}" } else { b"}" });
    }
}

impl Value<'_> {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => push_decimal(out, number),
            Self::Signed(number) => push_signed(out, number),
            Self::Address(address) => push_address(out, address),
            Self::Word(word) => out.extend_from_slice(word.as_bytes()),
            Self::Shape(sizes) => push_shape(out, sizes),
            Self::Sizes(sizes) => push_sizes(out, sizes),
            Self::Percent(_, 0) => out.extend_from_slice(b"0.000000"),
            Self::Percent(part, whole) => {
                out.extend_from_slice(format!("{:.6}", part as f64 / whole as f64 * 100.0).as_bytes());
            }
        }
    }
}

fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_decimal(out, number.unsigned_abs());
}

fn push_shape(out: &mut Vec<u8>, sizes: &[i64]) {
    let mut lead: &[u8] = b"torch.Size([";
    for size in sizes {
        out.extend_from_slice(lead);
        push_signed(out, *size);
        lead = b", ";
    }
    out.extend_from_slice(if sizes.is_empty() { b"torch.Size([])" } else { b"])" });
}

fn push_sizes(out: &mut Vec<u8>, sizes: &[i64]) {
    out.push(b'[');
    for size in sizes {
        push_signed(out, *size);
        out.push(b',');
    }
    out.push(b']');
}
