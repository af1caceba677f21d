//! Holds the rows of a run of `torch_npu` against its own account, to the byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::harness::rows::Row;

use super::pool::{Block, Change, Driver, Pool};
use super::table::Table;
use super::truth::{Action, Mark, Operation, Truth};

/// What the text of a mark begins with in the rows.
const MARK: &str = "truth ";

/// Where the trace begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the process: all there is, is in the rows.
    Process,
    /// At this mark, in a process that has blocks and segments already: totals are right, older blocks have no rows.
    Mark(String),
}

/// A trace and what it is compared with.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// Rows of the process.
    pub rows: &'a [Row],
    /// `torch_npu`'s own account.
    pub truth: &'a Truth,
    /// Where the trace begins.
    pub begin: Begin,
    /// Addresses that the runtime took for itself: no segments.
    pub runtime: BTreeSet<u64>,
}

impl Comparison<'_> {
    /// Compares all there is.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::default();
        let places = self.places();
        let first = *places.keys().next().expect("a mark");
        let inside = &self.rows[places[&first]..places[&(self.truth.marks.len() - 1)]];
        let begin = &self.truth.marks[first];
        for device in self.devices() {
            let operations = self.truth.operations(device, begin);
            self.order(&mut table, device, inside, operations);
        }
        self.marks(&mut table, &places);
        table
    }

    /// Devices that `torch_npu` has used.
    fn devices(&self) -> Vec<u32> {
        let used =
            |device: &u32| self.truth.marks.iter().any(|mark| mark.stat(*device, "allocation.all.allocated") > 0);
        self.truth.marks[0].devices.keys().copied().filter(used).collect()
    }

    /// Where the marks stand among the rows, by their number. Each stands there once, in order, from the beginning on.
    fn places(&self) -> BTreeMap<usize, usize> {
        let names: Vec<&str> = self.truth.marks.iter().map(|mark| mark.name.as_str()).collect();
        let first = match &self.begin {
            Begin::Process => 0,
            Begin::Mark(name) => names.iter().position(|other| other == name).expect("the mark of the beginning"),
        };
        let is_mark = |row: &Row| row.event == "MSTX" && row.event_type == "Mark";
        let found: Vec<(usize, &str)> = (0..)
            .zip(self.rows)
            .filter(|(_, row)| is_mark(row))
            .filter_map(|(place, row)| Some((place, row.name.as_deref()?.strip_prefix(MARK)?)))
            .collect();
        let found_names: Vec<&str> = found.iter().map(|(_, name)| *name).collect();
        assert_eq!(found_names, names[first..], "marks in the rows, and marks of the program");
        (first..).zip(found.into_iter().map(|(place, _)| place)).collect()
    }

    /// The sequence of operations and addresses.
    fn order(&self, table: &mut Table, device: u32, rows: &[Row], operations: &[Operation]) {
        let blocks: Vec<Block<'_>> = rows.iter().filter_map(Block::of).filter(|block| block.device == device).collect();
        for (what, change, action, older) in [
            // A free of a block that is not known is counted, and no row; that it came back to the pool is one.
            ("free", Change::Free, Action::FreeRequested, self.older(device, Action::FreeRequested)),
            ("block free", Change::BlockFree, Action::FreeCompleted, BTreeMap::new()),
        ] {
            let wanted: Vec<(Change, u64)> = known(operations, action, &older)
                .map(|operation| (if operation.action == action { change } else { Change::Alloc }, operation.addr))
                .collect();
            let found: Vec<(Change, u64)> = blocks
                .iter()
                .filter(|block| block.pool == Pool::Caching && [Change::Alloc, change].contains(&block.change))
                .map(|block| (block.change, block.addr))
                .collect();
            let compared = format!("{} operations", wanted.len());
            table.add(format!("order of malloc and {what}, device {device}"), compared, difference(&wanted, &found));
        }
        if self.begin == Begin::Process {
            self.segments(table, device, operations);
        }
    }

    /// Blocks that live at the beginning, of which the rows know nothing: their address, and what was asked for. They end
    /// with `end`.
    fn older(&self, device: u32, end: Action) -> BTreeMap<u64, u64> {
        let Begin::Mark(name) = &self.begin else { return BTreeMap::new() };
        let begin = self.truth.marks.iter().find(|mark| mark.name == *name).expect("the mark of the beginning");
        let mut live = BTreeMap::new();
        for operation in &self.truth.history[device as usize][..begin.history[device as usize]] {
            if operation.action == Action::Alloc {
                live.insert(operation.addr, operation.size);
            } else if operation.action == end {
                live.remove(&operation.addr);
            }
        }
        live
    }

    /// The sequence of segments that come and go.
    fn segments(&self, table: &mut Table, device: u32, operations: &[Operation]) {
        let wanted: Vec<(bool, u64, u64)> = operations
            .iter()
            .filter(|operation| matches!(operation.action, Action::SegmentAlloc | Action::SegmentFree))
            .map(|operation| (operation.action == Action::SegmentAlloc, operation.addr, operation.size))
            .collect();
        let places = self.places();
        let (begin, end) = (places[&0], places[&(self.truth.marks.len() - 1)]);
        let workspaces = self.workspaces();
        let mut driver = Driver::default();
        let mut found = Vec::new();
        for (place, row) in self.rows[..end].iter().enumerate() {
            let Some((on, is_begin, segment)) = driver.see(row) else { continue };
            let meant = on == device && place > begin && !segment.physical;
            if meant && !self.runtime.contains(&segment.addr) && !workspaces.contains(&segment.addr) {
                found.push((is_begin, segment.addr, segment.size));
            }
        }
        let compared = format!("{} segments", wanted.len());
        table.add(format!("order of segments, device {device}"), compared, difference(&wanted, &found));
    }

    /// Addresses that the workspace allocator has taken from the driver.
    fn workspaces(&self) -> BTreeSet<u64> {
        let blocks = self.rows.iter().filter_map(Block::of);
        blocks.filter(|block| block.pool == Pool::Workspace).map(|block| block.addr).collect()
    }

    /// The figures at every mark.
    fn marks(&self, table: &mut Table, places: &BTreeMap<usize, usize>) {
        let workspaces = self.workspaces();
        let mut figures = Figures::default();
        let mut states: BTreeMap<u32, State> = BTreeMap::new();
        let mut driver = Driver::default();
        let first = *places.keys().next().expect("a mark");
        if self.begin != Begin::Process {
            let begin = &self.truth.marks[first];
            let wishes = |device| self.older(device, Action::FreeCompleted);
            let state = |device| (device, State::at(begin, device, wishes(device)));
            states.extend(self.devices().into_iter().map(state));
        }
        let mut rows = self.rows[..].iter();
        let mut seen = if self.begin == Begin::Process { 0 } else { places[&first] };
        rows.by_ref().take(seen).for_each(drop);
        for (number, place) in places {
            for row in rows.by_ref().take(place + 1 - seen) {
                if let Some(block) = Block::of(row).filter(|block| block.pool == Pool::Caching) {
                    states.entry(block.device).or_default().see(&block);
                }
                if let Some((device, is_begin, segment)) = driver.see(row) {
                    let state = states.entry(device).or_default();
                    if workspaces.contains(&segment.addr) {
                        state.workspace(is_begin, segment.size);
                    } else if !self.runtime.contains(&segment.addr) {
                        state.segment(is_begin, segment.size, segment.physical);
                    }
                }
            }
            seen = place + 1;
            let mark = &self.truth.marks[*number];
            for device in self.devices() {
                let state = states.entry(device).or_default();
                self.figures(&mut figures, mark, device, state);
            }
        }
        figures.write(table);
    }

    fn figures(&self, figures: &mut Figures, mark: &Mark, device: u32, state: &State) {
        let stat = |key: &str| mark.stat(device, key);
        let mut at = |what, wanted: u64, found: Option<u64>| figures.see(what, mark, device, wanted, found);
        let last = state.last.as_ref();
        let allocated = stat("allocated_bytes.all.current");
        at("allocated: `used` of the last row", allocated, last.map(|last| last.used));
        let active = stat("active_bytes.all.current");
        at("active: sum of the blocks", active, Some(state.active));
        at("requested: sum of the blocks", stat("requested_bytes.all.current"), Some(state.requested));
        at("active: `active` of the last row that has it", active, state.last_active);
        let reserved = stat("reserved_bytes.all.current");
        if self.begin == Begin::Process {
            at("allocated: sum of the blocks", allocated, Some(state.allocated));
            at("allocated at most: by the blocks", stat("allocated_bytes.all.peak"), Some(state.allocated_peak));
            at("blocks handed out", stat("allocation.all.allocated"), Some(state.handed_out));
            at("blocks given back", stat("allocation.all.freed"), Some(state.given_back));
            at("reserved: segments of the driver", reserved, Some(state.reserved));
            at("reserved at most: by the driver", stat("reserved_bytes.all.peak"), Some(state.reserved_peak));
            at("segments", stat("segment.all.current"), Some(state.segments));
            let spaces = mark.workspaces.get(device as usize).map_or(0, |spaces| spaces.values().sum());
            at("workspaces: segments of the driver", spaces, Some(state.workspaces));
        } else {
            at("segments taken since then", stat("segment.all.allocated"), Some(state.segments_taken));
        }
        // The pool's own figure is as old as its last report; what it gave back since then is in the driver's rows.
        if self.begin == Begin::Process || self.is_settled(mark, device) {
            let corrected = last.and_then(|last| last.reserved.checked_add_signed(state.reserved_since));
            at("reserved: `total` of the last row", reserved, corrected);
        }
    }

    /// Whether nothing was given back to the driver between the last operation on a block and the mark.
    fn is_settled(&self, mark: &Mark, device: u32) -> bool {
        let history = &self.truth.history[device as usize][..mark.history[device as usize]];
        let last = history.last().map(|operation| operation.action);
        !matches!(last, Some(Action::SegmentFree | Action::SegmentUnmap))
    }
}

/// What the rows so far make of a device.
#[derive(Clone, Debug, Default)]
struct State {
    allocated: u64,
    allocated_peak: u64,
    handed_out: u64,
    given_back: u64,
    active: u64,
    /// What was asked for of the active blocks.
    requested: u64,
    /// The same of each active block.
    wishes: BTreeMap<u64, u64>,
    reserved: u64,
    reserved_peak: u64,
    segments: u64,
    segments_taken: u64,
    workspaces: u64,
    /// Of the last row about a block.
    last: Option<Last>,
    /// By the last row that reports it, and the bytes handed out since then.
    last_active: Option<u64>,
    /// What the driver has given out since that row, less what it got back.
    reserved_since: i64,
}

/// The totals of a row.
#[derive(Clone, Debug)]
struct Last {
    used: u64,
    reserved: u64,
}

impl State {
    /// At a mark, by `torch_npu`'s own account.
    fn at(mark: &Mark, device: u32, wishes: BTreeMap<u64, u64>) -> Self {
        Self {
            allocated: mark.stat(device, "allocated_bytes.all.current"),
            active: mark.stat(device, "active_bytes.all.current"),
            requested: mark.stat(device, "requested_bytes.all.current"),
            wishes,
            segments_taken: mark.stat(device, "segment.all.allocated"),
            ..Self::default()
        }
    }

    fn see(&mut self, block: &Block<'_>) {
        let number = |key: &str| block.row.number(key);
        // Below nothing is different from all that can be: it shows at the next mark.
        match block.change {
            Change::Alloc => {
                self.allocated += block.size;
                self.allocated_peak = self.allocated_peak.max(self.allocated);
                self.handed_out += 1;
                self.active += block.size;
                self.last_active = self.last_active.map(|active| active + block.size);
                let wish = number("requested");
                self.requested += wish;
                self.wishes.insert(block.addr, wish);
            }
            Change::Free => {
                self.allocated = self.allocated.wrapping_sub(block.size);
                self.given_back += 1;
            }
            Change::BlockFree => {
                self.active = self.active.wrapping_sub(block.size);
                self.last_active = Some(number("active"));
                let wish = self.wishes.remove(&block.addr).unwrap_or(0);
                self.requested = self.requested.wrapping_sub(wish);
            }
        }
        self.last = Some(Last { used: number("used"), reserved: number("total") });
        self.reserved_since = 0;
    }

    fn workspace(&mut self, is_begin: bool, size: u64) {
        let sum = if is_begin { self.workspaces.checked_add(size) } else { self.workspaces.checked_sub(size) };
        self.workspaces = sum.unwrap_or(u64::MAX);
    }

    fn segment(&mut self, is_begin: bool, size: u64, physical: bool) {
        let signed = i64::try_from(size).expect("a size");
        let counted = u64::from(!physical);
        if is_begin {
            self.reserved += size;
            self.reserved_peak = self.reserved_peak.max(self.reserved);
            self.segments += counted;
            self.segments_taken += counted;
            self.reserved_since += signed;
        } else {
            self.reserved = self.reserved.wrapping_sub(size);
            self.segments = self.segments.wrapping_sub(counted);
            self.reserved_since -= signed;
        }
    }
}

/// Figures at marks: how often each was compared, and where it was first different.
#[derive(Debug, Default)]
struct Figures(BTreeMap<&'static str, (usize, Option<String>)>);

impl Figures {
    /// A figure that the rows do not have yet is not compared.
    fn see(&mut self, what: &'static str, mark: &Mark, device: u32, wanted: u64, found: Option<u64>) {
        let (compared, first) = self.0.entry(what).or_default();
        let Some(found) = found else { return };
        *compared += 1;
        if found != wanted && first.is_none() {
            *first = Some(format!("at mark `{}`, device {device}: torch_npu {wanted}, rows {found}", mark.name));
        }
    }

    fn write(self, table: &mut Table) {
        for (what, (compared, first)) in self.0 {
            let first = first.or_else(|| (compared == 0).then(|| "the rows never have it".to_owned()));
            table.add(what, format!("{compared} figures"), first);
        }
    }
}

/// Allocations, and frees of one kind of what was allocated since the beginning.
fn known<'a>(
    operations: &'a [Operation],
    free: Action,
    older: &BTreeMap<u64, u64>,
) -> impl Iterator<Item = &'a Operation> {
    let mut older = older.clone();
    operations.iter().filter(move |operation| match operation.action {
        Action::Alloc => true,
        action if action == free => older.remove(&operation.addr).is_none(),
        _ => false,
    })
}

/// Where two sequences first differ.
pub fn difference<T: Debug + PartialEq>(wanted: &[T], found: &[T]) -> Option<String> {
    let differs = wanted.iter().zip(found).position(|(wanted, found)| wanted != found);
    let at = differs.unwrap_or(wanted.len().min(found.len()));
    (differs.is_some() || wanted.len() != found.len()).then(|| {
        format!(
            "{} happened, {} are in the rows; number {at} was {:x?}, and in the rows {:x?}",
            wanted.len(),
            found.len(),
            wanted.get(at),
            found.get(at)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: &str = r#"[[
        {"action": "segment_alloc", "addr": 4096, "size": 2097152}, {"action": "alloc", "addr": 4096, "size": 100},
        {"action": "alloc", "addr": 4608, "size": 600}, {"action": "free_requested", "addr": 4096, "size": 100},
        {"action": "free_completed", "addr": 4096, "size": 100}
    ]]"#;

    /// The runtime's own block, the start, a segment, two blocks of which one is freed, a workspace, the end.
    const ROWS: [&str; 10] = [
        "MALLOC HAL 100000 allocation_id:1,size:4096,used:4096,alloc_type:alloc",
        "MSTX start",
        "MALLOC HAL 1000 allocation_id:2,size:2097152,used:2101248,alloc_type:alloc",
        "MALLOC PTA 1000 allocation_id:3,size:512,used:512,total:2097152,requested:100",
        "MALLOC PTA 1200 allocation_id:4,size:1024,used:1536,total:2097152,requested:600",
        "BLOCK_FREE PTA 1000 allocation_id:3,size:512,used:1024,total:2097152,active:1024",
        "FREE PTA 1000 allocation_id:3,size:512,used:1024,total:2097152",
        "MALLOC HAL 900000 allocation_id:5,size:2097152,used:4198400,alloc_type:alloc",
        "MALLOC PTA_WORKSPACE 900000 allocation_id:6,size:2097152,used:2097152,total:2097152",
        "MSTX end",
    ];

    fn row(id: usize, line: &str) -> Row {
        let cells: Vec<&str> = line.split(' ').collect();
        let is_mark = cells[0] == "MSTX";
        let ptr = (!is_mark).then(|| u64::from_str_radix(cells[2], 16).expect("an address"));
        let pairs = cells.get(3).copied().unwrap_or_default().split(',').filter_map(|pair| pair.split_once(':'));
        let mut attr: BTreeMap<String, String> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        attr.extend(ptr.map(|ptr| ("addr".to_owned(), format!("{ptr:#018x}"))));
        Row {
            id: id as u64,
            event: cells[0].to_owned(),
            event_type: if is_mark { "Mark" } else { cells[1] }.to_owned(),
            name: is_mark.then(|| format!("truth {}", cells[1])),
            time_ns: id as u64,
            pid: 7,
            tid: 7,
            device: "0".to_owned(),
            ptr,
            attr,
        }
    }

    fn mark(name: &str, figures: &[u64; 9], history: usize, workspace: u64) -> Mark {
        let keys = [
            "allocated_bytes.all.current",
            "active_bytes.all.current",
            "requested_bytes.all.current",
            "reserved_bytes.all.current",
            "segment.all.current",
            "allocation.all.allocated",
            "allocation.all.freed",
            "allocated_bytes.all.peak",
            "reserved_bytes.all.peak",
        ];
        let mut stats: BTreeMap<String, u64> =
            keys.iter().zip(figures).map(|(key, figure)| ((*key).to_owned(), *figure)).collect();
        stats.insert("segment.all.allocated".to_owned(), figures[4]);
        Mark {
            name: name.to_owned(),
            pid: 7,
            devices: BTreeMap::from([(0, stats)]),
            history: vec![history],
            workspaces: vec![BTreeMap::from([(0x90_0000, workspace)])],
        }
    }

    fn compare(lines: &[&str]) -> std::thread::Result<()> {
        let rows: Vec<Row> = lines.iter().enumerate().map(|(id, line)| row(id, line)).collect();
        std::panic::catch_unwind(|| {
            let truth = Truth {
                marks: vec![
                    mark("start", &[0; 9], 0, 0),
                    mark("end", &[1024, 1024, 600, 2_097_152, 1, 2, 1, 1536, 2_097_152], 5, 2_097_152),
                ],
                history: serde_json::from_str(TRUTH).expect("a history"),
            };
            let runtime = BTreeSet::from([0x10_0000]);
            Comparison { rows: &rows, truth: &truth, begin: Begin::Process, runtime }.table().assert_equal();
        })
    }

    /// Rows that are right pass.
    #[test]
    fn right_rows_pass() {
        compare(&ROWS).expect("equal");
    }

    /// No row may be missing, or there twice, or in its neighbour's place.
    #[test]
    fn every_row_counts() {
        for (index, row) in ROWS.iter().enumerate() {
            let mut lines = ROWS.to_vec();
            lines.remove(index);
            // Not of torch_npu's doing: the driver's rows are held against the journal.
            assert_eq!(compare(&lines).is_ok(), index == 0, "without {index}");
            let mut lines = ROWS.to_vec();
            lines.insert(index, row);
            assert_eq!(compare(&lines).is_ok(), index == 0 || row.contains("WORKSPACE"), "twice {index}");
        }
        for index in [3, 4] {
            let mut lines = ROWS.to_vec();
            lines.swap(index, index + 1);
            assert!(compare(&lines).is_err(), "swapped {index}");
        }
    }

    /// Every figure of a row is compared.
    #[test]
    fn every_figure_counts() {
        let changes = [
            (1, "start", "begin"),
            (2, "size:2097152", "size:2097120"),
            (2, "HAL 1000", "HAL 2000"),
            (2, "alloc_type:alloc", "alloc_type:create"),
            (3, "PTA 1000", "PTA 1001"),
            (3, "size:512", "size:1024"),
            (4, "requested:600", "requested:601"),
            (5, "active:1024", "active:1023"),
            (5, "size:512", "size:1024"),
            (6, "used:1024", "used:1023"),
            (6, "total:2097152", "total:2097153"),
            (7, "size:2097152", "size:4194304"),
        ];
        for (index, from, to) in changes {
            let mut lines: Vec<String> = ROWS.map(str::to_owned).to_vec();
            assert!(lines[index].contains(from), "`{from}`");
            lines[index] = lines[index].replacen(from, to, 1);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert!(compare(&lines).is_err(), "{index}: {from} -> {to}");
        }
    }
}
