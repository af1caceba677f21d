//! Expected values are from the manuals of DWARF and of both machines, worked out by hand.

use std::{fs, sync::Arc};

use memscope_common::unwind::{
    RULE_CFA_STORED, RULE_END, RULE_FP, RULE_FP_AT_REGISTER, RULE_FP_SAVED, RULE_LINK_SAVED, RULE_RA_AT_REGISTER,
    RULE_RA_SAVED, RULE_SIGNAL, RULE_SP, RULE_USER,
};

use super::*;

const X86: u8 = 62;
const ARM: u8 = 183;
const HEADER: usize = 64 + 2 * 56;

/// An entry of `.eh_frame`: its length, then `body`, filled up.
fn unit(mut body: Vec<u8>) -> Vec<u8> {
    while !(body.len() + 4).is_multiple_of(8) {
        body.push(0);
    }
    [(body.len() as u32).to_le_bytes().to_vec(), body].concat()
}

/// A file with one function at `0x10_0000`, 64 bytes long, with the rows of `first` and `instructions`.
fn file(machine: u8, returns: u8, first: &[u8], instructions: &[u8]) -> Vec<u8> {
    // Version 1; augmentation with the encoding of addresses (from here, four bytes); steps of 4 and -8.
    let step = if machine == ARM { 4 } else { 1 };
    let common = [&[0, 0, 0, 0, 1, b'z', b'R', 0, step, 0x78, returns, 1, 0x1b][..], first].concat();
    let common = unit(common);
    let frames = HEADER + 20;
    let own = frames + common.len();
    let here = own + 8;
    let mut body = ((common.len() + 4) as u32).to_le_bytes().to_vec();
    body.extend((0x10_0000 - here as i32).to_le_bytes());
    body.extend(64_u32.to_le_bytes());
    body.push(0);
    body.extend(instructions);
    // The table, and its one pair, both counted from the table.
    let mut table = vec![1, 0x1b, 0x03, 0x3b];
    table.extend(16_u32.to_le_bytes());
    table.extend(1_u32.to_le_bytes());
    table.extend((0x10_0000 - HEADER as i32).to_le_bytes());
    table.extend((own as i32 - HEADER as i32).to_le_bytes());
    let frames = [table, common, unit(body)].concat();
    let segment = |kind: u32, flags: u32, at: [u64; 3]| {
        let words = [at[0], at[1], at[1], at[2], at[2], 8].map(u64::to_le_bytes);
        [&kind.to_le_bytes()[..], &flags.to_le_bytes(), &words.concat()].concat()
    };
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, machine, 0, 1, 0, 0, 0];
    bytes.extend([0_u64, 64, 0].map(u64::to_le_bytes).concat());
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    // All of the file at 0, readable.
    bytes.extend(segment(1, 4, [0, 0, (HEADER + frames.len()) as u64]));
    bytes.extend(segment(0x6474_e550, 4, [HEADER as u64, HEADER as u64, frames.len() as u64]));
    bytes.extend(frames);
    bytes
}

/// The same file with headers of the sections `.eh_frame` and of names.
fn with_sections(mut bytes: Vec<u8>) -> Vec<u8> {
    let frames = (HEADER + 20) as u64;
    let (names, headers) = (bytes.len() as u64, bytes.len() as u64 + 16);
    bytes.extend(b".eh_frame\0\0\0\0\0\0\0");
    let section = |offset: u64, size: u64| {
        let words = [0, 0, offset, offset, size, 0, 0, 0];
        words.map(u64::to_le_bytes).concat()
    };
    bytes.extend(section(frames, names - frames));
    bytes.extend(section(names, 16));
    bytes[40..48].copy_from_slice(&headers.to_le_bytes());
    bytes[58..64].copy_from_slice(&[64, 0, 2, 0, 1, 0]);
    bytes
}

fn opened(bytes: &[u8]) -> Image {
    Image::open(&Content::Memory(bytes.into())).expect("unwind information")
}

fn rule(image: &Image, vaddr: u64) -> Rule {
    image.row_at(vaddr, 0x7000_0000_0000 + vaddr).expect("a row").rule()
}

/// `push %rbp; mov %rsp,%rbp`, and the outermost frame.
#[test]
fn rules_of_x86() {
    // CFA = r7 + 8, the return address at CFA - 8. After 1: CFA + 16, r6 at CFA - 16. After 4: CFA = r6 + 16.
    let image = opened(&file(X86, 16, &[0x0c, 7, 8, 0x90, 1], &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6]));
    let entry = Rule { kind: RULE_SP, flags: RULE_RA_SAVED, reserved: 0, cfa: 8, ra: -8, fp: 0 };
    let pushed = Rule { flags: RULE_RA_SAVED | RULE_FP_SAVED, cfa: 16, fp: -16, ..entry };
    assert_eq!(rule(&image, 0x10_0000), entry);
    assert_eq!(rule(&image, 0x10_0001), pushed);
    assert_eq!(rule(&image, 0x10_0003), pushed);
    assert_eq!(rule(&image, 0x10_0004), Rule { kind: RULE_FP, ..pushed });
    assert_eq!(rule(&image, 0x10_003f), Rule { kind: RULE_FP, ..pushed });
    assert!(image.row_at(0x10_0040, 0).is_none() && image.row_at(0x0f_ffff, 0).is_none());
    let outermost = opened(&file(X86, 16, &[0x0c, 7, 8, 0x07, 16], &[]));
    assert_eq!(rule(&outermost, 0x10_0000).kind, RULE_END);
    // CFA = r12: only user space may know that.
    let other = opened(&file(X86, 16, &[0x0c, 12, 8, 0x90, 1], &[]));
    assert_eq!(rule(&other, 0x10_0000).kind, RULE_USER);
}

/// A realigned frame: its values are stored, counted from the frame pointer.
#[test]
fn rules_of_expressions() {
    // CFA = *(r6 - 8), r6 at r6 + 0.
    let first = [0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0, 0x90, 1];
    let image = opened(&file(X86, 16, &first, &[]));
    let flags = RULE_RA_SAVED | RULE_CFA_STORED | RULE_FP_SAVED | RULE_FP_AT_REGISTER;
    assert_eq!(rule(&image, 0x10_0000), Rule { kind: RULE_FP, flags, reserved: 0, cfa: -8, ra: -8, fp: 0 });
    // The linkage table: CFA = r7 + 8 + ((rip & 15) >= 11 ? 8 : 0).
    let first = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22, 0x90, 1];
    let image = opened(&file(X86, 16, &first, &[]));
    let at = |cfa| Rule { kind: RULE_SP, flags: RULE_RA_SAVED, reserved: 0, cfa, ra: -8, fp: 0 };
    assert_eq!(rule(&image, 0x10_0000), at(8));
    assert_eq!(rule(&image, 0x10_000a), at(8));
    assert_eq!(rule(&image, 0x10_000b), at(16));
    assert_eq!(rule(&image, 0x10_001f), at(16));
    assert_eq!(rule(&image, 0x10_0020), at(8));
}

/// Rows as they are counted by hand: a rule from the first address on, one that only user space can follow, one that
/// no reader can.
#[test]
fn rows_are_surveyed() {
    // CFA = r7 + 8; then CFA = r10 (realigned); then CFA by an expression in an unknown form (`DW_OP_over`).
    let rows = [0x41, 0x0c, 10, 0, 0x41, 0x0f, 3, 0x77, 0, 0x14];
    let image = opened(&with_sections(file(X86, 16, &[0x0c, 7, 8, 0x90, 1], &rows)));
    let survey = Survey::of_image(&image).expect("unwind information");
    let expected = Survey { entries: 1, broken_entries: 0, rows: 3, rows_outside: 1, rows_not_understood: 1 };
    assert_eq!(survey, expected);
}

/// `stp x29,x30,[sp,#-32]!; mov x29,sp`.
#[test]
fn rules_of_arm() {
    // CFA = r31. After one instruction CFA + 32, r29 at CFA - 32, r30 at CFA - 24. After two CFA = r29 + 32.
    let rows = [0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x41, 0x0d, 29];
    let image = opened(&file(ARM, 30, &[0x0c, 31, 0], &rows));
    assert_eq!(image.arch(), Arch::Aarch64);
    let leaf = Rule { kind: RULE_SP, ..Rule::default() };
    let saved = Rule { flags: RULE_RA_SAVED | RULE_FP_SAVED, cfa: 32, ra: -24, fp: -32, ..leaf };
    assert_eq!(rule(&image, 0x10_0000), leaf);
    assert_eq!(rule(&image, 0x10_0004), saved);
    assert_eq!(rule(&image, 0x10_0008), Rule { kind: RULE_FP, ..saved });
}

const MAPPED_AT: u64 = 0x7f00_0000_0000;

/// A file, mapped from its start on.
fn mapped() -> Module {
    Module {
        start: MAPPED_AT,
        end: MAPPED_AT + 0x1000_0000,
        file_offset: 0,
        first: MAPPED_AT,
        id: crate::os::maps::FileId { device: (0, 0), inode: 1 },
        path: Arc::from(std::path::Path::new("/library")),
        content: Content::None,
        serial: 1,
    }
}

/// `mov x8, #139; svc #0` without unwind information, as kernels for aarch64 have it. Offsets are a compiler's, of
/// `siginfo_t` and `ucontext_t` in a row: `x29` 544, `x30` 552, `sp` 560, `pc` 568, `x19` 464.
#[test]
fn signal_handlers_of_arm_return_by_known_code() {
    const CODE_AT: u64 = 64 + 56;
    let mut bytes = file(ARM, 30, &[], &[]);
    // One segment, executable, and nothing but code behind it: `nop`, twice the code, `ret`.
    bytes[56] = 1;
    bytes.truncate(CODE_AT as usize);
    bytes[64 + 4] = 5;
    for word in [0xd503_201f_u32, 0xd280_1168, 0xd400_0001, 0xd65f_03c0] {
        bytes.extend(word.to_le_bytes());
    }
    let image = opened(&bytes);
    let row = |offset: u64| image.row(&mapped(), MAPPED_AT + CODE_AT + offset);
    // Returned to; interrupted at either instruction. Code around it is not meant.
    let [returned, first, second] = [3, 4, 8].map(|offset| row(offset).expect("a row"));
    assert_eq!((&returned, &returned), (&first, &second));
    assert_eq!([0, 11, 12].map(row), [None, None, None]);
    let saved = RULE_RA_SAVED | RULE_RA_AT_REGISTER | RULE_FP_SAVED | RULE_FP_AT_REGISTER | RULE_LINK_SAVED;
    let flags = RULE_SIGNAL | RULE_CFA_STORED | saved;
    assert_eq!(first.rule(), Rule { kind: RULE_SP, flags, reserved: 0, cfa: 560, ra: 568, fp: 544 });

    // A leaf function was interrupted.
    let mut stack = [0; 576 / 8];
    (stack[464 / 8], stack[544 / 8], stack[552 / 8], stack[560 / 8], stack[568 / 8]) =
        (0x19, 0x29, 0x3000, 0x8400, 0x10_0000);
    let record = snapshot([MAPPED_AT + CODE_AT + 4, 0x8000, 0, 0], &[], &stack);
    let snapshot = Snapshot::of(&record).expect("a snapshot");
    let mut walk = Walk::new(&snapshot, Arch::Aarch64);
    walk.go_on(&snapshot, &first).expect("what was interrupted");
    assert_eq!(walk.at, 0x10_0000);
    let registers = [19, 29, 30, 31].map(|number| walk.register(number));
    assert_eq!(registers, [Some(0x19), Some(0x29), Some(0x3000), Some(0x8400)]);
    let leaf = opened(&file(ARM, 30, &[0x0c, 31, 0], &[])).row_at(0x10_0000, 0).expect("a row");
    walk.go_on(&snapshot, &leaf).expect("its caller");
    assert_eq!(walk.frames, [MAPPED_AT + CODE_AT + 4, 0x10_0000, 0x3000]);
}

/// The kernel's frame on the stack for a handler: offsets of `rbp`, `rsp` and `rip` in `struct rt_sigframe`.
#[test]
#[cfg(target_arch = "x86_64")]
fn rule_of_the_way_back_from_a_signal() {
    let libc = fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("libc");
    // mov $15,%rax; syscall
    let code = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 5];
    let at = libc.windows(code.len()).position(|window| window == code).expect("the way back");
    let image = opened(&libc);
    let row = image.row(&mapped(), MAPPED_AT + at as u64).expect("a row");
    let saved = RULE_RA_SAVED | RULE_RA_AT_REGISTER | RULE_FP_SAVED | RULE_FP_AT_REGISTER;
    let flags = RULE_SIGNAL | RULE_CFA_STORED | saved;
    assert_eq!(row.rule(), Rule { kind: RULE_SP, flags, reserved: 0, cfa: 160, ra: 168, fp: 120 });
}

/// A snapshot as the kernel side sends it.
fn snapshot(pointers: [u64; 4], replaced: &[Replaced], stack: &[u64]) -> Vec<u8> {
    let len = size_of::<SnapshotRecord>() + stack.len() * 8;
    let mut bytes = vec![0; 24];
    bytes[8..12].copy_from_slice(&77_u32.to_le_bytes());
    bytes[16..18].copy_from_slice(&(Kind::Snapshot as u16).to_le_bytes());
    bytes[20..22].copy_from_slice(&(len as u16).to_le_bytes());
    bytes.extend([9_u64, 5].map(u64::to_le_bytes).concat());
    bytes.extend(pointers.map(u64::to_le_bytes).concat());
    for call in 0..MAX_RETURNS {
        let call = replaced.get(call).copied().unwrap_or_default();
        bytes.extend([call.stack_pointer, call.address].map(u64::to_le_bytes).concat());
    }
    bytes.extend((replaced.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend((stack.len() as u32 * 8).to_le_bytes());
    bytes.extend(stack.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

/// Return probes have replaced two return addresses, that of a tail call among them.
#[test]
fn replaced_return_addresses_are_put_back() {
    const TRAMPOLINE: u64 = 0x7fff_f000_0000;
    let image = opened(&file(X86, 16, &[0x0c, 7, 8, 0x90, 1], &[]));
    let row = image.row_at(0x10_0000, 0x10_0000).expect("a row");
    let replaced = [
        Replaced { stack_pointer: 0x8008, address: 0x1111 },
        Replaced { stack_pointer: 0x8008, address: TRAMPOLINE },
        // Left without a trace.
        Replaced { stack_pointer: 0x7ff0, address: 0x6666 },
    ];
    let record = snapshot([0x10_0000, 0x8000, 0, 0], &replaced, &[0x2222, TRAMPOLINE, 0x3333]);
    let snapshot = Snapshot::of(&record).expect("a snapshot");
    let mut walk = Walk::new(&snapshot, Arch::X86_64);
    for _ in 0..3 {
        walk.go_on(&snapshot, &row).expect("a caller");
    }
    assert_eq!(walk.frames, [0x10_0000, 0x2222, 0x1111, 0x3333]);
    assert_eq!(walk.at, 0x3332);
    assert_eq!(walk.go_on(&snapshot, &row), Err(StackEnd::Fault));
    let stack = snapshot.stack(&walk.frames, StackEnd::Fault);
    assert_eq!(stack.len(), size_of::<StackRecord>() + 32);
    assert_eq!((stack[16], stack[20], stack[40], stack[42], stack[43]), (Kind::Stack as u8, 80, 4, 3, STACK_NATIVE));
}

/// `push %rbp; mov %rsp,%rbp; pop %rbp; ret`: at the last one the register is the caller's, and so is its documented
/// place.
#[test]
fn registers_are_the_callers_at_the_end_of_a_function() {
    // CFA = r7 + 8, the return address at CFA - 8. After 1: CFA + 16, r6 at CFA - 16. After 4: CFA = r7 + 8.
    let image = opened(&file(X86, 16, &[0x0c, 7, 8, 0x90, 1], &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0e, 8]));
    let row = |address| image.row_at(address, 0).expect("a row");
    let record = snapshot([0x10_0004, 0x8000, 0x9000, 0], &[], &[0x2222, 0x7777, 0x3333]);
    let snapshot = Snapshot::of(&record).expect("a snapshot");
    let mut walk = Walk::new(&snapshot, Arch::X86_64);
    walk.go_on(&snapshot, &row(0x10_0004)).expect("a caller");
    assert_eq!((&walk.frames[..], walk.register(6)), (&[0x10_0004, 0x2222][..], Some(0x9000)));
    // Further out it is where it was saved.
    walk.go_on(&snapshot, &row(0x10_0001)).expect("a caller");
    assert_eq!((&walk.frames[..], walk.register(6)), (&[0x10_0004, 0x2222, 0x3333][..], Some(0x7777)));
}

/// `AArch64`: the innermost frame returns by the register, and signatures are no part of addresses.
#[test]
fn arm_frames_return_by_register_and_by_memory() {
    let image = opened(&file(ARM, 30, &[0x0c, 31, 0], &[0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3]));
    let (leaf, saved) = (image.row_at(0x10_0000, 0), image.row_at(0x10_0004, 0));
    let (leaf, saved) = (leaf.expect("a row"), saved.expect("a row"));
    let record = snapshot([0x10_0000, 0x8000, 0x9000, 0x4444], &[], &[0x9999, 0x00a5_0000_0000_5555, 0, 0]);
    let snapshot = Snapshot::of(&record).expect("a snapshot");
    let mut walk = Walk::new(&snapshot, Arch::Aarch64);
    walk.go_on(&snapshot, &leaf).expect("a caller");
    walk.go_on(&snapshot, &saved).expect("a caller");
    assert_eq!(walk.frames, [0x10_0000, 0x4444, 0x5555]);
    assert_eq!((walk.register(29), walk.register(31)), (Some(0x9999), Some(0x8020)));
    // The register's earlier value is unknown.
    assert_eq!(walk.go_on(&snapshot, &leaf), Err(StackEnd::NoUnwindInfo));
}

/// Every prefix, and bytes of chance: no panic, and no endless work.
#[test]
fn any_bytes_are_survived() {
    let exercise = |bytes: &[u8]| {
        let Some(image) = Image::open(&Content::Memory(bytes.into())) else { return };
        for vaddr in [0, 0x10_0000, 0x10_0004, 0x10_003f, u64::MAX] {
            let _ = image.row_at(vaddr, vaddr).map(|row| row.rule());
        }
    };
    let good = file(X86, 16, &[0x0f, 3, 0x76, 0x78, 0x06, 0x90, 1], &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6]);
    for len in 0..good.len() {
        exercise(&good[..len]);
    }
    let mut state = 0x5eed_u64;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..4 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = (state >> 8) as usize % bytes.len();
            bytes[at] = state as u8;
        }
        exercise(&bytes);
    }
    let record = snapshot([1, 2, 3, 4], &[], &[5, 6]);
    for len in 0..record.len() {
        assert!(Snapshot::of(&record[..len]).is_none(), "{len}");
    }
}

/// Nothing is known of the process, so nothing is taught; the first frame is right all the same.
#[test]
fn processes_that_are_gone_leave_one_frame() {
    let mut unwinder = Unwinder::with_table(Table::alone(), Box::new(|| None), 50);
    let mut mappings = Mappings::new(Box::new(|_| None));
    let stack = unwinder.finish(&snapshot([0x1234, 0x8000, 0, 0], &[], &[1]), &mut mappings).expect("a stack");
    assert_eq!((stack[40], stack[42]), (1, StackEnd::NoRule as u8));
    assert_eq!(stack[48..], 0x1234_u64.to_le_bytes());
    assert_eq!(unwinder.table.get(5, 0x1234), None);
}

/// Rules are made for mapped code, by its own files.
#[test]
#[cfg(target_arch = "x86_64")]
fn own_code_is_taught() {
    let mut unwinder = Unwinder::with_table(Table::alone(), Box::new(|| None), 50);
    let mut mappings = Mappings::new(Box::new(|_| Some(5)));
    let here = (own_code_is_taught as fn() as *const ()).expose_provenance() as u64;
    let Known::Row(row) = unwinder.row((5, std::process::id()), here, &mut mappings) else { panic!("no row") };
    // At the entry of any function.
    let entry = Rule { kind: RULE_SP, flags: RULE_RA_SAVED, reserved: 0, cfa: 8, ra: -8, fp: 0 };
    assert_eq!((row.rule(), unwinder.table.get(5, here)), (entry, Some(entry)));
}

/// Wrong unwind information can make a word that is no address of code look like the caller: it is no frame.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_is_no_code_is_no_frame() {
    let mut unwinder = Unwinder::with_table(Table::alone(), Box::new(|| None), 50);
    let mut mappings = Mappings::new(Box::new(|_| Some(5)));
    // At a function's entry its caller is in the word at the stack pointer.
    let here = (what_is_no_code_is_no_frame as fn() as *const ()).expose_provenance() as u64;
    let data = (&raw const mappings).expose_provenance() as u64;
    let mut record = snapshot([here, 0x8000, 0, 0], &[], &[data, 1]);
    record[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    let stack = unwinder.finish(&record, &mut mappings).expect("a stack");
    assert_eq!((stack[40], stack[42]), (1, StackEnd::NoUnwindInfo as u8));
    assert_eq!(stack[48..], here.to_le_bytes());
    assert_eq!(unwinder.table.get(5, data.wrapping_sub(1)), None);
}
