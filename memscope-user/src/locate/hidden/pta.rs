//! `torch_npu::profiler::reportMemoryDataToNpuProfiler(const MemoryUsage &)` in `libtorch_npu.so`.
//!
//! The library is stripped and the function hidden. But it makes a `MemoryData` of `libnpu_profiler.so`, so it loads
//! the address of that class's table of virtual functions from the global offset table. In every examined build, 2.1 to
//! 2.14 on both architectures, two functions do: this one, and a virtual function for `PyTorch`'s own profiler, which
//! takes the same values one by one.
//!
//! **Which of the two.** The virtual one is reached through a table, hence never called directly. Ours is called from
//! every place that hands out or takes back a block: 6 times up to 2.4, 8 times since. So the number is no constant,
//! but "none or some" is a difference that no inlining can reverse: a function that is neither virtual nor called would
//! not be in the file. Three calls are required, as allocation, free and block-free are three functions.
//!
//! **Cross-checks**, both independent of the search:
//! * *Argument layout.* Behind its first argument it must read exactly the bytes that are fields of `MemoryUsage`: 0 to
//!   3, or 0 to 4 since 2.5, and 8 to 55, never the padding between or any bytes after. The probe reads the same.
//! * *Allocator's vtable.* Functions in the table of the caching allocator, found by the type's name, lead to it by
//!   direct calls. Without such a class, this check is skipped and the result says so.
//!
//! If either contradicts, or any step above is not unique, the function counts as not found.

use std::{cell::OnceCell, collections::BTreeSet};

use super::{
    Checked, Evidence, FoundBy, NotLocated, argument,
    code::{Code, MAX_SITES},
    functions::{Function, Functions},
    object, once,
    op::Flow,
    vtable,
};
use crate::{
    os::elf::{ElfFile, dynamic::Pointer},
    probes::PoolFunction,
};

/// The class that it makes objects of.
const VTABLE: &str = "_ZTVN9torch_npu7toolkit8profiler10MemoryDataE";
/// The class that calls it, as its type information spells it.
const ALLOCATOR: &str = "N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE";

/// `c10_npu::NPUCachingAllocator::allocator`, the pointer to it.
const POINTER: &str = "_ZN7c10_npu19NPUCachingAllocator9allocatorE";
/// `c10_npu::NPUGraph`'s functions that use the allocator's functions for pools of their own, in the order of [`PoolFunction`].
const GRAPHS: [&[&str]; 3] = [
    &[
        "_ZN7c10_npu8NPUGraph13capture_beginESt4pairIyyE19aclmdlRICaptureMode",
        "_ZN7c10_npu8NPUGraph13capture_beginESt4pairIyyE19aclmdlRICaptureModeb",
    ],
    &["_ZN7c10_npu8NPUGraph11capture_endEv"],
    &["_ZN7c10_npu8NPUGraph5resetEv"],
];

/// Functions that make a `MemoryData`.
const MAKERS: usize = 2;
/// The fewest direct calls; see above.
const MIN_CALLERS: usize = 3;
/// Calls between the allocator's virtual functions and ours; at most 4 were seen.
const MAX_DEPTH: usize = 6;

/// Bytes of `MemoryUsage` that all versions read: four of one byte, then six words.
const FIELDS: u64 = 0x00ff_ffff_ffff_ff0f;
/// The kind of the allocator, which newer versions have and read too.
const ALLOCATOR_KIND: u64 = 1 << 4;

/// The entry of `allocate`, behind two destructors.
const ALLOCATE: usize = 2;
/// The entry of `copy_data`, the last function of `c10::Allocator`.
const COPY_DATA: usize = 5;
/// Functions of `c10::DeviceAllocator`: `initialized`, `emptyCache`, `recordStream`, three of statistics, `getMemoryInfo`.
const DEVICE_ALLOCATOR: usize = 7;

/// Bytes of a `c10::DataPtr` that are the address and the function that frees it.
const OF_DATA_PTR: u64 = 0xffff;

/// Virtual functions of the caching allocator that take the number of bytes asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Virtual {
    /// `allocate(size_t)`.
    Allocate,
    /// `raw_alloc(size_t)`.
    RawAlloc,
    /// `raw_alloc_with_stream(size_t, aclrtStream)`.
    RawAllocWithStream,
}

/// A library with the tables that the search needs.
pub(super) struct Search<'a> {
    elf: &'a ElfFile<'a>,
    code: Code<'a>,
    functions: Functions<'a>,
    slot: u64,
    table: OnceCell<Vec<Option<Function>>>,
    entries_of_graphs: OnceCell<[BTreeSet<usize>; 3]>,
    first_of_three: OnceCell<usize>,
}

impl<'a> Search<'a> {
    /// Cheap: scans only relocations.
    pub(super) fn of(elf: &'a ElfFile<'a>) -> Result<Self, NotLocated> {
        let code = Code::of(elf).ok_or(NotLocated::NoCode)?;
        let mut slots = elf.relocations()?.filter_map(|relocation| match relocation.pointer {
            Pointer::Offset(name) if name.is(VTABLE) => Some(relocation.slot),
            _ => None,
        });
        let slot = match (slots.next(), slots.next()) {
            (None, _) => return Err(NotLocated::NoImport { symbol: VTABLE }),
            (Some(slot), None) => slot,
            (Some(_), Some(_)) => return Err(NotLocated::Imports { symbol: VTABLE }),
        };
        let functions = Functions::of(elf).ok_or(NotLocated::NoFunctions)?;
        Ok(Self {
            elf,
            code,
            functions,
            slot,
            table: OnceCell::new(),
            entries_of_graphs: OnceCell::new(),
            first_of_three: OnceCell::new(),
        })
    }

    /// The whole search.
    pub(super) fn run(&self) -> Result<(Function, Evidence), NotLocated> {
        let makers = self.makers()?;
        if makers.len() != MAKERS {
            return Err(NotLocated::References { found: makers.len(), expected: MAKERS });
        }
        let calls: Vec<(Function, usize)> =
            makers.into_iter().map(|maker| Ok((maker, self.callers(maker)?))).collect::<Result<_, NotLocated>>()?;
        let mut called = calls.iter().filter(|(_, callers)| *callers > 0);
        let (Some((function, callers)), None) = (called.next(), called.next()) else {
            return Err(NotLocated::Callers { found: calls.into_iter().map(|(_, callers)| callers).collect() });
        };
        if *callers < MIN_CALLERS {
            return Err(NotLocated::FewCallers { found: *callers, expected: MIN_CALLERS });
        }
        self.check_argument(*function)?;
        let allocator = self.check_allocator(*function)?;
        Ok((*function, Evidence { callers: *callers, allocator, ..Evidence::NONE }))
    }

    /// Verifies a function found earlier, maybe in another file with the same build-id. Skips the slow part: the
    /// callers.
    pub(super) fn recheck(&self, vaddr: u64) -> Option<Function> {
        let function = self.functions.starting(vaddr)?;
        (self.code.loads(function, self.slot) && self.check_argument(function).is_ok()).then_some(function)
    }

    /// One of the allocator's virtual functions. That it leads to the report of blocks is what shows that it is the one.
    pub(super) fn virtual_function(&self, which: Virtual) -> Result<(Function, Evidence), NotLocated> {
        match which {
            Virtual::Allocate => self.reporting(ALLOCATE),
            Virtual::RawAlloc => self.at(self.first_of_three()? + 1),
            Virtual::RawAllocWithStream => self.at(self.first_of_three()? + 2),
        }
    }

    /// The function at an entry, which leads to the report of blocks.
    fn reporting(&self, entry: usize) -> Result<(Function, Evidence), NotLocated> {
        let (function, evidence) = self.at(entry)?;
        if self.is_reporting(function) { Ok((function, evidence)) } else { Err(NotLocated::NotAllocating { entry }) }
    }

    /// The function at an entry, unchecked.
    fn at(&self, entry: usize) -> Result<(Function, Evidence), NotLocated> {
        let function = self.table().get(entry).copied().flatten().ok_or(NotLocated::NoEntry { entry })?;
        Ok((function, Evidence::entry(entry, None)))
    }

    /// `emptyCache` of `c10::DeviceAllocator`, the second of its seven functions; `None` where the class does not inherit it.
    pub(super) fn empty_cache(&self) -> Result<Option<(Function, Evidence)>, NotLocated> {
        let entry = (self.first_of_three()? + 1).saturating_sub(DEVICE_ALLOCATOR);
        if entry <= COPY_DATA {
            return Ok(None);
        }
        self.reporting(entry).map(Some)
    }

    /// `recordStream`, in front of `eraseStream`: the two in a row that read the first two words of a `DataPtr` and nothing else of it, the address and
    /// the function that frees it. The second leads to the report of blocks, since it gives back a block that no other stream uses any more;
    /// the first does not.
    pub(super) fn record_stream(&self) -> Result<(Function, Evidence), NotLocated> {
        let takes_block = |function: &Function| argument::bytes_read(&self.code, *function, 1) == OF_DATA_PTR;
        let taking: Vec<Option<Function>> = self.table().iter().map(|entry| entry.filter(takes_block)).collect();
        let pairs = taking.windows(2).enumerate().filter_map(|(entry, pair)| match pair {
            &[Some(record), Some(erase)] => Some((entry, record, erase)),
            _ => None,
        });
        let pairs: Vec<_> =
            pairs.filter(|(_, record, erase)| !self.is_reporting(*record) && self.is_reporting(*erase)).collect();
        let &[(entry, record, _)] = &pairs[..] else { return Err(NotLocated::StreamPairs { found: pairs.len() }) };
        Ok((record, Evidence::entry(entry, Some(FoundBy::Argument))))
    }

    /// The entry of `allocate_with_aligned`, which `raw_alloc` and `raw_alloc_with_stream` follow: the first three entries in a
    /// row that all lead to the report. Their place depends on what the class inherits: `is_simple_data_ptr` and
    /// `copy_data` since 2.3 (ascend-abi §6.3), seven functions of `c10::DeviceAllocator` since 2.13, `emptyCache` among them.
    fn first_of_three(&self) -> Result<usize, NotLocated> {
        once(&self.first_of_three, || {
            let mut in_a_row = 0;
            for (entry, function) in self.table().iter().enumerate().skip(ALLOCATE + 1) {
                in_a_row = if function.is_some_and(|it| self.is_reporting(it)) { in_a_row + 1 } else { 0 };
                if in_a_row == 3 {
                    return Ok(entry - 2);
                }
            }
            Err(NotLocated::NoThree)
        })
        .copied()
    }

    /// Whether a function leads to the report of blocks.
    fn is_reporting(&self, function: Function) -> bool {
        let reached = vtable::reached(&self.code, &self.functions, &[function], MAX_DEPTH).unwrap_or_default();
        let reports =
            |function: &Function| self.code.loads(*function, self.slot) && self.check_argument(*function).is_ok();
        reached.iter().any(reports)
    }

    /// One of the allocator's virtual functions for pools of their own: `beginAllocateToPool`, `endAllocateToPool`,
    /// `releasePool`. They stand in this order in the table, and a graph uses the first where its capture begins, the
    /// second where that ends, the third where it is given up.
    pub(super) fn of_own_pools(&self, which: PoolFunction) -> Result<(Function, Evidence), NotLocated> {
        let [begin, end, release] = once(&self.entries_of_graphs, || self.find_entries_of_graphs())?;
        let wrong = || NotLocated::PoolEntries {
            found: [begin, end, release].map(|entries| entries.iter().copied().collect()),
        };
        let mut firsts = begin.iter().filter(|first| end.contains(&(**first + 1)) && release.contains(&(**first + 2)));
        let (Some(first), None) = (firsts.next(), firsts.next()) else { return Err(wrong()) };
        let entry = first + which as usize;
        let function = self.table().get(entry).copied().flatten().ok_or(NotLocated::NoEntry { entry })?;
        Ok((function, Evidence::entry(entry, Some(FoundBy::Graphs))))
    }

    /// The allocator's table of virtual functions.
    fn table(&self) -> &[Option<Function>] {
        self.table.get_or_init(|| vtable::table(self.elf, &self.functions, ALLOCATOR))
    }

    /// Entries of the allocator's table that functions of graphs use.
    fn find_entries_of_graphs(&self) -> Result<[BTreeSet<usize>; 3], NotLocated> {
        let slots = self.elf.relocations()?.filter_map(|relocation| match relocation.pointer {
            Pointer::Offset(name) if name.is(POINTER) => Some(relocation.slot),
            _ => None,
        });
        let slots: Vec<u64> = slots.take(2).collect();
        let &[slot] = &slots[..] else { return Err(NotLocated::NoGraphs) };
        let mut entries: [BTreeSet<usize>; 3] = Default::default();
        for (symbols, entries) in GRAPHS.iter().zip(&mut entries) {
            let starts = self.elf.resolve(symbols)?;
            if starts.is_empty() {
                return Err(NotLocated::NoGraphs);
            }
            let functions = starts.iter().filter_map(|start| self.functions.starting(start.vaddr));
            entries.extend(functions.flat_map(|function| object::entries(&self.code, function, slot)));
        }
        Ok(entries)
    }

    /// Functions that load the address of the class's table.
    fn makers(&self) -> Result<BTreeSet<Function>, NotLocated> {
        let sites = self.code.load_sites(self.slot);
        if sites.len() > MAX_SITES {
            return Err(NotLocated::References { found: sites.len(), expected: MAKERS });
        }
        let around: BTreeSet<Function> = sites.iter().filter_map(|site| self.functions.containing(*site)).collect();
        Ok(around.into_iter().filter(|function| self.code.loads(*function, self.slot)).collect())
    }

    /// Direct calls and tail calls from other functions.
    fn callers(&self, function: Function) -> Result<usize, NotLocated> {
        let sites = self.code.call_sites(function.start);
        if sites.len() > MAX_SITES {
            return Err(NotLocated::Callers { found: vec![sites.len()] });
        }
        let around: BTreeSet<Function> = sites.iter().filter_map(|site| self.functions.containing(*site)).collect();
        let real = around.into_iter().filter(|caller| *caller != function).flat_map(|caller| self.code.ops(caller));
        let calls = real.filter(|op| match op.flow {
            Flow::Call(target) => target == Some(function.start),
            Flow::Jump(target) => target == function.start,
            _ => false,
        });
        Ok(calls.count())
    }

    fn check_argument(&self, function: Function) -> Result<(), NotLocated> {
        let read = argument::bytes_read(&self.code, function, 0);
        if read & !ALLOCATOR_KIND == FIELDS {
            return Ok(());
        }
        Err(NotLocated::Argument { vaddr: function.start, read, expected: FIELDS })
    }

    fn check_allocator(&self, function: Function) -> Result<Checked, NotLocated> {
        let roots: Vec<Function> = self.table().iter().copied().flatten().collect();
        let reached = vtable::reached(&self.code, &self.functions, &roots, MAX_DEPTH);
        match reached.filter(|_| !roots.is_empty()) {
            None => Ok(Checked::NotPossible),
            Some(reached) if reached.contains(&function) => Ok(Checked::Agrees),
            Some(_) => Err(NotLocated::Allocator { vaddr: function.start }),
        }
    }
}
