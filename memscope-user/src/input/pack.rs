//! Rows as bytes, for sorting.

use std::borrow::Cow;

use crate::backend::Backend;
use crate::dump_format::row::{DumpRow, Kind, Texts};
use crate::model::{AccessKind, AllocApi, Device, Module, Name, OpPhase, PageType, Pool, Stack, Stacks};

/// Pools, by the number that stands for them.
fn pools() -> &'static [Pool] {
    <&dyn Backend>::default().pools()
}

const KINDS: [Kind; 16] = [
    Kind::Access(AccessKind::Read),
    Kind::Access(AccessKind::Write),
    Kind::Access(AccessKind::Unknown),
    Kind::Op(OpPhase::Start),
    Kind::Op(OpPhase::End),
    Kind::Op(OpPhase::Submit),
    Kind::AtbOp(true),
    Kind::AtbOp(false),
    Kind::Launch,
    Kind::Mark,
    Kind::RangeStart,
    Kind::RangeEnd,
    Kind::AclInit,
    Kind::AclFinalize,
    Kind::Step,
    Kind::OutOfMemory,
];
const PAGES: [PageType; 3] = [PageType::Normal, PageType::Huge, PageType::Giant];
const APIS: [AllocApi; 3] = [AllocApi::Alloc, AllocApi::Create, AllocApi::Register];

fn place<T: PartialEq>(known: &[T], it: &T) -> u8 {
    known.iter().position(|other| other == it).unwrap_or(0) as u8
}

/// Stands for a pool with a custom name, which is packed with the row.
const NAMED: u8 = 0x3f;

fn pool_place(pool: Pool) -> u8 {
    if pool.custom_name().is_some() { NAMED } else { place(pools(), &pool) }
}

fn pool_at(place: u8, name: &str) -> Pool {
    if place & NAMED == NAMED { Pool::custom(name) } else { at(pools(), place & NAMED) }
}

/// Appends a row.
pub(super) fn pack(row: &DumpRow, out: &mut Vec<u8>) {
    let kind = match row.kind {
        Kind::Malloc(pool) => 0x40 | pool_place(pool),
        Kind::Free(pool) => 0x80 | pool_place(pool),
        Kind::Returned(pool) => 0xc0 | pool_place(pool),
        other => place(&KINDS, &other),
    };
    let (device, number) = match row.device {
        Device::Npu(number) => (0, number),
        Device::Cpu => (1, 0),
        Device::None => (2, 0),
    };
    let numbers = [row.ptr, row.allocation_id, row.size_bytes, row.used_bytes, row.total_bytes, row.number];
    let present = numbers.iter().enumerate().fold(0, |bits, (bit, number)| bits | u8::from(number.is_some()) << bit);
    let (page, api) = (place(&PAGES, &row.page), place(&APIS, &row.api));
    out.extend([
        kind,
        device,
        present,
        u8::from(row.shadow) | u8::from(row.found) << 1,
        page,
        api,
        place(pools(), &row.pool),
    ]);
    out.extend([u8::from(row.module_id.is_some()), row.module_id.map_or(0, Module::id)]);
    for number in [row.pid, row.tid, number, row.file] {
        out.extend(number.to_le_bytes());
    }
    for number in [row.id, row.time_ns, row.line].into_iter().chain(numbers.into_iter().flatten()) {
        out.extend(number.to_le_bytes());
    }
    // Kept for good in this process, so their numbers will do.
    for stack in [row.stacks.native, row.stacks.python] {
        out.extend(stack.map_or(0, Stack::number).to_le_bytes());
    }
    let named = match row.kind {
        Kind::Malloc(pool) | Kind::Free(pool) | Kind::Returned(pool) => pool.custom_name(),
        _ => None,
    };
    let named = named.unwrap_or(Name::fixed(&""));
    let owner = row.owner.map_or("", Name::as_str);
    let Texts { name, word, format, shape } = row.texts();
    for text in [named.as_str(), owner, name, word, format, shape] {
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.bytes());
    }
}

/// Takes bytes off, front to back. They are our own, so missing ones read as zero.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((head, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *head
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn text(&mut self) -> Cow<'a, str> {
        let len = self.word() as usize;
        let (text, rest) = self.0.split_at_checked(len).unwrap_or((self.0, &[]));
        self.0 = rest;
        String::from_utf8_lossy(text)
    }
}

fn at<T: Copy>(known: &[T], place: u8) -> T {
    known.get(usize::from(place)).copied().unwrap_or(known[0])
}

/// The packed row.
pub(super) fn unpack(bytes: &[u8]) -> DumpRow {
    let mut bytes = Bytes(bytes);
    let [kind, device, present, marks, page, api, pool] = bytes.take();
    let [has_module, module] = bytes.take();
    let [pid, tid, number, file] = [(); 4].map(|()| bytes.word());
    let [id, time_ns, line] = [(); 3].map(|()| bytes.long());
    let mut optional = |bit: u8| (present & 1 << bit != 0).then(|| bytes.long());
    let (ptr, allocation_id, size_bytes) = (optional(0), optional(1), optional(2));
    let (used_bytes, total_bytes, other) = (optional(3), optional(4), optional(5));
    let [native, python] = [(); 2].map(|()| Stack::of_number(bytes.word()));
    let [pool_name, owner] = [(); 2].map(|()| bytes.text());
    let [name, word, format, shape] = [(); 4].map(|()| bytes.text().into_owned());
    let texts = Texts { name, word, format, shape };
    DumpRow {
        kind: match kind & 0xc0 {
            0x40 => Kind::Malloc(pool_at(kind, &pool_name)),
            0x80 => Kind::Free(pool_at(kind, &pool_name)),
            0xc0 => Kind::Returned(pool_at(kind, &pool_name)),
            _ => at(&KINDS, kind),
        },
        id,
        time_ns,
        pid,
        tid,
        device: match device {
            0 => Device::Npu(number),
            1 => Device::Cpu,
            _ => Device::None,
        },
        file,
        line,
        ptr,
        owner: (!owner.is_empty()).then(|| Name::keep(&owner)),
        allocation_id,
        size_bytes,
        used_bytes,
        total_bytes,
        number: other,
        shadow: marks & 1 != 0,
        found: marks & 2 != 0,
        page: at(&PAGES, page),
        api: at(&APIS, api),
        module_id: (has_module != 0).then(|| <&dyn Backend>::default().module(module)),
        pool: at(pools(), pool),
        texts: (texts != Texts::default()).then(|| Box::new(texts)),
        stacks: Stacks { native, python, mixed: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::{modules, pools};
    use crate::model::StackEnd;

    #[test]
    fn rows_survive() {
        let full = DumpRow {
            kind: Kind::Free(pools::MIND_SPORE),
            id: 1,
            time_ns: u64::MAX,
            pid: 2,
            tid: 3,
            device: Device::Npu(31),
            file: 4,
            line: 5,
            ptr: Some(6),
            allocation_id: None,
            size_bytes: Some(0),
            used_bytes: None,
            total_bytes: Some(8),
            number: Some(9),
            shadow: true,
            found: true,
            page: PageType::Giant,
            api: AllocApi::Create,
            module_id: Some(modules::of(33)),
            owner: Some(Name::fixed(&"PTA@weight")),
            pool: pools::ATB,
            texts: Some(Box::new(Texts {
                name: "näme".to_owned(),
                word: "mine".to_owned(),
                format: "ACL_FORMAT_ND".to_owned(),
                shape: "[1,5,]".to_owned(),
            })),
            stacks: Stacks { native: Some(Stack::keep(["f"], StackEnd::Root)), ..Stacks::default() },
        };
        let kinds = KINDS.into_iter().chain(
            pools::ALL.iter().copied().flat_map(|pool| [Kind::Malloc(pool), Kind::Free(pool), Kind::Returned(pool)]),
        );
        for kind in kinds {
            let row = DumpRow { kind, ..full.clone() };
            let mut bytes = Vec::new();
            pack(&row, &mut bytes);
            assert_eq!(unpack(&bytes), row);
        }
    }
}
