//! What the driver leaves of a device to the process: what other processes hold is not there, and may change.

use super::words::{Op, Words};
use crate::whatif::device::PAGE_BYTES;

/// Refusals that are kept; behind them the last limit stays.
const MAX_REFUSALS: usize = 1 << 16;

/// The driver refused memory.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// Place kept in the list.
    at: usize,
    device: u8,
    left_bytes: u64,
}

/// Limits by time. Where they are one and the same, the list has none.
#[derive(Debug, Default)]
pub(super) struct Limits {
    refusals: Vec<Refusal>,
    /// By device, as far as more was refused.
    left_bytes: Vec<Option<u64>>,
    vary: bool,
}

impl Limits {
    /// A process that holds that much was refused more; gives the bytes that it cannot have.
    pub(super) fn refused(&mut self, device: u8, held_bytes: u64, size_bytes: u64, words: &mut Words) -> u64 {
        let above_bytes = held_bytes.saturating_add(size_bytes.next_multiple_of(PAGE_BYTES));
        if self.refusals.len() < MAX_REFUSALS {
            let left_bytes = above_bytes.saturating_sub(1);
            self.refusals.push(Refusal { at: words.push(Op::Nothing { words: 3 }), device, left_bytes });
            *self.left(device) = Some(left_bytes);
        }
        above_bytes
    }

    /// The process holds that much now: if that is more than was left, another one has given memory back.
    pub(super) fn holds(&mut self, device: u8, held_bytes: u64, words: &mut Words) {
        if self.left(device).take_if(|left| held_bytes > *left).is_some() {
            self.vary = true;
            words.push(Op::Limit { device, bytes: u64::MAX });
        }
    }

    /// Completes the list; gives whether it has limits.
    pub(super) fn conclude(self, words: &mut Words) -> bool {
        if self.vary {
            for Refusal { at, device, left_bytes: bytes } in self.refusals {
                words.replace(at, Op::Limit { device, bytes });
            }
        }
        self.vary
    }

    fn left(&mut self, device: u8) -> &mut Option<u64> {
        let index = usize::from(device);
        if index >= self.left_bytes.len() {
            self.left_bytes.resize(index + 1, None);
        }
        &mut self.left_bytes[index]
    }
}
