//! Finishes native stacks that the kernel side could not, and teaches it the rules that it lacked.
//!
//! A frame is right or absent: if the unwind information lacks a value, it is not guessed; the stack ends there with
//! the reason.
//!
//! `image` finds a file's information for an address, `row` is this information and the kernel side's rule for it,
//! `table` is the shared table of rules. `survey` counts a file's rows without a rule.

mod image;
mod row;
mod survey;
mod table;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, io, mem::offset_of, os::fd::AsFd, sync::Arc};

use memscope_common::{
    Header, Kind, Replaced, SnapshotRecord, StackEnd, StackRecord,
    stack::{MAX_FRAMES, MAX_RETURNS, STACK_NATIVE},
    unwind::{RULE_NONE, Rule, may_be_trampoline, without_signature},
};

pub use self::survey::Survey;
use self::{
    image::Image,
    row::{Arch, Base, Row, Saved, Value},
    table::Table,
};
use super::{
    FinishStacks, make_room,
    mappings::{Content, Found, Mappings, Module},
};

/// Reads any bytes as a file with unwind information: the rules of some addresses.
#[cfg(feature = "fuzzing")]
pub(crate) fn any_file(bytes: &[u8]) {
    let Some(image) = Image::open(&Content::Memory(bytes.into())) else { return };
    let _ = image.eh_frame();
    for vaddr in [0, 0x1000, 0x10_0000, 0x10_0004, 0x10_003f, u64::MAX] {
        let _ = image.row_at(vaddr, vaddr).map(|row| row.rule());
    }
}

/// Most files with cached unwind information.
const MAX_IMAGES: usize = 192;
/// Most cached rows.
const MAX_ROWS: usize = 1 << 16;
/// Registers by DWARF's numbers.
const REGISTERS: usize = 32;

/// The generations of all traced processes.
pub type Living = Box<dyn Fn() -> Option<Vec<u64>> + Send>;

/// Finishes native stacks.
pub struct Unwinder {
    table: Table,
    living: Living,
    depth: usize,
    /// By serial number of their files. `None`: without unwind information.
    images: HashMap<u64, (Option<Arc<Image>>, u64)>,
    /// By generation and address. `None`: without a row.
    rows: HashMap<(u64, u64), Option<Arc<Row>>>,
    /// Counts uses.
    clock: u64,
}

/// The facts about an address of a process.
enum Known {
    Row(Arc<Row>),
    /// There is no unwind information.
    None,
    /// There is no code.
    Nowhere,
    /// Unknown.
    Unknown,
}

impl FinishStacks for Unwinder {
    /// The stack of a [`SnapshotRecord`], as the bytes of the [`StackRecord`] that replaces it; `None` for other
    /// records. The kernel side gets the rules of its frames.
    fn finish(&mut self, snapshot: &[u8], mappings: &mut Mappings) -> Option<Vec<u8>> {
        let snapshot = Snapshot::of(snapshot)?;
        let mut walk = Walk::new(&snapshot, Arch::own());
        let end = loop {
            if let Some(end) = self.step(&snapshot, &mut walk, mappings) {
                break end;
            }
        };
        Some(snapshot.stack(&walk.frames, end))
    }

    /// Learns from a [`StackRecord`] the rules that the kernel side lacked when it could not ask.
    fn learn(&mut self, stack: &[u8], mappings: &mut Mappings) {
        let byte = |at: usize| stack.get(at).copied();
        let lacks_rule = byte(offset_of!(StackRecord, end)) == Some(StackEnd::NoRule as u8)
            && byte(offset_of!(StackRecord, which)) == Some(STACK_NATIVE);
        let (Some(generation), Some(pid), Some((_, last))) = (
            u64_at(stack, offset_of!(StackRecord, generation)),
            u32_at(stack, offset_of!(Header, tgid)),
            stack.split_last_chunk::<8>(),
        ) else {
            return;
        };
        if lacks_rule && stack.len() > size_of::<StackRecord>() {
            let first = stack.len() == size_of::<StackRecord>() + 8;
            // The record does not say whether it was interrupted; then another rule is learnt, which is harmless.
            self.row((generation, pid), u64::from_le_bytes(*last).wrapping_sub((!first).into()), mappings);
        }
    }
}

impl Unwinder {
    /// `rules` is the kernel side's table; stacks get at most `depth` frames.
    ///
    /// # Errors
    ///
    /// When the table cannot be mapped.
    pub fn new(rules: impl AsFd, living: Living, depth: usize) -> io::Result<Self> {
        Ok(Self::with_table(Table::map(rules)?, living, depth))
    }

    fn with_table(table: Table, living: Living, depth: usize) -> Self {
        let depth = depth.min(MAX_FRAMES);
        Self { table, living, depth, images: HashMap::new(), rows: HashMap::new(), clock: 0 }
    }

    /// Steps to the caller's frame; or returns why there is none.
    fn step(&mut self, snapshot: &Snapshot<'_>, walk: &mut Walk, mappings: &mut Mappings) -> Option<StackEnd> {
        let row = match self.row((snapshot.generation, snapshot.pid), walk.at, mappings) {
            Known::Row(row) => row,
            Known::None => return Some(walk.left(StackEnd::NoUnwindInfo)),
            Known::Nowhere => return Some(walk.misled()),
            Known::Unknown => return Some(walk.left(StackEnd::NoRule)),
        };
        if row.is_end() {
            return Some(StackEnd::Root);
        }
        if walk.frames.len() >= self.depth {
            return Some(StackEnd::Depth);
        }
        walk.go_on(snapshot, &row).err()
    }

    /// The facts about an address; the kernel side gets the rule, too.
    fn row(&mut self, (generation, pid): (u64, u32), address: u64, mappings: &mut Mappings) -> Known {
        if let Some(known) = self.rows.get(&(generation, address)) {
            return known.as_ref().map_or(Known::None, |row| Known::Row(Arc::clone(row)));
        }
        // The table has no room for this one.
        if address == 0 {
            return Known::None;
        }
        let module = match mappings.find(generation, pid, address) {
            Found::Module(module) => module,
            Found::Nothing => return Known::Nowhere,
            Found::Unknown => return Known::Unknown,
        };
        let row = self.image(&module).and_then(|image| image.row(&module, address)).map(Arc::new);
        if row.is_none() && module.id.inode != 0 && matches!(module.content, Content::None) {
            // Its file could not be opened, or is not held open any more.
            return Known::None;
        }
        let none = Rule { kind: RULE_NONE, ..Rule::default() };
        self.teach(generation, address, row.as_ref().map_or(none, |row| row.rule()));
        if self.rows.len() >= MAX_ROWS {
            self.rows.clear();
        }
        self.rows.insert((generation, address), row.clone());
        row.map_or(Known::None, Known::Row)
    }

    fn teach(&mut self, generation: u64, address: u64, rule: Rule) {
        if !self.table.insert(generation, address, rule) {
            self.table.sweep(&self.living);
            self.table.insert(generation, address, rule);
        }
    }

    fn image(&mut self, module: &Module) -> Option<Arc<Image>> {
        self.clock += 1;
        if module.serial == 0 {
            return None;
        }
        if let Some((image, used)) = self.images.get_mut(&module.serial) {
            *used = self.clock;
            return image.clone();
        }
        if matches!(module.content, Content::None) {
            return None;
        }
        make_room(&mut self.images, MAX_IMAGES, |(_, used)| *used);
        let image = Image::open(&module.content).filter(|image| image.arch() == Arch::own()).map(Arc::new);
        self.images.insert(module.serial, (image.clone(), self.clock));
        image
    }
}

/// A [`SnapshotRecord`], decoded.
struct Snapshot<'a> {
    header: &'a [u8],
    id: u64,
    generation: u64,
    pid: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    link_register: u64,
    replaced: Vec<Replaced>,
    bytes: &'a [u8],
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

impl<'a> Snapshot<'a> {
    fn of(record: &'a [u8]) -> Option<Self> {
        let word = |at| u64_at(record, at);
        let replaced = (0..MAX_RETURNS).map(|call| {
            let at = offset_of!(SnapshotRecord, replaced) + call * size_of::<Replaced>();
            Some(Replaced { stack_pointer: word(at)?, address: word(at + 8)? })
        });
        let mut replaced = replaced.collect::<Option<Vec<_>>>()?;
        replaced.truncate(usize::from(u32_at(record, offset_of!(SnapshotRecord, replaced_count))? as u16));
        let len = u32_at(record, offset_of!(SnapshotRecord, len))? as usize;
        let start = size_of::<SnapshotRecord>();
        Some(Self {
            header: record.get(..size_of::<Header>())?,
            id: word(offset_of!(SnapshotRecord, id)).filter(|id| *id != 0)?,
            generation: word(offset_of!(SnapshotRecord, generation))?,
            pid: u32_at(record, offset_of!(Header, tgid))?,
            instruction_pointer: word(offset_of!(SnapshotRecord, instruction_pointer))?,
            stack_pointer: word(offset_of!(SnapshotRecord, stack_pointer))?,
            frame_pointer: word(offset_of!(SnapshotRecord, frame_pointer))?,
            link_register: word(offset_of!(SnapshotRecord, link_register))?,
            replaced,
            bytes: record.get(start..start.checked_add(len)?)?,
        })
    }

    /// Eight bytes of the stack.
    fn read(&self, address: u64) -> Option<u64> {
        u64_at(self.bytes, usize::try_from(address.checked_sub(self.stack_pointer)?).ok()?)
    }

    /// The record that takes its place.
    fn stack(&self, frames: &[u64], end: StackEnd) -> Vec<u8> {
        let len = size_of::<StackRecord>() + frames.len() * 8;
        let mut record = self.header.to_vec();
        record[offset_of!(Header, kind)..][..2].copy_from_slice(&(Kind::Stack as u16).to_le_bytes());
        record[offset_of!(Header, len)..][..2].copy_from_slice(&(len as u16).to_le_bytes());
        record.extend(self.id.to_le_bytes());
        record.extend(self.generation.to_le_bytes());
        record.extend((frames.len() as u16).to_le_bytes());
        record.extend([end as u8, STACK_NATIVE, 0, 0, 0, 0]);
        record.extend(frames.iter().flat_map(|frame| frame.to_le_bytes()));
        record
    }
}

/// Where a walk is.
struct Walk {
    arch: Arch,
    /// Address that is looked up next.
    at: u64,
    /// Registers, as far as they are known.
    registers: [Option<u64>; REGISTERS],
    frames: Vec<u64>,
    /// In-flight calls not passed yet.
    calls: usize,
}

impl Walk {
    fn new(snapshot: &Snapshot<'_>, arch: Arch) -> Self {
        let mut registers = [None; REGISTERS];
        registers[usize::from(arch.stack_pointer())] = Some(snapshot.stack_pointer);
        registers[usize::from(arch.frame_pointer())] = Some(snapshot.frame_pointer);
        if arch == Arch::Aarch64 {
            registers[usize::from(arch.return_address())] = Some(snapshot.link_register).filter(|link| *link != 0);
        }
        let at = snapshot.instruction_pointer;
        Self { arch, at, registers, frames: vec![at], calls: snapshot.replaced.len() }
    }

    fn register(&self, number: u16) -> Option<u64> {
        self.registers.get(usize::from(number)).copied().flatten()
    }

    /// Ends at an address without code: the caller's unwind information was wrong, and this is no frame.
    fn misled(&mut self) -> StackEnd {
        if self.frames.len() > 1 {
            self.frames.pop();
        }
        StackEnd::NoUnwindInfo
    }

    /// Ends without unwind information. The address that a return probe has put in place of a return address is no
    /// frame of the program.
    fn left(&mut self, end: StackEnd) -> StackEnd {
        if self.frames.len() > 1 && self.frames.last().copied().is_some_and(may_be_trampoline) {
            self.frames.pop();
        }
        end
    }

    fn value(&self, snapshot: &Snapshot<'_>, value: Value, cfa: Option<u64>) -> Result<u64, StackEnd> {
        let (Value::Is(place) | Value::At(place)) = value;
        let base = match place.base {
            Base::Nothing => Some(0),
            Base::Cfa => cfa,
            Base::Register(number) => self.register(number),
        };
        let address = base.ok_or(StackEnd::NoUnwindInfo)?.wrapping_add_signed(place.offset);
        match value {
            Value::Is(_) => Ok(address),
            Value::At(_) => snapshot.read(address).ok_or(StackEnd::Fault),
        }
    }

    /// The address that a value is stored at, if it is.
    fn stored_at(&self, value: Value, cfa: u64) -> Option<u64> {
        let Value::At(place) = value else { return None };
        let base = match place.base {
            Base::Nothing => 0,
            Base::Cfa => cfa,
            Base::Register(number) => self.register(number)?,
        };
        Some(base.wrapping_add_signed(place.offset))
    }

    /// At the end of a function registers have been restored from below the stack pointer, which compilers do not
    /// describe.
    fn is_taken_back(&self, snapshot: &Snapshot<'_>, value: Value, cfa: u64) -> bool {
        self.frames.len() == 1 && self.stored_at(value, cfa).is_some_and(|at| at < snapshot.stack_pointer)
    }

    fn go_on(&mut self, snapshot: &Snapshot<'_>, row: &Row) -> Result<(), StackEnd> {
        let stack_pointer = self.register(self.arch.stack_pointer()).ok_or(StackEnd::NoUnwindInfo)?;
        let cfa = self.value(snapshot, row.cfa.ok_or(StackEnd::NoUnwindInfo)?, None)?;
        let saved = row.saved(self.arch.return_address());
        // Only a leaf frame may take no room.
        if cfa < stack_pointer.saturating_add(saved.is_some().into()) || !cfa.is_multiple_of(8) {
            return Err(StackEnd::NoProgress);
        }
        let (ra_at, address) = match saved {
            None => (None, self.register(self.arch.return_address()).ok_or(StackEnd::NoUnwindInfo)?),
            Some(Saved::Lost | Saved::Unknown) => return Err(StackEnd::NoUnwindInfo),
            Some(Saved::Value(value)) => (self.stored_at(value, cfa), self.value(snapshot, value, Some(cfa))?),
        };
        let address = self.returned(snapshot, without_signature(address), ra_at, cfa);
        let mut registers = [None; REGISTERS];
        let all = self.arch.kept().iter().copied().chain([self.arch.stack_pointer()]);
        for number in all {
            registers[usize::from(number)] = match row.saved(number) {
                None if number == self.arch.stack_pointer() => Some(cfa),
                None => self.register(number),
                Some(Saved::Lost | Saved::Unknown) => None,
                Some(Saved::Value(value)) if self.is_taken_back(snapshot, value, cfa) => self.register(number),
                Some(Saved::Value(value)) => self.value(snapshot, value, Some(cfa)).ok(),
            };
        }
        if let Some(link) = row.link {
            let link = self.value(snapshot, Value::At(link), Some(cfa)).ok();
            registers[usize::from(self.arch.return_address())] = link.map(without_signature);
        }
        if registers[usize::from(self.arch.stack_pointer())].is_none_or(|caller| caller < cfa) {
            return Err(StackEnd::NoProgress);
        }
        if address == 0 {
            return Err(StackEnd::Root);
        }
        self.registers = registers;
        self.at = if row.signal { address } else { address - 1 };
        self.frames.push(address);
        Ok(())
    }

    /// The return address, also where a return probe has replaced it.
    fn returned(&mut self, snapshot: &Snapshot<'_>, mut address: u64, ra_at: Option<u64>, cfa: u64) -> u64 {
        let lowest = self.register(self.arch.stack_pointer()).unwrap_or(cfa);
        while may_be_trampoline(address) && self.calls > 0 {
            self.calls -= 1;
            let Some(call) = snapshot.replaced.get(self.calls) else { continue };
            let same = match self.arch {
                // It was saved anywhere in the frame, after the probe.
                Arch::Aarch64 => (lowest..=cfa).contains(&call.stack_pointer),
                Arch::X86_64 => ra_at == Some(call.stack_pointer),
            };
            if same && call.address != 0 {
                address = without_signature(call.address);
            }
        }
        address
    }
}
