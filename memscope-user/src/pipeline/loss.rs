//! What was seen and not reported, as lines.

use std::collections::BTreeMap;

use memscope_common::Miss;
use memscope_common::miss::{ALL, MISSES_PER_ROW};

use super::rows::Rows;
use crate::capture::LossCount;
use crate::model::LossLine;

/// Counters of this stage itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// Bytes that are no record.
    pub(super) undecodable: u64,
    /// Records of a kind, or notes, that this version does not know.
    pub(super) unknown: u64,
    /// Calls of unknown rows, or with arguments that could not be read.
    pub(super) unusable: u64,
    /// Parts of texts whose beginning was lost.
    pub(super) stray_texts: u64,
    /// Texts whose memory could not be read.
    pub(super) unreadable_texts: u64,
    /// Tensors that could not be read, or for which there was no room in their record.
    pub(super) tensors: u64,
    /// Calls whose stack's frames were lost.
    pub(super) lost_stacks: u64,
    /// Records of a function that is not the one that was looked for.
    pub(super) mislocated: u64,
    /// Events for which the block table had no room.
    pub(super) blocks_full: u64,
    /// Events of processes for which the process table had no room.
    pub(super) processes_full: u64,
    /// Rows that no output could take.
    pub(super) unwritten: u64,
    /// Records that came after younger ones had left; they are reported, with a later time.
    pub(super) late: u64,
    /// Records that left before their time because the window was full; they are reported, order may suffer.
    pub(super) overfull: u64,
}

/// Totals of the kernel side.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<(u16, u32), u64>);

impl Losses {
    /// Takes newer totals.
    pub(super) fn update(&mut self, counts: &[LossCount]) {
        for LossCount { row, reason, count } in counts {
            if *reason < MISSES_PER_ROW {
                self.0.insert((*row, *reason), *count);
            }
        }
    }

    /// Records that the transport had no room for.
    pub(super) fn lost(&self) -> u64 {
        let ring_full =
            |((_, reason), count): (&(u16, u32), &u64)| (*reason == Miss::RingFull as u32).then_some(*count);
        self.0.iter().filter_map(ring_full).fold(0, u64::saturating_add)
    }

    /// All that is not zero: the kernel side by row and reason, then `own`.
    pub(super) fn lines(&self, rows: &Rows, own: &Own) -> Vec<LossLine> {
        let kernel = self.0.iter().filter_map(|((row, reason), count)| {
            let (layer, symbol) = match rows.get(*row) {
                Some(info) => (info.layer.name(), info.symbol.clone()),
                None if *row == 0 => ("trace", "processes".to_owned()),
                None => ("unknown", format!("row {row}")),
            };
            Some(line(layer, symbol, reason_text(*reason)?, *count))
        });
        let own = [
            ("not decodable", own.undecodable),
            ("unknown kind", own.unknown),
            ("arguments not usable", own.unusable),
            ("text without beginning", own.stray_texts),
            ("text not readable", own.unreadable_texts),
            ("tensor not readable", own.tensors),
            ("stack without its frames", own.lost_stacks),
            ("from a function that was located wrongly", own.mislocated),
            ("block table full", own.blocks_full),
            ("process table full", own.processes_full),
            ("not written", own.unwritten),
            ("late", own.late),
            ("order window full", own.overfull),
        ];
        let own = own.into_iter().map(|(reason, count)| line("reader", "records".to_owned(), reason, count));
        kernel.chain(own).filter(|line| line.count > 0).collect()
    }
}

fn line(layer: &str, symbol: String, reason: &str, count: u64) -> LossLine {
    LossLine { layer: layer.to_owned(), symbol, reason: reason.to_owned(), count }
}

/// The reason in words; `None` for what is no loss.
fn reason_text(reason: u32) -> Option<&'static str> {
    let Some(miss) = ALL.into_iter().find(|miss| *miss as u32 == reason) else {
        return Some("unknown reason");
    };
    Some(match miss {
        Miss::RingFull => "ring full",
        Miss::ThreadsFull => "thread table full",
        Miss::TooDeep => "calls nested too deep",
        Miss::Fault => "memory not readable",
        Miss::UnknownReturn => "entered before attach",
        Miss::NoReturn => "never returned",
        Miss::Nested | Miss::Thrown => return None,
        Miss::ProcessesFull => "process table full",
        Miss::StopFailed => "process not stopped",
        Miss::UnknownRow => "unknown row",
        Miss::HandlerTaken => "watched blocks not looked at: the program handles or ignores SIGURG itself",
        Miss::NotHeld => "process went on before new libraries were probed",
        Miss::NotWatched => "watched blocks not looked at: inside of the runtime, or while a graph is captured",
        Miss::StackBusy => "call stack of one frame: too many at once",
        Miss::TooMany => "list longer than is looked at",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{row, rows};

    /// The last totals count; nested calls are no loss, zeros are left out, unknown numbers are shown as such.
    #[test]
    fn lines_are_readable() {
        let alloc = row("halMemAlloc");
        let mut losses = Losses::default();
        let count = |row, reason, count| LossCount { row, reason, count };
        losses.update(&[count(alloc, Miss::RingFull as u32, 3), count(alloc, Miss::Nested as u32, 9)]);
        losses.update(&[count(alloc, Miss::RingFull as u32, 5), count(0, Miss::ProcessesFull as u32, 1)]);
        losses.update(&[count(alloc, Miss::Fault as u32, 0), count(500, 31, 2), count(1, u32::MAX, 7)]);
        let lines = losses.lines(&Rows::new(rows()), &Own { late: 4, ..Own::default() });
        let lines: Vec<_> =
            lines.iter().map(|l| format!("{} {} {} {}", l.layer, l.symbol, l.reason, l.count)).collect();
        assert_eq!(
            lines,
            [
                "trace processes process table full 1",
                "hal halMemAlloc ring full 5",
                "unknown row 500 unknown reason 2",
                "reader records late 4",
            ]
        );
        assert_eq!(losses.lost(), 5);
    }
}
