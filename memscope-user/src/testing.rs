//! Records made by hand, for tests.

pub(crate) mod ops;

use memscope_common::record::{CALL_TEXT_AT, CALL_TEXT_MORE, CALL_TEXT_NULL, TEXT_CHUNK};
use memscope_common::{Kind, StackEnd};

use crate::backend::builtin;
use crate::capture::{Function, Note, Symbol, note_record};
use crate::model::{AllocApi, Block, Device, PageType, Pool, Stacks};
use crate::probes::RowInfo;

/// Flag word of a device allocation on device `id` by module `APP`.
pub(crate) const fn device(id: u64) -> u64 {
    33 << 56 | 1 << 10 | id
}

/// Flag word of a host allocation.
pub(crate) const HOST: u64 = 33 << 56 | 2 << 10;

/// All built-in rows as a reader knows them.
pub(crate) fn rows() -> Vec<RowInfo> {
    builtin().map(crate::probes::ProbeSpec::describe).collect()
}

/// Number of the row of `symbol`.
pub(crate) fn row(symbol: &str) -> u16 {
    let index = builtin().position(|spec| spec.symbol == symbol).expect("a built-in row");
    index as u16 + 1
}

/// A block on device 0 that thread 1 allocates at time 1, without a call stack; its address is its number, too.
pub(crate) fn block(pool: Pool, addr: u64, size_bytes: u64) -> Block {
    Block {
        allocation_id: addr,
        pool,
        device: Device::Npu(0),
        addr,
        size_bytes,
        requested_bytes: None,
        alloc_time_ns: 1,
        alloc_id: 0,
        tid: 1,
        step: 0,
        kernel_index: 0,
        module_id: None,
        page: PageType::Normal,
        api: AllocApi::Alloc,
        caller: None,
        stacks: Stacks::default(),
        owner: None,
        found: false,
        held_as: None,
    }
}

/// The caller, and the time.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub(crate) time_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

/// Thread `tid` of process `pid` at `time_ns`.
pub(crate) const fn at(time_ns: u64, pid: u32, tid: u32) -> Who {
    Who { time_ns, pid, tid }
}

/// Main thread of process 7.
pub(crate) const fn main(time_ns: u64) -> Who {
    at(time_ns, 7, 7)
}

impl Who {
    pub(crate) fn alloc(self, addr: u64, size: u64, flags: u64) -> Vec<u8> {
        self.returned("halMemAlloc", 0, &[addr, size, flags])
    }

    pub(crate) fn alloc_failed(self, status: i64, size: u64, flags: u64) -> Vec<u8> {
        self.returned("halMemAlloc", status, &[0, size, flags])
    }

    pub(crate) fn create(self, handle: u64, size: u64, side_device: (u64, u64), module_page: (u64, u64)) -> Vec<u8> {
        self.returned(
            "halMemCreate",
            0,
            &[handle, size, side_device.1 << 32 | side_device.0, module_page.1 << 32 | module_page.0],
        )
    }

    pub(crate) fn free(self, addr: u64) -> Vec<u8> {
        self.entered("halMemFree", &[addr])
    }

    pub(crate) fn free_failed(self, addr: u64) -> Vec<u8> {
        self.returned("halMemFree", 3, &[addr])
    }

    pub(crate) fn release(self, handle: u64) -> Vec<u8> {
        self.entered("halMemRelease", &[handle])
    }

    pub(crate) fn set_device(self, device: u64) -> Vec<u8> {
        self.returned("aclrtSetDevice", 0, &[device])
    }

    pub(crate) fn launch(self, handle: u64, stream: u64) -> Vec<u8> {
        self.entered("rtKernelLaunch", &[handle, stream])
    }

    pub(crate) fn kernel_name(self, handle: u64, name: &str) -> Vec<u8> {
        self.call(Kind::Return, "rtFunctionRegister", 0, &[handle], Some(name.as_bytes()))
    }

    pub(crate) fn mark(self, text: &str) -> Vec<u8> {
        self.call(Kind::Enter, "mstxMarkA", 0, &[], Some(text.as_bytes()))
    }

    pub(crate) fn null_mark(self) -> Vec<u8> {
        let mut bytes = self.entered("mstxMarkA", &[]);
        bytes[34] = CALL_TEXT_NULL;
        bytes
    }

    pub(crate) fn range_start(self, text: &str) -> Vec<u8> {
        self.call(Kind::Enter, "mstxRangeStartA", 0, &[], Some(text.as_bytes()))
    }

    pub(crate) fn range_id(self, id: i64) -> Vec<u8> {
        self.returned("mstxRangeStartA", id, &[])
    }

    pub(crate) fn range_end(self, id: u64) -> Vec<u8> {
        self.entered("mstxRangeEnd", &[id])
    }

    pub(crate) fn fork(self, child: u32) -> Vec<u8> {
        self.record(Kind::Fork, 0, &[child.to_le_bytes(), [0; 4]].concat())
    }

    pub(crate) fn exec(self) -> Vec<u8> {
        self.record(Kind::Exec, 0, &[0; 8])
    }

    pub(crate) fn note(self, note: &Note) -> Vec<u8> {
        note_record(self.time_ns, self.pid, note)
    }

    pub(crate) fn start(self, attached: bool, visible_devices: Option<&str>) -> Vec<u8> {
        let (pid, command) = (self.pid, "prog".to_owned());
        let visible_devices = visible_devices.map(str::to_owned);
        self.note(&Note::ProcessStart {
            pid,
            parent: 0,
            attached,
            command,
            visible_devices,
            pid_within: None,
            device: None,
        })
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.note(&Note::ProcessEnd { pid: self.pid })
    }

    pub(crate) fn entered(self, symbol: &str, values: &[u64]) -> Vec<u8> {
        self.call(Kind::Enter, symbol, 0, values, None)
    }

    pub(crate) fn returned(self, symbol: &str, status: i64, values: &[u64]) -> Vec<u8> {
        self.call(Kind::Return, symbol, status, values, None)
    }

    /// The record of a call that the thread made from inside of a call of `outer`.
    pub(crate) fn within(outer: &str, mut record: Vec<u8>) -> Vec<u8> {
        record[22..24].copy_from_slice(&row(outer).to_le_bytes());
        record
    }

    /// A report of `torch_npu` on a block of device 1: change and component, address, size, allocated, reserved,
    /// active.
    pub(crate) fn pta(self, (component, change): (u8, u8), addr: u64, size: i64, totals: [u64; 3]) -> Vec<u8> {
        // The padding is not zero in real processes.
        let kind = u64::from_le_bytes([20, 1, component, change, 0x77, 0x5a, 0xa5, 0xff]);
        let [allocated, reserved, active] = totals;
        self.entered("reportMemoryDataToNpuProfiler", &[kind, addr, size as u64, allocated, reserved, active, 0])
    }

    /// A call; a text longer than a record can hold continues in text records, as from the kernel side.
    pub(crate) fn call(self, kind: Kind, symbol: &str, status: i64, values: &[u64], text: Option<&[u8]>) -> Vec<u8> {
        let text = text.unwrap_or_default();
        let parts: Vec<&[u8]> = text.chunks(TEXT_CHUNK - 1).collect();
        let more = |index: usize| {
            if index + 1 < parts.len() { CALL_TEXT_MORE } else { 0 }
        };
        let first = parts.first().copied().unwrap_or_default();
        let mut bytes = status.to_le_bytes().to_vec();
        bytes.extend([values.len() as u8, 0, more(0), 0]);
        bytes.extend((first.len() as u32).to_le_bytes());
        // No stacks.
        bytes.extend([0; 16]);
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        if !first.is_empty() {
            bytes.resize(CALL_TEXT_AT - 24, 0);
            bytes.extend(first);
        }
        let mut out = self.record(kind, row(symbol), &bytes);
        for (index, part) in parts.iter().enumerate().skip(1) {
            let mut bytes = (index as u16).to_le_bytes().to_vec();
            bytes.extend(u16::from(more(index)).to_le_bytes());
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(*part);
            out.extend(self.record(Kind::Text, row(symbol), &bytes));
        }
        out
    }

    /// The record of a call, with the ids of its stacks; 0 is none.
    pub(crate) fn stacked(mut record: Vec<u8>, native: u64, python: u64) -> Vec<u8> {
        record[40..48].copy_from_slice(&native.to_le_bytes());
        record[48..56].copy_from_slice(&python.to_le_bytes());
        record
    }

    /// The stack behind the id of a native stack.
    pub(crate) fn native(self, id: u64, generation: u64, addresses: &[u64], end: StackEnd) -> Vec<u8> {
        self.stack((id, generation), 1, end, addresses.len(), addresses.iter().flat_map(|a| a.to_le_bytes()).collect())
    }

    /// The same of a Python stack: code, last instruction, fingerprint.
    pub(crate) fn python(self, id: u64, generation: u64, frames: &[(u64, u32, u32)], end: StackEnd) -> Vec<u8> {
        let bytes = |(code, last, fingerprint): &(u64, u32, u32)| {
            [code.to_le_bytes().as_slice(), &last.to_le_bytes(), &fingerprint.to_le_bytes()].concat()
        };
        self.stack((id, generation), 2, end, frames.len(), frames.iter().flat_map(bytes).collect())
    }

    fn stack(self, (id, generation): (u64, u64), which: u8, end: StackEnd, count: usize, frames: Vec<u8>) -> Vec<u8> {
        let mut bytes = [id.to_le_bytes(), generation.to_le_bytes()].concat();
        bytes.extend((count as u16).to_le_bytes());
        bytes.extend([end as u8, which, 0, 0, 0, 0]);
        bytes.extend(frames);
        self.record(Kind::Stack, 0, &bytes)
    }

    /// A code object of Python 3.11 that begins in line 1: where, file, name, line table.
    pub(crate) fn code(self, (address, fingerprint): (u64, u32), file: &str, name: &str, lines: &[u8]) -> Vec<u8> {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(fingerprint.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([11, 1, 1, 0]);
        for len in [name.len(), file.len(), lines.len()] {
            bytes.extend((len as u16).to_le_bytes());
        }
        bytes.extend([0; 6]);
        bytes.extend([name.as_bytes(), file.as_bytes(), lines].concat());
        self.record(Kind::Code, 0, &bytes)
    }

    /// Symbols at addresses: module, its offset, function and its offset; an empty function is none.
    pub(crate) fn symbols(self, generation: u64, of: &[(u64, &str, u64, &str, u64)]) -> Vec<u8> {
        let symbol = |&(address, module, module_offset, name, offset): &(u64, &str, u64, &str, u64)| Symbol {
            address,
            module: module.to_owned(),
            module_offset,
            functions: (!name.is_empty())
                .then(|| Function { name: name.to_owned(), offset, source: None, inlined: false })
                .into_iter()
                .collect(),
        };
        self.note(&Note::Symbols { generation, symbols: of.iter().map(symbol).collect() })
    }

    /// Any record.
    pub(crate) fn record(self, kind: Kind, row: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = self.time_ns.to_le_bytes().to_vec();
        bytes.extend(self.pid.to_le_bytes());
        bytes.extend(self.tid.to_le_bytes());
        bytes.extend((kind as u16).to_le_bytes());
        bytes.extend(row.to_le_bytes());
        bytes.extend((24 + body.len() as u16).to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(body);
        bytes
    }
}

/// Small fast random numbers for fuzz loops (xorshift64*), the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) const fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Changes up to eight bytes, or cuts the end off.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(8) {
            if bytes.is_empty() {
                return;
            }
            let index = self.below(bytes.len());
            match self.below(8) {
                0 => bytes.truncate(index),
                1 => bytes[index] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => bytes[index] ^= 1 << self.below(8),
                3 => {
                    bytes.remove(index);
                }
                _ => bytes[index] = self.next() as u8,
            }
        }
    }
}

/// A stream with every kind of record.
pub(crate) fn variety() -> Vec<u8> {
    [
        at(1, 7, 7).start(false, Some("4,5")),
        at(2, 7, 7).set_device(1),
        at(3, 7, 8).alloc(0x1000, 64, device(5)),
        at(4, 7, 8).alloc_failed(6, 1 << 40, device(5)),
        at(5, 7, 8).create(0x5000, 1 << 21, (1, 5), (3, 1)),
        at(6, 7, 7).range_start("step start"),
        at(7, 7, 7).range_id(11),
        at(8, 7, 7).mark(&"long text ".repeat(60)),
        at(9, 7, 7).kernel_name(0x77, "add"),
        at(10, 7, 7).launch(0x77, 0),
        at(11, 7, 8).free(0x1000),
        at(12, 7, 8).free_failed(0x1000),
        at(13, 7, 8).free(0x9999),
        at(14, 7, 7).range_end(11),
        at(15, 7, 7).fork(9),
        at(16, 9, 9).exec(),
        at(17, 9, 9).null_mark(),
        at(18, 0, 0).note(&Note::Clock { mono_ns: 18, real_ns: 1_000_018 }),
        at(19, 0, 0).note(&Note::Watermark { mono_ns: 10 }),
        at(20, 7, 7).release(0x5000),
        at(20, 7, 7).returned("halMemAddressReserve", 0, &[0x7000, 1 << 30]),
        at(20, 7, 7).returned("halMemMap", 0, &[0x7000, 1 << 21, 0x5000]),
        at(20, 7, 7).entered("halMemUnmap", &[0x7000]),
        at(20, 7, 7).returned("aclrtMallocAlign32", 207_001, &[1 << 40, 0]),
        at(20, 7, 7).pta((0, 0), 0x9000, 512, [512, 1024, 512]),
        at(20, 7, 7).pta((0, 2), 0x9000, -512, [0, 1024, 0]),
        at(20, 7, 7).pta((0, 1), 0x9000, -512, [0, 1024, 0]),
        at(20, 0, 0).note(&Note::Usage { device: 5, used_bytes: 9, total_bytes: 99, processes: Some(vec![(7, 8)]) }),
        at(20, 7, 7).native(5, 1, &[0x40_1000, 0x40_2000, 0x7f00], StackEnd::Depth),
        at(20, 7, 7).code((0xc0de, 3), "a.py", "f", &[0x80, 0]),
        at(20, 7, 7).python(6, 1, &[(0xc0de, 2, 3), (0xbad, 0, 0)], StackEnd::Root),
        at(20, 7, 7).symbols(1, &[(0x40_1000, "app", 0x1000, "main", 4), (0x40_2000, "app", 0x2000, "", 0)]),
        Who::stacked(at(20, 7, 7).alloc(0xa000, 64, device(5)), 5, 6),
        Who::stacked(at(20, 7, 7).free(0xa000), 5, 99),
        at(21, 7, 7).end(),
        at(22, 0, 0).note(&Note::End { reason: "done".to_owned() }),
    ]
    .concat()
}
