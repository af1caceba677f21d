//! Losses as lines: what was seen and not reported.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use memscope_common::Miss;
use memscope_common::miss::{ALL, MISSES_PER_ROW};

use super::domains;
use super::rows::{Probe, Rows};
use crate::capture::LossCount;
use crate::model::{Figures, LossLine, TENSOR_NOT_READABLE};

/// Counters of this stage itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// Bytes that are no record.
    pub(super) undecodable: u64,
    /// Records of a kind, or notes, that this version does not know.
    pub(super) unknown: u64,
    /// Calls of unknown rows, or with arguments that could not be read.
    pub(super) unusable: u64,
    /// Parts of texts with a lost beginning.
    pub(super) stray_texts: u64,
    /// Texts in unreadable memory.
    pub(super) unreadable_texts: u64,
    /// Tensors that were unreadable, or did not fit into their record.
    pub(super) tensors: u64,
    /// Calls with lost frames of their stack.
    pub(super) lost_stacks: u64,
    /// Records of a function that was located wrongly.
    pub(super) mislocated: u64,
    /// Events beyond the limit of the block table.
    pub(super) blocks_full: u64,
    /// Events of processes beyond the limit of the process table.
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
pub(super) struct Losses {
    counts: BTreeMap<(u16, u32), u64>,
    late: Late,
}

/// Number of times that a process went on before its new libraries were probed, and the kinds of their calls.
#[derive(Debug, Default)]
struct Late {
    times: u64,
    rows: BTreeSet<u16>,
    operators: bool,
    /// Processes that ended before they were examined. Those without a call of their own have no figures to touch.
    gone: BTreeSet<u32>,
    /// Processes with calls, each since its number was first seen.
    working: BTreeSet<u32>,
}

impl Losses {
    /// Takes newer totals.
    pub(super) fn update(&mut self, counts: &[LossCount]) {
        for LossCount { row, reason, count } in counts {
            if *reason < MISSES_PER_ROW {
                self.counts.insert((*row, *reason), *count);
            }
        }
    }

    /// A process went on before these rows were placed in its new libraries.
    pub(super) fn late(&mut self, rows: &[u16], operators: bool, gone: Option<u32>) {
        self.late.times += 1;
        self.late.gone.extend(gone);
        self.late.rows.extend(rows);
        self.late.operators |= operators;
    }

    /// A process has made its first call.
    pub(super) fn works(&mut self, pid: u32) {
        self.late.working.insert(pid);
    }

    /// Figures of calls that a process may have made before it was examined: those of its new libraries, if they are
    /// known for each time.
    fn touched_by_late(&self, rows: &Rows) -> Cow<'static, [Figures]> {
        let is_of_process = |reason: u32| [Miss::NotHeld as u32, Miss::StopFailed as u32].contains(&reason);
        let times: u64 =
            self.counts.iter().filter(|((_, reason), _)| is_of_process(*reason)).map(|(_, count)| count).sum();
        if self.late.times < times || !self.late.gone.is_disjoint(&self.late.working) {
            return FIGURES_OF_CALLS.into();
        }
        let mut touched = BTreeSet::new();
        for row in &self.late.rows {
            let figures = rows.get(*row).map_or(FIGURES_OF_CALLS, |probe| domains::figures(probe.info.meaning));
            touched.extend(figures);
        }
        if self.late.operators {
            touched.insert(Figures::Operators);
        }
        touched.into_iter().collect::<Vec<_>>().into()
    }

    /// Records that the transport had no room for.
    pub(super) fn lost(&self) -> u64 {
        let ring_full =
            |((_, reason), count): (&(u16, u32), &u64)| (*reason == Miss::RingFull as u32).then_some(*count);
        self.counts.iter().filter_map(ring_full).fold(0, u64::saturating_add)
    }

    /// All counts above zero: the kernel side's by row and reason, then `own`.
    pub(super) fn lines(&self, rows: &Rows, own: &Own) -> Vec<LossLine> {
        let kernel = self.counts.iter().filter_map(|((row, reason), count)| {
            let of_processes = [Miss::NotHeld as u32, Miss::StopFailed as u32].contains(reason) || *row == 0;
            let (layer, symbol, of_row) = match rows.get(*row) {
                Some(Probe { info, .. }) => (info.layer.name(), info.symbol.clone(), domains::figures(info.meaning)),
                // A loader's row is no row of the trace.
                None if of_processes => ("trace", "processes".to_owned(), ALL_FIGURES),
                None => ("unknown", format!("row {row}"), ALL_FIGURES),
            };
            let Some(miss) = ALL.into_iter().find(|miss| *miss as u32 == *reason) else {
                return Some(line(layer, symbol, "unknown reason", *count, ALL_FIGURES));
            };
            let (reason, reach) = consequence(miss)?;
            let touches: Cow<'static, [Figures]> = match reach {
                Reach::Nothing => Cow::Borrowed(&[]),
                Reach::Row => of_row.into(),
                Reach::Only(figures) => figures.into(),
                Reach::Late => self.touched_by_late(rows),
            };
            Some(line(layer, symbol, reason, *count, touches))
        });
        let own = own.lines().into_iter();
        let own = own.map(|(reason, count, touches)| line("reader", "records".to_owned(), reason, count, touches));
        let mut lines: Vec<LossLine> = Vec::new();
        for line in kernel.chain(own).filter(|line| line.count > 0) {
            // Loaders have a row each.
            let is_same = |known: &&mut LossLine| {
                (&known.layer, &known.symbol, &known.reason) == (&line.layer, &line.symbol, &line.reason)
            };
            match lines.iter_mut().find(is_same) {
                Some(known) => known.count = known.count.saturating_add(line.count),
                None => lines.push(line),
            }
        }
        lines
    }
}

fn line(
    layer: &str,
    symbol: String,
    reason: &str,
    count: u64,
    touches: impl Into<Cow<'static, [Figures]>>,
) -> LossLine {
    LossLine { layer: layer.to_owned(), symbol, reason: reason.to_owned(), count, touches: touches.into() }
}

/// The figures that a reason may affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// No figure: what began before the trace is older than it.
    Nothing,
    /// Those of the row's calls.
    Row,
    /// These alone.
    Only(&'static [Figures]),
    /// Those of the libraries that a process had mapped before they were probed.
    Late,
}

/// Each reason in words, and the figures it may affect; `None` for reasons that are no loss.
const fn consequence(miss: Miss) -> Option<(&'static str, Reach)> {
    const ANY: Reach = Reach::Only(ALL_FIGURES);
    Some(match miss {
        Miss::RingFull => ("ring full", Reach::Row),
        Miss::ThreadsFull => ("thread table full", Reach::Row),
        Miss::TooDeep => ("calls nested too deep", Reach::Row),
        Miss::Fault => ("memory not readable", Reach::Row),
        Miss::UnknownReturn => ("entered before attach", Reach::Nothing),
        Miss::NoReturn => ("never returned", Reach::Row),
        Miss::Nested | Miss::Thrown | Miss::Held | Miss::Stopped => return None,
        Miss::ProcessesFull => ("process table full", ANY),
        Miss::StopFailed => ("process not stopped", Reach::Late),
        Miss::UnknownRow => ("unknown row", ANY),
        Miss::HandlerTaken => (
            "watched blocks not looked at: the program handles or ignores SIGURG itself",
            Reach::Only(&[Figures::Watch]),
        ),
        Miss::NotHeld => ("process went on before new libraries were probed", Reach::Late),
        Miss::NotWatched => (
            "watched blocks not looked at: inside of the runtime, or while a graph is captured",
            Reach::Only(&[Figures::Watch]),
        ),
        Miss::StackBusy => {
            ("call stack of one frame: too many at once", Reach::Only(&[Figures::Owners, Figures::Stacks]))
        }
        Miss::StackLeftOut => {
            ("no call stack: the tracer was behind", Reach::Only(&[Figures::Owners, Figures::Stacks]))
        }
        Miss::TooMany => ("list longer than is looked at", Reach::Row),
    })
}

/// Of unseen calls of any library. The stacks of seen ones are whole.
const FIGURES_OF_CALLS: &[Figures] = &[
    Figures::Memory,
    Figures::Failures,
    Figures::Launches,
    Figures::Marks,
    Figures::Operators,
    Figures::Owners,
    Figures::PythonTrace,
    Figures::Watch,
    Figures::Rows,
];

/// For reasons without a known extent.
const ALL_FIGURES: &[Figures] = &Figures::ALL;

impl Own {
    /// Each reason in words, its count, and the figures it may affect.
    const fn lines(&self) -> [(&'static str, u64, &'static [Figures]); 13] {
        use Figures::{Launches, Marks, Memory, Operators, Owners, Rows, Stacks};
        [
            ("not decodable", self.undecodable, ALL_FIGURES),
            ("unknown kind", self.unknown, ALL_FIGURES),
            ("arguments not usable", self.unusable, ALL_FIGURES),
            ("text without beginning", self.stray_texts, &[Launches, Marks, Operators]),
            ("text not readable", self.unreadable_texts, &[Launches, Marks, Operators]),
            (TENSOR_NOT_READABLE, self.tensors, &[Operators]),
            ("stack without its frames", self.lost_stacks, &[Owners, Stacks]),
            ("from a function that was located wrongly", self.mislocated, &[Memory]),
            ("block table full", self.blocks_full, &[Memory]),
            ("process table full", self.processes_full, ALL_FIGURES),
            ("not written", self.unwritten, &[Rows]),
            ("late", self.late, ALL_FIGURES),
            ("order window full", self.overfull, ALL_FIGURES),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::current;
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
        losses.update(&[count(501, Miss::NotHeld as u32, 6), count(502, Miss::NotHeld as u32, 1)]);
        let lines = losses.lines(&Rows::new(current(), rows()), &Own { late: 4, ..Own::default() });
        let lines: Vec<_> =
            lines.iter().map(|l| format!("{} {} {} {}", l.layer, l.symbol, l.reason, l.count)).collect();
        assert_eq!(
            lines,
            [
                "trace processes process table full 1",
                "hal halMemAlloc ring full 5",
                "unknown row 500 unknown reason 2",
                "trace processes process went on before new libraries were probed 7",
                "reader records late 4",
            ]
        );
        assert_eq!(losses.lost(), 5);
    }

    fn touched(row: u16, miss: Miss) -> Vec<Figures> {
        let mut losses = Losses::default();
        losses.update(&[LossCount { row, reason: miss as u32, count: 1 }]);
        let lines = losses.lines(&Rows::new(current(), rows()), &Own::default());
        lines.iter().flat_map(|line| line.touches.iter()).copied().collect()
    }

    /// A loss affects the figures of its calls, and no more; a call entered before the attach counts as older than the
    /// trace.
    #[test]
    fn losses_touch_what_they_may() {
        use Figures::{Failures, Launches, Marks, Memory, Operators, Owners, PythonTrace, Rows, Stacks, Watch};
        let calls = [Memory, Failures, Launches, Marks, Operators, Owners, PythonTrace, Watch, Rows];
        let [alloc, launch, mark] = ["halMemAlloc", "rtKernelLaunch", "mstxMarkA"].map(row);
        for (row, miss, expected) in [
            (alloc, Miss::RingFull, &[Memory][..]),
            (alloc, Miss::ThreadsFull, &[Memory]),
            (alloc, Miss::TooDeep, &[Memory]),
            (alloc, Miss::Fault, &[Memory]),
            (alloc, Miss::NoReturn, &[Memory]),
            (alloc, Miss::TooMany, &[Memory]),
            (alloc, Miss::UnknownReturn, &[]),
            (alloc, Miss::Nested, &[]),
            (alloc, Miss::Thrown, &[]),
            (alloc, Miss::StackBusy, &[Owners, Stacks]),
            (alloc, Miss::StackLeftOut, &[Owners, Stacks]),
            (alloc, Miss::UnknownRow, &Figures::ALL),
            (launch, Miss::RingFull, &[Launches, Failures]),
            (launch, Miss::UnknownReturn, &[]),
            (mark, Miss::RingFull, &[Marks]),
            (0, Miss::ProcessesFull, &Figures::ALL),
            (0, Miss::StopFailed, &calls),
            (0, Miss::NotHeld, &calls),
            (0, Miss::NotWatched, &[Watch]),
            (0, Miss::HandlerTaken, &[Watch]),
        ] {
            assert_eq!(touched(row, miss), expected, "{miss:?} of row {row}");
        }
    }

    /// Calls that a process made before it was examined are those of its new libraries: a library of marks leaves
    /// memory figures intact. Where the libraries of one time are unknown, all figures are affected.
    #[test]
    fn late_libraries_touch_what_they_have() {
        use Figures::{Marks, Memory, Operators};
        let [alloc, mark] = ["halMemAlloc", "mstxMarkA"].map(row);
        let touched = |late: &[(&[u16], bool)], times: u64| {
            let mut losses = Losses::default();
            losses.update(&[LossCount { row: 500, reason: Miss::NotHeld as u32, count: times }]);
            for (rows, operators) in late {
                losses.late(rows, *operators, None);
            }
            let [line] = &losses.lines(&Rows::new(current(), rows()), &Own::default())[..] else { panic!("one line") };
            line.touches.to_vec()
        };
        assert_eq!(touched(&[(&[mark], false)], 1), [Marks]);
        assert_eq!(touched(&[(&[mark], false), (&[alloc, mark], true)], 2), [Memory, Marks, Operators]);
        assert_eq!(touched(&[(&[], false)], 1), []);
        assert_eq!(touched(&[(&[mark], false)], 2), FIGURES_OF_CALLS);
        assert_eq!(touched(&[], 1), FIGURES_OF_CALLS);
        assert_eq!(touched(&[(&[999], false)], 1).len(), FIGURES_OF_CALLS.len());
    }

    /// Nothing is known of the libraries of a process that was gone before it was examined. If it made a call, others may
    /// be missing; one without calls has no figures.
    #[test]
    fn processes_that_are_gone_touch_their_own_figures() {
        let touched = |working: &[u32]| {
            let mut losses = Losses::default();
            losses.update(&[LossCount { row: 0, reason: Miss::StopFailed as u32, count: 2 }]);
            losses.late(&[], false, Some(7));
            losses.late(&[], false, Some(8));
            for pid in working {
                losses.works(*pid);
            }
            let [line] = &losses.lines(&Rows::new(current(), rows()), &Own::default())[..] else { panic!("one line") };
            assert_eq!(line.count, 2);
            line.touches.to_vec()
        };
        assert_eq!(touched(&[]), []);
        assert_eq!(touched(&[1, 9]), []);
        assert_eq!(touched(&[1, 8]), FIGURES_OF_CALLS);
    }
}
