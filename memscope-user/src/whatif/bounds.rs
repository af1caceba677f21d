//! Lower bounds: the least memory of any allocator, and of one that knows when each block ends.

use schemars::JsonSchema;
use serde::Serialize;

use super::MIB;
use super::requests::{Op, Requests, Slots};
use super::settings::Settings;

/// More blocks are not packed: it takes their square.
const MAX_PACKED: usize = 20_000;

/// Bounds of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Bounds {
    /// Device.
    pub device: u32,
    /// Most bytes of the program at once, after rounding: no allocator needs less.
    pub floor_bytes: u64,
    /// Request behind which that was.
    pub floor_request: u64,
    /// Blocks.
    pub blocks: u64,
    /// What suffices if all lifetimes are known: the best of four orders; absent where there are too many blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_bytes: Option<u64>,
}

impl Bounds {
    /// What no setting can give: even a perfect plan needs it on top of the blocks.
    #[must_use]
    pub fn unavoidable_bytes(&self) -> Option<u64> {
        self.packed_bytes.map(|packed| packed - self.floor_bytes)
    }

    /// The cost of fragmentation at this peak of the pool's memory.
    #[must_use]
    pub fn fragmentation_bytes(&self, reserved_peak_bytes: u64) -> u64 {
        reserved_peak_bytes.saturating_sub(self.packed_bytes.unwrap_or(self.floor_bytes))
    }
}

/// A block's time, in operations, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    from: u32,
    to: u32,
    size: u64,
}

/// Blocks of one device so far.
#[derive(Debug, Default)]
struct Lives {
    used_bytes: u64,
    bounds: Bounds,
    known: Vec<Life>,
}

impl Lives {
    fn begins(&mut self, from: u32, size: u64, number: u64) -> u32 {
        self.used_bytes += size;
        if self.used_bytes > self.bounds.floor_bytes {
            (self.bounds.floor_bytes, self.bounds.floor_request) = (self.used_bytes, number);
        }
        self.bounds.blocks += 1;
        // One more than can be packed means too many.
        if self.known.len() <= MAX_PACKED {
            self.known.push(Life { from, to: u32::MAX, size });
        }
        (self.bounds.blocks - 1) as u32
    }

    fn ends(&mut self, index: u32, size: u64, to: u32) {
        self.used_bytes -= size;
        if let Some(life) = self.known.get_mut(index as usize) {
            life.to = to;
        }
    }

    fn conclude(mut self, device: u32) -> Bounds {
        let packed_bytes = (self.known.len() <= MAX_PACKED).then(|| best_packing(&mut self.known));
        Bounds { device, packed_bytes, ..self.bounds }
    }
}

/// Bounds by device; sizes are rounded by these settings.
#[must_use]
pub fn bounds(requests: &Requests, settings: &Settings) -> Vec<Bounds> {
    let mut devices: Vec<Lives> = requests.devices.iter().map(|_| Lives::default()).collect();
    // Device, index among its blocks, and size, by slot.
    let mut live: Vec<(u8, u32, u64)> = Vec::new();
    let mut slots = Slots::default();
    let (mut moment, mut number) = (0_u32, 0);
    for op in requests.words.iter() {
        moment = moment.saturating_add(1);
        match op {
            Op::Alloc { lane, asked } => {
                let device = requests.lanes[usize::from(lane)].device;
                let (slot, size) = (slots.take() as usize, settings.round(asked));
                if slot >= live.len() {
                    live.resize(slot + 1, (0, 0, 0));
                }
                live[slot] = (device, devices[usize::from(device)].begins(moment, size, number), size);
                number += 1;
            }
            // A block that streams still use: an allocator that waits for them needs no more.
            Op::Free { slot } | Op::FreeInUse { slot } => {
                if let Some(&(device, index, size)) = live.get(slot as usize) {
                    devices[usize::from(device)].ends(index, size, moment);
                }
                if matches!(op, Op::Free { .. }) {
                    slots.give_back(slot);
                }
            }
            Op::Returned { slot } => slots.give_back(slot),
            _ => {}
        }
    }
    devices.into_iter().zip(&requests.devices).map(|(lives, device)| lives.conclude(*device)).collect()
}

/// The lowest of four orders: as they came, by size, by size and time, by time.
fn best_packing(lives: &mut [Life]) -> u64 {
    let mut best = pack(lives);
    let keys: [fn(&Life) -> u128; 3] = [
        |life| u128::from(life.size),
        |life| u128::from(life.size) * u128::from(life.to - life.from),
        |life| u128::from(life.to - life.from),
    ];
    for key in keys {
        lives.sort_by_key(|life| (std::cmp::Reverse(key(life)), life.from));
        best = best.min(pack(lives));
    }
    best
}

/// First fit: each block at the lowest address that is free for all of its life.
fn pack(lives: &[Life]) -> u64 {
    let mut placed: Vec<(Life, u64)> = Vec::with_capacity(lives.len());
    let mut busy: Vec<(u64, u64)> = Vec::new();
    let mut height = 0;
    for life in lives {
        busy.clear();
        let meets = |(other, _): &&(Life, u64)| other.from < life.to && life.from < other.to;
        busy.extend(placed.iter().filter(meets).map(|(other, at)| (*at, at + other.size)));
        busy.sort_unstable();
        let mut at = 0;
        for (start, end) in &busy {
            if *start >= at + life.size {
                break;
            }
            at = at.max(*end);
        }
        placed.push((*life, at));
        height = height.max(at + life.size);
    }
    height
}

/// In whole pages, as the driver gives memory.
#[must_use]
pub(super) const fn in_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(2 * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(from: u32, to: u32, size: u64) -> Life {
        Life { from, to, size }
    }

    /// Three blocks of 2, 1 and 2, the middle one ending first, then one of 3: in their order the last one needs 8, as
    /// no 3 below are free; by size it comes first, and 7 suffices, which are live at once.
    #[test]
    fn packing_takes_the_best_order() {
        let mut lives = vec![life(1, 9, 2), life(2, 4, 1), life(3, 9, 2), life(5, 9, 3)];
        assert_eq!(pack(&lives), 8);
        assert_eq!(best_packing(&mut lives), 7);
    }

    /// Blocks that never meet share their addresses.
    #[test]
    fn what_never_meets_shares() {
        assert_eq!(pack(&[life(1, 2, 5), life(2, 3, 5), life(3, 4, 6)]), 6);
    }
}
