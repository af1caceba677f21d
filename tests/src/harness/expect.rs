//! Holds the rows of a run against its journal, event for event.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Write as _};

use super::journal::{Call, Entry, Journal, Library, outermost_launches};
use super::rows::{Row, Rows};
use super::tracer::{in_vm, is_busy};

/// Bytes of a text that the tracer takes; a longer one is cut there and gets a `…`.
const MAX_TEXT: usize = 1016;

/// What the run was, as far as that changes what is expected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expect {
    /// Launches are written.
    pub launches: bool,
    /// Host memory is written.
    pub host: bool,
    /// The programs were killed: each thread may have been in the middle of one call.
    pub killed: bool,
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// `MALLOC` rows.
    pub allocs: u64,
    /// `FREE` rows of calls.
    pub frees: u64,
    /// `FREE` rows for blocks that their process ended with.
    pub held: u64,
    /// Marks, starts and ends of ranges.
    pub marks: u64,
    /// Launches.
    pub launches: u64,
    /// `ACL_INIT` and `ACL_FINI`.
    pub systems: u64,
}

/// A block as both sides report it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// Address or handle.
    pub addr: u64,
    /// Requested bytes.
    pub size: u64,
    /// `cpu` or a number.
    pub device: String,
    /// `normal`, `huge` or `giant`.
    pub page: &'static str,
    /// `alloc` or `create`.
    pub api: &'static str,
}

/// One allocation or free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Thread.
    pub tid: u32,
    /// It is an allocation.
    pub is_alloc: bool,
    /// The block.
    pub block: Block,
    /// When: by the journal's clock, or by the rows'.
    pub time_ns: u64,
}

impl Memory {
    /// The same but for the time.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.tid, self.is_alloc, &self.block) == (other.tid, other.is_alloc, &other.block)
    }
}

/// What a process did to memory, by its journal.
#[derive(Debug, Default)]
pub struct Truth {
    /// Allocations and frees that succeeded, in the order of their times.
    pub calls: Vec<Memory>,
    /// Blocks that were live when the process ended or became another program.
    pub held: Vec<Block>,
    /// Allocations that failed.
    pub failed: u64,
    /// Frees that failed.
    pub failed_frees: u64,
}

/// What a process did to memory.
#[must_use]
pub fn truth(entries: &[&Entry], host: bool) -> Truth {
    let mut truth = Truth::default();
    let mut live: BTreeMap<u64, Block> = BTreeMap::new();
    let mut physical = Physical::default();
    for entry in entries.iter().filter(|entry| entry.library == Library::Hal) {
        let (is_alloc, block) = match entry.call() {
            Call::Load => {
                truth.held.extend(std::mem::take(&mut live).into_values());
                truth.held.extend(std::mem::take(&mut physical).into_blocks());
                continue;
            }
            Call::Alloc { size, flag, addr } => {
                let block = allocated(size, flag, addr);
                assert_eq!(live.insert(addr, block.clone()), None, "the journal gives a live block out again");
                (true, Some(block))
            }
            Call::Create { size, side, device, page, handle } => {
                let device = if side == 1 { device.to_string() } else { "cpu".to_owned() };
                let page = ["normal", "huge", "giant"][page as usize];
                let block = Block { addr: handle, size, device, page, api: "create" };
                physical.create(block.clone());
                (true, Some(block))
            }
            Call::Retain { addr, handle } => {
                physical.retain(addr, handle);
                continue;
            }
            Call::Map { addr, handle } => {
                physical.map(addr, handle);
                continue;
            }
            Call::Free { ok: Some(false), .. } | Call::Release { ok: Some(false), .. } => {
                truth.failed_frees += 1;
                continue;
            }
            Call::Free { addr, .. } => (false, live.remove(&addr)),
            Call::Release { handle, .. } => (false, physical.release(handle)),
            Call::Unmap { ok: Some(false), .. } => continue,
            Call::Unmap { addr, .. } => (false, physical.unmap(addr)),
            Call::AllocFailed => {
                truth.failed += 1;
                continue;
            }
            _ => continue,
        };
        let Some(block) = block.filter(|block| host || block.device != "cpu") else { continue };
        truth.calls.push(Memory { tid: entry.tid, is_alloc, block, time_ns: entry.time_ns });
    }
    truth.held.extend(live.into_values().chain(physical.into_blocks()));
    truth.held.retain(|block| host || block.device != "cpu");
    truth
}

/// Physical memory: it lives as long as a handle or a mapping refers to it. A handle's value is used again after its
/// last release, while a mapping may still hold the memory.
#[derive(Debug, Default)]
struct Physical {
    /// Each with the number of its holders.
    pieces: Vec<(Block, u32)>,
    handles: BTreeMap<u64, (usize, u32)>,
    mapped: BTreeMap<u64, usize>,
}

impl Physical {
    fn create(&mut self, block: Block) {
        let old = self.handles.insert(block.addr, (self.pieces.len(), 1));
        assert_eq!(old, None, "the journal gives a live handle out again");
        self.pieces.push((block, 1));
    }

    fn retain(&mut self, addr: u64, handle: u64) {
        let (_, piece) = self.mapped.range(..=addr).next_back().expect("a mapping");
        self.pieces[*piece].1 += 1;
        self.handles.entry(handle).or_insert((*piece, 0)).1 += 1;
    }

    fn map(&mut self, addr: u64, handle: u64) {
        let (piece, _) = self.handles[&handle];
        self.pieces[piece].1 += 1;
        assert_eq!(self.mapped.insert(addr, piece), None, "the journal maps over a mapping");
    }

    fn release(&mut self, handle: u64) -> Option<Block> {
        let (piece, references) = self.handles.get_mut(&handle)?;
        *references -= 1;
        let (piece, references) = (*piece, *references);
        if references == 0 {
            self.handles.remove(&handle);
        }
        self.drop_holder(piece)
    }

    fn unmap(&mut self, addr: u64) -> Option<Block> {
        let piece = self.mapped.remove(&addr)?;
        self.drop_holder(piece)
    }

    /// The memory, if that was its last holder.
    fn drop_holder(&mut self, piece: usize) -> Option<Block> {
        let (block, holders) = &mut self.pieces[piece];
        *holders -= 1;
        (*holders == 0).then(|| block.clone())
    }

    fn into_blocks(self) -> impl Iterator<Item = Block> {
        self.pieces.into_iter().filter(|(_, holders)| *holders > 0).map(|(block, _)| block)
    }
}

/// From the flag word: bits 0-9 device, 10-13 address space (2 and 6: host), 17 huge, 31 giant.
fn allocated(size: u64, flag: u64, addr: u64) -> Block {
    let host = matches!(flag >> 10 & 0xf, 2 | 6);
    let page = match (flag >> 31 & 1, flag >> 17 & 1) {
        (1, _) => "giant",
        (_, 1) => "huge",
        _ => "normal",
    };
    let device = if host { "cpu".to_owned() } else { (flag & 0x3ff).to_string() };
    Block { addr, size, device, page, api: "alloc" }
}

/// Panics unless every call of every process is in the rows, nothing else is, and all figures are right.
pub fn assert_equal(journal: &Journal, rows: &Rows, expect: Expect) -> Totals {
    let mut totals = Totals::default();
    let processes = journal.by_process();
    for pid in rows.processes.keys() {
        assert!(processes.contains_key(pid), "rows of process {pid}, which has no journal");
    }
    for (pid, entries) in &processes {
        let rows = rows.processes.get(pid).map_or(&[][..], Vec::as_slice);
        assert_equal_process(*pid, entries, rows, expect, &mut totals);
    }
    totals
}

fn assert_equal_process(pid: u32, entries: &[&Entry], rows: &[Row], expect: Expect, totals: &mut Totals) {
    assert!(rows.is_sorted_by_key(|row| row.time_ns), "rows of process {pid} are not in the order of their times");
    memory(pid, &truth(entries, expect.host), rows, expect.killed, totals);
    marks(pid, entries, rows, expect.killed, totals);
    systems(pid, entries, rows, totals);
    let wanted = if expect.launches { launches(entries) } else { Vec::new() };
    let found: Vec<Other> = rows.iter().filter(|row| row.event == "KERNEL_LAUNCH").map(launch_row).collect();
    totals.launches += found.len() as u64;
    same_by_thread(pid, "launches", &wanted, &found, |launch| launch.tid, PartialEq::eq, expect.killed);
    let known = ["MALLOC", "FREE", "MSTX", "SYSTEM", "KERNEL_LAUNCH"];
    let strange = rows.iter().find(|row| !known.contains(&row.event.as_str()));
    assert_eq!(strange, None, "process {pid} has a row that nothing explains");
}

/// The allocation or free in a row; a free takes the facts that only its allocation has from there.
#[must_use]
pub fn memory_rows(rows: &[Row]) -> Vec<Memory> {
    let mut blocks: HashMap<u64, Block> = HashMap::new();
    rows.iter().filter(|row| row.is_memory() && !row.is_made_up()).map(|row| memory_row(row, &mut blocks)).collect()
}

fn memory_row(row: &Row, blocks: &mut HashMap<u64, Block>) -> Memory {
    let id = row.number("allocation_id");
    let addr = row.ptr.unwrap_or_else(|| panic!("no Ptr in {row:?}"));
    let size = row.number("size");
    assert_eq!(row.attr["addr"], format!("{addr:#018x}"), "Ptr and Attr differ: {row:?}");
    let is_alloc = row.event == "MALLOC";
    let word = |key: &str, words: &[&'static str]| {
        let value = row.attr.get(key).map_or(words[0], String::as_str);
        words.iter().copied().find(|word| *word == value).unwrap_or_else(|| panic!("`{key}` in {row:?}"))
    };
    let block = if is_alloc {
        let page = word("page_type", &["normal", "huge", "giant"]);
        let api = word("alloc_type", &["alloc", "create"]);
        let block = Block { addr, size, device: row.device.clone(), page, api };
        let old = blocks.insert(id, block.clone());
        assert_eq!(old, None, "two allocations have the number {id}");
        block
    } else {
        let block = blocks.remove(&id).unwrap_or_else(|| panic!("free of a block that has no allocation: {row:?}"));
        assert_eq!((block.addr, block.size, &block.device), (addr, size, &row.device), "free and allocation differ");
        block
    };
    let host = block.device == "cpu";
    assert_eq!(row.event_type, if host { "HOST" } else { "HAL" }, "Event Type of {row:?}");
    Memory { tid: row.tid, is_alloc, block, time_ns: row.time_ns }
}

fn memory(pid: u32, truth: &Truth, rows: &[Row], killed: bool, totals: &mut Totals) {
    let found = memory_rows(rows);
    let cut = same_by_thread(pid, "memory", &truth.calls, &found, |memory| memory.tid, Memory::is, killed);
    if !cut {
        // Where a block changes hands, the order is that of the calls, whichever thread made them.
        let by_address = |memory: &Memory| (memory.block.api, memory.block.addr);
        same_by(pid, "calls with one address", &truth.calls, &found, by_address, Memory::is);
    }
    used(pid, rows);
    let mut held: Vec<(u64, u64, String)> = rows
        .iter()
        .filter(|row| row.is_made_up())
        .map(|row| (row.ptr.expect("an address"), row.number("size"), row.device.clone()))
        .collect();
    let mut expected: Vec<(u64, u64, String)> = if cut {
        let mut live: BTreeMap<(&str, u64), &Block> = BTreeMap::new();
        for Memory { is_alloc, block, .. } in &found {
            match is_alloc {
                true => live.insert((block.api, block.addr), block),
                false => live.remove(&(block.api, block.addr)),
            };
        }
        live.into_values().cloned().map(|block| (block.addr, block.size, block.device)).collect()
    } else {
        truth.held.iter().cloned().map(|block| (block.addr, block.size, block.device)).collect()
    };
    held.sort();
    expected.sort();
    assert_eq!(held, expected, "blocks that process {pid} ended with");
    totals.allocs += found.iter().filter(|memory| memory.is_alloc).count() as u64;
    totals.frees += found.iter().filter(|memory| !memory.is_alloc).count() as u64;
    totals.held += held.len() as u64;
}

/// `used` is the sum of the live blocks after each event, for each device.
fn used(pid: u32, rows: &[Row]) {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for row in rows.iter().filter(|row| row.is_memory()) {
        let sum = sums.entry(&row.device).or_default();
        let size = row.number("size");
        *sum = if row.event == "MALLOC" { *sum + size } else { sum.checked_sub(size).expect("used is not negative") };
        if !row.is_made_up() {
            assert_eq!(row.number("used"), *sum, "`used` of process {pid} after {row:?}");
        }
    }
}

/// A mark or a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    tid: u32,
    device: String,
    what: &'static str,
    text: Option<String>,
    /// Stream of a launch, domain of a mark.
    within: Option<String>,
}

/// The device that each thread had set before each call.
#[derive(Default)]
struct Devices(HashMap<u32, u32>);

impl Devices {
    fn see(&mut self, entry: &Entry) {
        match entry.call() {
            Call::SetDevice(device) => drop(self.0.insert(entry.tid, device)),
            Call::Load if entry.library == Library::Hal => self.0.clear(),
            _ => {}
        }
    }

    fn of(&self, tid: u32) -> String {
        self.0.get(&tid).map_or_else(|| "N/A".to_owned(), u32::to_string)
    }
}

fn marks(pid: u32, entries: &[&Entry], rows: &[Row], killed: bool, totals: &mut Totals) {
    let found: Vec<&Row> = rows.iter().filter(|row| row.event == "MSTX").collect();
    let (wanted, ends) = wanted_marks(entries);
    let brief = |row: &&Row| Other {
        tid: row.tid,
        device: row.device.clone(),
        what: ["Mark", "Range_start", "Range_end"]
            .into_iter()
            .find(|what| *what == row.event_type)
            .unwrap_or_else(|| panic!("{row:?}")),
        text: row.name.clone().filter(|_| row.event_type != "Range_end"),
        within: row.attr.get("domain").cloned(),
    };
    let briefs: Vec<Other> = found.iter().map(brief).collect();
    same_by_thread(pid, "marks", &wanted, &briefs, |mark| mark.tid, PartialEq::eq, killed);
    // The tracer numbers the ranges in the order of their starts; an end names its start.
    let mut numbers: BTreeMap<(u32, usize), u64> = BTreeMap::new();
    let mut starts: HashMap<u32, usize> = HashMap::new();
    for (number, row) in (1..).zip(found.iter().filter(|row| row.event_type == "Range_start")) {
        let nth = starts.entry(row.tid).or_default();
        numbers.insert((row.tid, *nth), number);
        *nth += 1;
    }
    let mut nth_end: HashMap<u32, usize> = HashMap::new();
    for row in found.iter().filter(|row| row.event_type == "Range_end") {
        let nth = nth_end.entry(row.tid).or_default();
        let start = ends[&(row.tid, *nth)];
        let number = start.and_then(|start| numbers.get(&start)).copied().unwrap_or(0);
        assert_eq!(row.name.as_deref(), Some(format!("Range end from id {number}").as_str()), "{row:?}");
        *nth += 1;
    }
    totals.marks += found.len() as u64;
}

/// By thread and number of the end on it: thread and number of the start that it belongs to.
type Ends = BTreeMap<(u32, usize), Option<(u32, usize)>>;

fn wanted_marks(entries: &[&Entry]) -> (Vec<Other>, Ends) {
    let mut devices = Devices::default();
    let mut wanted = Vec::new();
    let mut ends = Ends::new();
    let mut starts: HashMap<u32, usize> = HashMap::new();
    let mut nth_end: HashMap<u32, usize> = HashMap::new();
    // Ranges of domains are apart from the others.
    let mut open: HashMap<(bool, u32), Vec<(u32, usize)>> = HashMap::new();
    let mut named: HashMap<(bool, u64), (u32, usize)> = HashMap::new();
    let mut domains: HashMap<u32, String> = HashMap::new();
    let mut with_handle: HashMap<u64, String> = HashMap::new();
    for entry in entries {
        devices.see(entry);
        let tid = entry.tid;
        if entry.symbol == "mstxDomainCreateA" {
            // Without a tool a thread means the domain that it has created last.
            let name = cell_of(entry.text.as_deref().unwrap_or_default());
            let _ = if entry.out == 0 { domains.insert(tid, name) } else { with_handle.insert(entry.out, name) };
        }
        let in_domain = entry.symbol.starts_with("mstxDomain");
        let (what, text) = match entry.call() {
            Call::Mark(text) | Call::DomainMark(text) => ("Mark", text),
            Call::RangeStart(text, id) | Call::DomainRangeStart(text, id) => {
                let nth = starts.entry(tid).or_default();
                match id {
                    0 => open.entry((in_domain, tid)).or_default().push((tid, *nth)),
                    id => drop(named.insert((in_domain, id), (tid, *nth))),
                }
                *nth += 1;
                ("Range_start", text)
            }
            Call::RangeEnd(id) | Call::DomainRangeEnd(id) => {
                let of_thread = open.entry((in_domain, tid)).or_default();
                let start = if id == 0 { of_thread.pop() } else { named.remove(&(in_domain, id)) };
                let nth = nth_end.entry(tid).or_default();
                ends.insert((tid, *nth), start);
                *nth += 1;
                ("Range_end", None)
            }
            _ => continue,
        };
        let text = text.map(|(stored, length)| shown(stored, length));
        let meant = || if entry.args[0] == 0 { domains[&tid].clone() } else { with_handle[&entry.args[0]].clone() };
        let within = in_domain.then(meant);
        wanted.push(Other { tid, device: devices.of(tid), what, text, within });
    }
    (wanted, ends)
}

/// A name as it stands in a cell: what would separate cells, or is not ASCII, is replaced.
#[must_use]
pub fn cell_of(name: &[u8]) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && !"\"',:\\".contains(c) { c } else { '_' };
    String::from_utf8_lossy(name).chars().map(plain).collect()
}

/// A text as the tracer may show it: valid, and cut where it is too long.
fn shown(stored: &[u8], length: u64) -> String {
    if length <= MAX_TEXT as u64 {
        return String::from_utf8_lossy(stored).into_owned();
    }
    let cut = &stored[..MAX_TEXT];
    let whole = (0..4).map(|less| &cut[..MAX_TEXT - less]).find_map(|cut| std::str::from_utf8(cut).ok());
    whole.map_or_else(|| String::from_utf8_lossy(cut).into_owned(), str::to_owned) + "…"
}

fn launches(entries: &[&Entry]) -> Vec<Other> {
    let mut devices = Devices::default();
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut streams: HashMap<u64, u64> = HashMap::new();
    let outermost: Vec<*const Entry> = outermost_launches(entries).into_iter().map(std::ptr::from_ref).collect();
    let mut outermost = outermost.into_iter().peekable();
    let mut wanted = Vec::new();
    for entry in entries {
        devices.see(entry);
        match entry.call() {
            Call::KernelName { handle, name } => {
                names.insert(handle, String::from_utf8_lossy(name).into_owned());
            }
            Call::StreamId { stream, id } => {
                streams.insert(stream, id);
            }
            Call::Launch { handle, stream, name } if outermost.next_if_eq(&std::ptr::from_ref(*entry)).is_some() => {
                let name = name.map(|name| String::from_utf8_lossy(name).into_owned());
                let name = name.or_else(|| names.get(&handle).cloned()).unwrap_or_else(|| format!("{handle:#x}"));
                let stream = streams.get(&stream).copied().unwrap_or(stream).to_string();
                let (tid, device) = (entry.tid, devices.of(entry.tid));
                wanted.push(Other { tid, device, what: "launch", text: Some(name), within: Some(stream) });
            }
            _ => {}
        }
    }
    wanted
}

fn launch_row(row: &Row) -> Other {
    assert_eq!(row.attr["taskId"], "N/A", "{row:?}");
    Other {
        tid: row.tid,
        device: row.device.clone(),
        what: "launch",
        text: row.name.clone(),
        within: Some(row.attr["streamId"].clone()),
    }
}

fn systems(pid: u32, entries: &[&Entry], rows: &[Row], totals: &mut Totals) {
    let wanted: Vec<(&str, u32)> = entries
        .iter()
        .filter_map(|entry| match entry.call() {
            Call::AclInit => Some(("ACL_INIT", entry.tid)),
            Call::AclFinalize => Some(("ACL_FINI", entry.tid)),
            _ => None,
        })
        .collect();
    let found: Vec<(&str, u32)> =
        rows.iter().filter(|row| row.event == "SYSTEM").map(|row| (row.event_type.as_str(), row.tid)).collect();
    assert_eq!(found, wanted, "ACL_INIT and ACL_FINI of process {pid}");
    totals.systems += found.len() as u64;
}

/// Panics unless both hold the same for each thread, in order. If the threads were killed, each may have one call more
/// on either side; gives whether one had.
fn same_by_thread<T: Debug + Clone>(
    pid: u32,
    what: &str,
    wanted: &[T],
    found: &[T],
    thread: impl Fn(&T) -> u32,
    same: impl Fn(&T, &T) -> bool,
    killed: bool,
) -> bool {
    let mut wanted = grouped(wanted, &thread);
    let mut found = grouped(found, &thread);
    let mut cut = false;
    if killed {
        let threads: Vec<u32> = wanted.keys().chain(found.keys()).copied().collect();
        for tid in threads {
            let (wanted, found) = (wanted.entry(tid).or_default(), found.entry(tid).or_default());
            match wanted.len().cmp(&found.len()) {
                std::cmp::Ordering::Greater => drop(wanted.pop()),
                std::cmp::Ordering::Less => drop(found.pop()),
                std::cmp::Ordering::Equal => continue,
            }
            cut = true;
        }
    }
    same_groups(pid, what, &wanted, &found, same);
    cut
}

fn same_by<T: Debug, K: Ord + Debug + Copy>(
    pid: u32,
    what: &str,
    wanted: &[T],
    found: &[T],
    key: impl Fn(&T) -> K,
    same: impl Fn(&T, &T) -> bool,
) {
    same_groups(pid, what, &grouped(wanted, &key), &grouped(found, &key), same);
}

fn grouped<T, K: Ord>(items: &[T], key: impl Fn(&T) -> K) -> BTreeMap<K, Vec<&T>> {
    let mut groups: BTreeMap<K, Vec<&T>> = BTreeMap::new();
    for item in items {
        groups.entry(key(item)).or_default().push(item);
    }
    groups
}

fn same_groups<T: Debug, K: Ord + Debug + Copy>(
    pid: u32,
    what: &str,
    wanted: &BTreeMap<K, Vec<&T>>,
    found: &BTreeMap<K, Vec<&T>>,
    same: impl Fn(&T, &T) -> bool,
) {
    let keys: std::collections::BTreeSet<K> = wanted.keys().chain(found.keys()).copied().collect();
    for key in keys {
        let empty = Vec::new();
        let (wanted, found) = (wanted.get(&key).unwrap_or(&empty), found.get(&key).unwrap_or(&empty));
        let differs = wanted.iter().zip(found).position(|(wanted, found)| !same(wanted, found));
        let at = differs.unwrap_or(wanted.len().min(found.len()));
        if differs.is_some() || wanted.len() != found.len() {
            let mut text = String::new();
            for index in at.saturating_sub(2)..at + 4 {
                let _ =
                    writeln!(text, "{index}: journal {:?}\n{index}: rows    {:?}", wanted.get(index), found.get(index));
            }
            panic!(
                "{what} of process {pid} ({key:?}): {} in the journal, {} in the rows; the first difference is at {at}\n{text}",
                wanted.len(),
                found.len()
            );
        }
    }
}

/// Where a time between two moments belongs to a trace, both by the journal's clock.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Everything from here on is to be there.
    pub from_ns: u64,
    /// Everything up to here is to be there.
    pub to_ns: u64,
}

/// How far a row's time may be from the journal's: less than the workloads sleep between their bursts of calls. An
/// emulated machine may take longer between a call and its probe.
fn max_skew_ns() -> u64 {
    if in_vm() || is_busy() { 100_000_000 } else { 8_000_000 }
}

/// Of how many rows one may be further off: on a busy machine a thread may lose its processor between a call and its
/// probe. Rows that are laid beside the wrong calls are off all together.
const ROWS_PER_STALL: usize = 100;

/// The largest skew, but for what stalls excuse.
fn skew_of(mut skews: Vec<u64>, rows_per_stall: usize) -> u64 {
    skews.sort_unstable();
    let excused = skews.len() / rows_per_stall;
    skews.get(skews.len().saturating_sub(excused + 1)).copied().unwrap_or(0)
}

/// Panics unless the rows of each thread are one unbroken piece of its journal that covers the window.
///
/// For programs that were running when the trace began, or go on after it, and whose threads free their own blocks.
/// `offset_ns` is the lead of rows' times over the journal's. Returns the number of rows compared.
pub fn assert_unbroken(journal: &Journal, rows: &Rows, pid: u32, window: Window, offset_ns: u64) -> usize {
    let entries: Vec<&Entry> = journal.of(pid).collect();
    let truth = truth(&entries, false);
    let found = memory_rows(rows.processes.get(&pid).map_or(&[], Vec::as_slice));
    let wanted = grouped(&truth.calls, |memory: &Memory| memory.tid);
    let found_by_thread = grouped(&found, |memory: &Memory| memory.tid);
    for tid in found_by_thread.keys() {
        assert!(wanted.contains_key(tid), "rows of thread {tid} of process {pid}, which has no journal");
    }
    for (tid, wanted) in &wanted {
        let found = found_by_thread.get(tid).map_or(&[][..], Vec::as_slice);
        let (before, after) = match found {
            // A thread that only freed blocks older than the trace.
            [] => (wanted.iter().rfind(|call| call.is_alloc).map(|call| call.time_ns), None),
            found => {
                let start = piece(wanted, found, offset_ns).unwrap_or_else(|| {
                    panic!("rows of thread {tid} are no piece of its journal: {} of {}", found.len(), wanted.len())
                });
                let before = start.checked_sub(1).map(|index| wanted[index].time_ns);
                (before, wanted.get(start + found.len()).map(|call| call.time_ns))
            }
        };
        let Window { from_ns, to_ns } = window;
        assert!(
            before.is_none_or(|time| time < from_ns),
            "thread {tid}: a call {} ns after the beginning is missing",
            before.unwrap_or(0).saturating_sub(from_ns)
        );
        assert!(
            after.is_none_or(|time| time > to_ns),
            "thread {tid}: a call {} ns before the end is missing",
            to_ns.saturating_sub(after.unwrap_or(0))
        );
    }
    found.len()
}

/// Where the rows lie in the journal: the same calls, at nearly the same times.
fn piece(wanted: &[&Memory], found: &[&Memory], offset_ns: u64) -> Option<usize> {
    let skew = |wanted: &Memory, found: &Memory| (wanted.time_ns + offset_ns).abs_diff(found.time_ns);
    let max_skew = max_skew_ns();
    let last = wanted.len().checked_sub(found.len())?;
    // The same blocks come again and again: not every place has to be tried.
    let starts = (0..=last).filter(|start| skew(wanted[*start], found[0]) < 10 * max_skew);
    let skews = starts.filter_map(|start| {
        let pairs = || wanted[start..].iter().zip(found);
        let same = pairs().all(|(wanted, found)| wanted.is(found));
        same.then(|| (skew_of(pairs().map(|(wanted, found)| skew(wanted, found)).collect(), ROWS_PER_STALL), start))
    });
    skews.min().filter(|(skew, _)| *skew < max_skew).map(|(_, start)| start)
}

/// Panics unless the rows of each thread are the beginning of its journal, or all of it.
pub fn assert_beginning(journal: &Journal, rows: &Rows) {
    let processes = journal.by_process();
    for (pid, rows) in &rows.processes {
        let entries = processes.get(pid).unwrap_or_else(|| panic!("rows of process {pid}, which has no journal"));
        let truth = truth(entries, false);
        let wanted = grouped(&truth.calls, |memory: &Memory| memory.tid);
        let found = memory_rows(rows);
        for (tid, found) in grouped(&found, |memory: &Memory| memory.tid) {
            let wanted = wanted.get(&tid).map_or(&[][..], Vec::as_slice);
            let differs =
                found.iter().enumerate().find(|(at, found)| !wanted.get(*at).is_some_and(|call| call.is(found)));
            assert!(differs.is_none(), "rows of thread {tid} of process {pid} are not the beginning: {differs:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAG: u64 = 1 << 17 | 1 << 10 | 3;

    fn entry(time_ns: u64, library: Library, symbol: &'static str, args: [u64; 4], out: u64) -> Entry {
        Entry { time_ns, pid: 7, tid: 8, library, symbol, ret: Some(0), args, out, text: None }
    }

    /// Two blocks of which one is freed, an allocation and a free that fail, and a mark.
    fn journal() -> Journal {
        let failed = |entry: Entry| Entry { ret: Some(6), ..entry };
        let hal = |time_ns, symbol, args, out| entry(time_ns, Library::Hal, symbol, args, out);
        let mark = entry(5, Library::Mstx, "mstxMarkA", [1, 0, 0, 3], 0);
        let entries = vec![
            hal(1, "halMemAlloc", [64, FLAG, 0, 0], 0x1000),
            hal(2, "halMemAlloc", [32, FLAG, 0, 0], 0x2000),
            failed(hal(3, "halMemAlloc", [99, FLAG, 0, 0], 0)),
            failed(hal(4, "halMemFree", [0x5000, 0, 0, 0], 0)),
            Entry { text: Some(b"=1\n".as_slice().into()), ..mark },
            hal(6, "halMemFree", [0x1000, 0, 0, 0], 0),
        ];
        Journal { entries }
    }

    const ROWS: [&str; 5] = [
        "1 MALLOC HAL 3 1000 allocation_id:1,addr:0x0000000000001000,size:64,used:64,page_type:huge,alloc_type:alloc",
        "2 MALLOC HAL 3 2000 allocation_id:2,addr:0x0000000000002000,size:32,used:96,page_type:huge,alloc_type:alloc",
        "3 MSTX Mark N/A 0 =1",
        "4 FREE HAL 3 1000 allocation_id:1,addr:0x0000000000001000,size:64,used:32",
        "5 FREE HAL 3 2000 allocation_id:2,addr:0x0000000000002000,size:32,shadow:true",
    ];

    fn row(line: &str) -> Row {
        let cells: Vec<&str> = line.split(' ').collect();
        let ptr = u64::from_str_radix(cells[4], 16).expect("a number");
        let is_mark = cells[1] == "MSTX";
        let pairs = cells[5].split(',').filter_map(|pair| pair.split_once(':'));
        Row {
            id: cells[0].parse().expect("a number"),
            event: cells[1].into(),
            event_type: cells[2].into(),
            name: is_mark.then(|| format!("{}\n", cells[5])),
            time_ns: cells[0].parse().expect("a number"),
            pid: 7,
            tid: 8,
            device: cells[3].into(),
            ptr: (ptr > 0).then_some(ptr),
            attr: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        }
    }

    fn compare(lines: &[&str]) -> std::thread::Result<Totals> {
        let rows =
            Rows { processes: BTreeMap::from([(7, lines.iter().map(|line| row(line)).collect())]), files: vec![] };
        std::panic::catch_unwind(|| assert_equal(&journal(), &rows, Expect::default()))
    }

    /// One stall in a hundred rows is excused where there may be any, two are not; a shift of all is never.
    #[test]
    fn stalls_are_excused_one_by_one() {
        let skews = |stalls: usize| [vec![900; stalls], vec![5; 100 - stalls]].concat();
        assert_eq!((skew_of(skews(1), 100), skew_of(skews(2), 100)), (5, 900));
        assert_eq!((skew_of(skews(1), usize::MAX), skew_of(skews(0), usize::MAX)), (900, 5));
        assert_eq!((skew_of(skews(100), 100), skew_of(vec![7], 100), skew_of(vec![], 100)), (900, 7, 0));
    }

    /// Memory lives until its last holder is gone, whatever becomes of its handle's value meanwhile.
    #[test]
    fn physical_memory_has_holders() {
        let hal = |time_ns, symbol, args, out| entry(time_ns, Library::Hal, symbol, args, out);
        let create = |time_ns, size| hal(time_ns, "halMemCreate", [size, 1 | 3 << 32, 0x21 | 1 << 32, 0], 0xa0);
        let entries = [
            create(1, 64),
            hal(2, "halMemMap", [0x7000, 64, 0, 0xa0], 0x7000),
            hal(3, "halMemRelease", [0xa0, 0, 0, 0], 1),
            create(4, 32),
            hal(5, "halMemMap", [0x8000, 32, 0, 0xa0], 0x8000),
            hal(6, "halMemRetainAllocationHandle", [0x8010, 0, 0, 0], 0xa0),
            hal(7, "halMemUnmap", [0x7000, 0, 0, 0], 0),
            hal(8, "halMemUnmap", [0x8000, 0, 0, 0], 2),
            hal(9, "halMemRelease", [0xa0, 0, 0, 0], 1),
            Entry { ret: Some(3), ..hal(10, "halMemRelease", [0xa0, 0, 0, 0], 0) },
            hal(11, "halMemRelease", [0xa0, 0, 0, 0], 0),
            create(12, 8),
        ];
        let truth = truth(&entries.iter().collect::<Vec<_>>(), false);
        let calls: Vec<_> = truth.calls.iter().map(|call| (call.time_ns, call.is_alloc, call.block.size)).collect();
        assert_eq!(calls, [(1, true, 64), (4, true, 32), (7, false, 64), (11, false, 32), (12, true, 8)]);
        assert_eq!(truth.held.iter().map(|block| block.size).collect::<Vec<_>>(), [8]);
        assert_eq!(truth.failed_frees, 1);
    }

    /// Rows that are right pass, and are counted.
    #[test]
    fn right_rows_pass() {
        let totals = compare(&ROWS).expect("equal");
        assert_eq!(totals, Totals { allocs: 2, frees: 1, held: 1, marks: 1, launches: 0, systems: 0 });
    }

    /// No row may be missing, or there twice, or in another place.
    #[test]
    fn every_row_counts() {
        for (index, row) in ROWS.into_iter().enumerate() {
            let mut lines = ROWS.to_vec();
            lines.remove(index);
            assert!(compare(&lines).is_err(), "without {index}");
            let mut lines = ROWS.to_vec();
            lines.insert(index, row);
            assert!(compare(&lines).is_err(), "twice {index}");
        }
        let mut lines = ROWS.to_vec();
        lines.swap(0, 1);
        assert!(compare(&lines).is_err(), "swapped");
    }

    /// Every figure of a row is compared.
    #[test]
    fn every_figure_counts() {
        let changes = [
            (0, "size:64", "size:63"),
            (0, "used:64", "used:63"),
            (0, "huge", "normal"),
            (0, "alloc_type:alloc", "alloc_type:create"),
            (1, "HAL 3", "HAL 2"),
            (1, "HAL 3", "HOST 3"),
            (1, "2000 allocation_id:2,addr:0x0000000000002000", "3000 allocation_id:2,addr:0x0000000000003000"),
            (1, "allocation_id:2", "allocation_id:1"),
            (2, "Mark", "Range_start"),
            (2, "=1", "'=1"),
            (2, "N/A", "0"),
            (3, "used:32", "used:0"),
            (3, "used:32", "shadow:true"),
            (4, "shadow:true", "used:0"),
        ];
        for (index, from, to) in changes {
            let mut lines: Vec<String> = ROWS.map(str::to_owned).to_vec();
            assert!(lines[index].contains(from), "`{from}`");
            lines[index] = lines[index].replace(from, to);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert!(compare(&lines).is_err(), "{index}: {from} -> {to}");
        }
    }
}
