//! Libraries made up word by word, for both machines, so that the expected result is known without any compiler.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use super::{Cache, Checked, Located, NotLocated, locate};
use crate::{
    os::elf::{ElfFile, Machine},
    probes::Locator,
};

mod mstx;

const BOTH: [Machine; 2] = [Machine::X86_64, Machine::Aarch64];

const IMPORT: &[u8] = b"\0_ZTVN9torch_npu7toolkit8profiler10MemoryDataE\0";
const CLASS: &[u8] = b"\0N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE\0";

/// Addresses of the parts. Code is mapped one page behind its place in the file, as in libraries that `patchelf` has
/// edited.
const TEXT: u64 = 0x2000;
const TEXT_OFFSET: u64 = 0x1000;
const STRIDE: u64 = 128;
const DATA: u64 = 0x4000;
const STRINGS: u64 = DATA;
const CLASS_NAME: u64 = DATA + 0x100;
const SYMBOLS: u64 = DATA + 0x200;
const SLOTS: u64 = DATA + 0x300;
const TYPE: u64 = DATA + 0x340;
const TABLE: u64 = DATA + 0x380;
const RELOCATIONS: u64 = DATA + 0x400;
const DYNAMIC: u64 = DATA + 0x600;
const NOTE: u64 = DATA + 0x700;
const FRAMES: u64 = DATA + 0x800;
const FRAME_TABLE: u64 = DATA + 0xc00;
const END: u64 = DATA + 0x1000;

/// The contents of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// Reads the fields of its argument and loads the slot.
    Report,
    /// The same, but reads its argument at 56 instead of 48.
    ReportOther,
    /// Loads the slot.
    Virtual,
    /// Calls the function of this number.
    Calls(usize),
    /// Jumps there at its end.
    Jumps(usize),
    /// Contains the bytes of such a call within an instruction; where that is not possible, in a constant behind a
    /// branch.
    Pretends(usize),
    /// Reads two words behind its second argument, then jumps there, or returns.
    Takes(Option<usize>),
    /// Returns.
    Nothing,
}

use Body::{Calls, Jumps, Nothing, Pretends, Report, ReportOther, Takes, Virtual};

/// A library to be made.
#[derive(Clone, Debug)]
struct Sketch {
    machine: Machine,
    functions: Vec<Body>,
    /// Functions in the allocator's table; if empty there is no such class.
    table: Vec<usize>,
    slots: u64,
    frames: bool,
}

/// The structure of the known builds, smaller: function 1 is the right one, 0 the virtual one, 5 in the allocator's table.
fn genuine(machine: Machine) -> Sketch {
    let functions = vec![Virtual, Report, Calls(1), Calls(1), Jumps(1), Calls(3), Nothing];
    Sketch { machine, functions, table: vec![5, 6], slots: 1, frames: true }
}

fn start(function: usize) -> u64 {
    TEXT + STRIDE * function as u64
}

fn code(machine: Machine, at: u64, body: Body) -> Vec<u8> {
    match machine {
        Machine::X86_64 => x86(at, body),
        _ => words(&arm(at, body)),
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn x86(at: u64, body: Body) -> Vec<u8> {
    // The distance from behind the four bytes that stand `before` bytes into the function.
    let to = |target: u64, before: usize| (target.wrapping_sub(at + before as u64 + 4) as u32).to_le_bytes();
    let load = |mut bytes: Vec<u8>| {
        bytes.extend([0x48, 0x8b, 0x05]); // mov rax, [rip + …]
        bytes.extend(to(SLOTS, bytes.len()));
        bytes.extend([0x5d, 0xc3]); // pop rbp; ret
        bytes
    };
    let report = |last: u8| {
        let mut bytes = vec![0x55, 0x48, 0x89, 0xfd]; // push rbp; mov rbp, rdi
        bytes.extend([0x0f, 0xb7, 0x45, 0x00]); // movzx eax, word [rbp]
        bytes.extend([0x0f, 0xb7, 0x45, 0x02]); // movzx eax, word [rbp + 2]
        bytes.extend([0x0f, 0xb6, 0x45, 0x04]); // movzx eax, byte [rbp + 4]
        bytes.extend([0xf3, 0x0f, 0x6f, 0x45, 0x08]); // movdqu xmm0, [rbp + 8]
        bytes.extend([0xf3, 0x0f, 0x6f, 0x45, 0x18]); // movdqu xmm0, [rbp + 24]
        bytes.extend([0x48, 0x8b, 0x45, 0x28]); // mov rax, [rbp + 40]
        bytes.extend([0x48, 0x8b, 0x45, last]); // mov rax, [rbp + last]
        load(bytes)
    };
    match body {
        Report => report(48),
        ReportOther => report(56),
        Virtual => load(vec![0x55]),
        Calls(target) => {
            let mut bytes = vec![0x48, 0x83, 0xec, 0x08, 0xe8]; // sub rsp, 8; call
            bytes.extend(to(start(target), bytes.len()));
            bytes.extend([0x48, 0x83, 0xc4, 0x08, 0xc3]); // add rsp, 8; ret
            bytes
        }
        Jumps(target) => [vec![0xe9], to(start(target), 1).to_vec()].concat(),
        Pretends(target) => {
            let mut bytes = vec![0x48, 0xb8, 0xe8]; // mov rax, constant of eight bytes
            bytes.extend(to(start(target), bytes.len()));
            bytes.extend([0, 0, 0, 0xc3]);
            bytes
        }
        Takes(target) => {
            let mut bytes = vec![0x48, 0x8b, 0x06, 0x48, 0x8b, 0x56, 0x08]; // mov rax, [rsi]; mov rdx, [rsi + 8]
            let Some(target) = target else { return [bytes, vec![0xc3]].concat() };
            bytes.push(0xe9);
            bytes.extend(to(start(target), bytes.len()));
            bytes
        }
        Nothing => vec![0xc3],
    }
}

fn arm(at: u64, body: Body) -> Vec<u32> {
    let load = |mut code: Vec<u32>| {
        let here = at + 4 * code.len() as u64;
        let pages = (SLOTS >> 12).wrapping_sub(here >> 12) as u32;
        code.push(0x9000_0001 | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5); // adrp x1, page
        code.push(0xf940_0021 | ((SLOTS as u32 & 0xfff) / 8) << 10); // ldr x1, [x1, rest]
        code.extend([0xa8c1_7bfd, 0xd65f_03c0]); // ldp x29, x30, [sp], 16; ret
        code
    };
    let branch = |opcode: u32, before: usize, target: usize| {
        let distance = start(target).wrapping_sub(at + 4 * before as u64) as u32;
        opcode | (distance / 4) & 0x3ff_ffff
    };
    let report = |last: u32| {
        load(vec![
            0xa9bf_7bfd, // stp x29, x30, [sp, -16]!
            0xaa00_03f4, // mov x20, x0
            0xb940_0281, // ldr w1, [x20]
            0x3940_1281, // ldrb w1, [x20, 4]
            0xa940_8e82, // ldp x2, x3, [x20, 8]
            0xa941_8e82, // ldp x2, x3, [x20, 24]
            0xf940_1681, // ldr x1, [x20, 40]
            0xf940_0281 | (last / 8) << 10,
        ])
    };
    match body {
        Report => report(48),
        ReportOther => report(56),
        Virtual => load(vec![0xa9bf_7bfd]),
        Calls(target) => vec![0xa9bf_7bfd, branch(0x9400_0000, 1, target), 0xa8c1_7bfd, 0xd65f_03c0],
        Jumps(target) => vec![branch(0x1400_0000, 0, target)],
        Takes(target) => {
            let read = 0xa940_0c22; // ldp x2, x3, [x1]
            vec![read, target.map_or(0xd65f_03c0, |target| branch(0x1400_0000, 1, target))]
        }
        // A word is an instruction at every aligned place, so it does not even look like one here.
        Pretends(_) | Nothing => vec![0xd65f_03c0],
    }
}

impl Sketch {
    fn build(&self) -> Vec<u8> {
        let mut file = vec![0; (END - TEXT + TEXT_OFFSET) as usize];
        for (number, body) in self.functions.iter().enumerate() {
            put(&mut file, start(number), &code(self.machine, start(number), *body));
        }
        put(&mut file, STRINGS, IMPORT);
        put(&mut file, CLASS_NAME, CLASS);
        put(&mut file, SYMBOLS + 24, &[1, 0, 0, 0, 0x11, 0, 0, 0]); // name, global object, undefined
        let relocations = self.relocations();
        put(&mut file, RELOCATIONS, &longs(&relocations));
        let size = 8 * relocations.len() as u64;
        let dynamic = [[5, STRINGS], [10, IMPORT.len() as u64], [6, SYMBOLS], [7, RELOCATIONS], [8, size], [0, 0]];
        put(&mut file, DYNAMIC, &longs(dynamic.as_flattened()));
        put(&mut file, NOTE, &[4, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 0xab, 0xcd, 0xef, 0x01]);
        if self.frames {
            let len = |(number, body): (usize, &Body)| code(self.machine, start(number), *body).len() as u32;
            put_frames(&mut file, self.functions.iter().enumerate().map(len));
        }
        put_header(&mut file, self.machine);
        file
    }

    fn relocations(&self) -> Vec<u64> {
        let (relative, slot) = if self.machine == Machine::X86_64 { (8, 6) } else { (1027, 1025) };
        let mut found: Vec<u64> = (0..self.slots).flat_map(|n| [SLOTS + 8 * n, 1 << 32 | slot, 0]).collect();
        if !self.table.is_empty() {
            found.extend([TYPE + 8, relative, CLASS_NAME + 1, TABLE, relative, TYPE]);
            let entries = (1..).zip(&self.table);
            found.extend(entries.flat_map(|(n, function)| [TABLE + 8 * n, relative, start(*function)]));
        }
        found
    }

    fn locate(&self) -> Result<Located, NotLocated> {
        locate_in(&self.build(), None)
    }
}

/// One common part, one description for each function by its length, and the table of all.
fn put_frames(file: &mut [u8], lengths: impl ExactSizeIterator<Item = u32>) {
    let common = [16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0, 0, 0];
    put(file, FRAMES, &common);
    let mut table = vec![1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0];
    table.extend((lengths.len() as u32).to_le_bytes());
    for (number, len) in lengths.enumerate() {
        let (place, begin) = (FRAMES + 32 + 24 * number as u64, start(number));
        let fields = [20, (place + 4 - FRAMES) as u32, begin.wrapping_sub(place + 8) as u32, len, 0, 0];
        put(file, place, &words(&fields));
        table.extend(words(&[begin.wrapping_sub(FRAME_TABLE) as u32, place.wrapping_sub(FRAME_TABLE) as u32]));
    }
    put(file, FRAME_TABLE, &table);
}

fn put_header(file: &mut [u8], machine: Machine) {
    let machine: u64 = if machine == Machine::X86_64 { 62 } else { 183 };
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(longs(&[3 | machine << 16 | 1 << 32, 0, 64, 0]));
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 5, 0, 64, 0, 0, 0, 0, 0]);
    let (load, dynamic, note, frames) = (1, 2, 4, 0x6474_e550);
    for [kind, rights, from, to] in [
        [load, 5, TEXT, DATA],
        [load, 6, DATA, END],
        [dynamic, 6, DYNAMIC, DYNAMIC + 0x100],
        [note, 4, NOTE, NOTE + 20],
        [frames, 4, FRAME_TABLE, END],
    ] {
        let size = to - from;
        bytes.extend(longs(&[kind | rights << 32, from - TEXT + TEXT_OFFSET, from, from, size, size, 4]));
    }
    file[..bytes.len()].copy_from_slice(&bytes);
}

/// Numbers that come back. Xorshift, because quality does not matter here.
fn numbers() -> impl FnMut() -> u64 {
    let mut state = 0x5eed_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

fn put(file: &mut [u8], vaddr: u64, bytes: &[u8]) {
    let at = (vaddr - TEXT + TEXT_OFFSET) as usize;
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

fn locate_in(file: &[u8], cache: Option<&Cache>) -> Result<Located, NotLocated> {
    let found = locate(Locator::PtaReport, "report", &ElfFile::parse(file)?, cache)?;
    Ok(found.expect("has one form"))
}

/// The right function and its place in the file.
fn is_genuine(found: &Located) -> bool {
    let function = &found.function;
    function.name == "report" && function.vaddr == start(1) && function.file_offset == start(1) - TEXT + TEXT_OFFSET
}

#[test]
fn is_found_on_both_machines() {
    for machine in BOTH {
        let found = genuine(machine).locate().expect("found");
        assert!(is_genuine(&found), "{found:?}");
        // By hand: the last bytes of each listing above.
        assert_eq!(found.function.size_bytes, if machine == Machine::X86_64 { 43 } else { 48 });
        assert_eq!(
            found.evidence.to_string(),
            "vtable reference, 3 callers; cross-check: agrees (argument layout, allocator's vtable)"
        );
    }
}

#[test]
fn without_the_allocators_class_the_other_check_serves() {
    for machine in BOTH {
        let found = Sketch { table: Vec::new(), ..genuine(machine) }.locate().expect("found");
        assert!(is_genuine(&found) && found.evidence.allocator == Checked::NotPossible, "{found:?}");
    }
}

#[test]
fn a_library_with_the_structure_twice_is_refused() {
    for machine in BOTH {
        let mut sketch = genuine(machine);
        sketch.functions.extend([Virtual, Report, Calls(8), Calls(8), Calls(8)]);
        let error = sketch.locate().expect_err("ambiguous").to_string();
        assert_eq!(error, "4 function(s) refer to the vtable of its data, expected 2");
        sketch.functions[7..9].fill(Nothing);
        assert!(sketch.locate().is_ok());
    }
}

#[test]
fn callers_must_tell_the_two_apart() {
    let error = |machine, changes: &[(usize, Body)]| {
        let mut sketch = genuine(machine);
        for (number, body) in changes {
            sketch.functions[*number] = *body;
        }
        sketch.locate().expect_err("ambiguous").to_string()
    };
    let candidates = |callers| {
        format!("its candidates have {callers} direct callers, expected callers for one and none for the other")
    };
    for machine in BOTH {
        assert_eq!(error(machine, &[(2, Calls(0))]), candidates("[1, 2]"));
        assert_eq!(error(machine, &[(2, Nothing), (3, Nothing), (4, Nothing)]), candidates("[0, 0]"));
        let few = "the candidate has 2 direct caller(s), expected at least 3";
        assert_eq!(error(machine, &[(4, Nothing)]), few);
        // Bytes that look like a call count for nothing.
        assert_eq!(error(machine, &[(4, Pretends(1))]), few);
        let none = "0 function(s) refer to the vtable of its data, expected 2";
        assert_eq!(error(machine, &[(0, Nothing), (1, Nothing)]), none);
    }
}

#[test]
fn cross_checks_can_contradict() {
    for machine in BOTH {
        let mut sketch = genuine(machine);
        sketch.functions[1] = ReportOther;
        let error = sketch.locate().expect_err("other layout").to_string();
        let text = "reads bytes 0-4, 8-47, 56-63 of its argument, expected 0-3, 8-55";
        assert_eq!(error, format!("cross-check contradicts: 0x2080 {text}"));

        let error = Sketch { table: vec![6], ..genuine(machine) }.locate().expect_err("led elsewhere").to_string();
        assert_eq!(error, "cross-check contradicts: the allocator's virtual functions do not lead to 0x2080");
    }
}

/// Functions with a number of bytes follow each other behind those of the classes below: none, or nine with an
/// `emptyCache`, which leads to the report as well. By hand: 5 to 8 lead there, 6 does not.
#[test]
fn functions_of_requests_follow_each_other() {
    let functions = vec![Virtual, Report, Calls(1), Calls(1), Jumps(1), Calls(3), Nothing, Calls(3), Calls(4)];
    for machine in BOTH {
        let entries = |table: Vec<usize>| {
            let file = Sketch { table, functions: functions.clone(), ..genuine(machine) }.build();
            [Locator::PtaAllocate, Locator::PtaRawAlloc, Locator::PtaRawAllocWithStream, Locator::PtaEmptyCache].map(
                |locator| {
                    let located = locate(locator, "f", &ElfFile::parse(&file).expect("a library"), None);
                    located
                        .map_err(|error| error.to_string())
                        .map(|it| it.map(|it| (it.evidence.entry, it.function.vaddr)))
                },
            )
        };
        let found = |entry: usize, function: usize| Ok(Some((Some(entry), start(function))));
        assert_eq!(entries(vec![6, 6, 5, 6, 5, 7, 8]), [found(2, 5), found(5, 7), found(6, 8), Ok(None)]);
        let inherited = vec![6, 6, 5, 6, 6, 6, 6, 5, 6, 6, 6, 6, 6, 5, 8, 7];
        assert_eq!(entries(inherited), [found(2, 5), found(14, 8), found(15, 7), found(7, 5)]);
        let none =
            Err("no three entries in a row of the allocator's table of virtual functions lead to the block report"
                .to_owned());
        assert_eq!(entries(vec![6, 6, 5, 6, 5, 7, 6, 5]), [found(2, 5), none.clone(), none.clone(), none]);
    }
}

/// Two in a row read two words of their argument, and the second leads to the report: once, or it is none. By hand: 7 does not
/// lead there, 8 does.
#[test]
fn the_function_of_blocks_of_streams() {
    let functions = vec![Virtual, Report, Calls(1), Calls(1), Jumps(1), Calls(3), Nothing, Takes(None), Takes(Some(4))];
    for machine in BOTH {
        let entry = |table: &[usize]| {
            let file = Sketch { table: table.to_vec(), functions: functions.clone(), ..genuine(machine) }.build();
            let found = locate(Locator::PtaRecordStream, "f", &ElfFile::parse(&file).expect("a library"), None);
            found.map(|it| it.map(|it| (it.evidence.entry, it.function.vaddr))).map_err(|error| error.to_string())
        };
        assert_eq!(entry(&[6, 6, 5, 6, 7, 8, 6]), Ok(Some((Some(4), start(7)))));
        let pairs = |found| {
            let rest =
                "pair(s) of entries of the allocator's table of virtual functions take blocks of streams, expected 1";
            Err(format!("{found} {rest}"))
        };
        for table in [[6, 6, 5, 8, 7, 6, 6], [6, 6, 5, 7, 6, 8, 6], [6, 6, 5, 7, 7, 6, 6], [6, 6, 5, 8, 8, 6, 6]] {
            assert_eq!(entry(&table), pairs(0), "{table:?}");
        }
        assert_eq!(entry(&[6, 6, 7, 8, 5, 7, 8]), pairs(2));
    }
}

#[test]
fn what_is_missing_is_named() {
    for machine in BOTH {
        let error = |sketch: Sketch| sketch.locate().expect_err("incomplete");
        assert!(matches!(error(Sketch { slots: 0, ..genuine(machine) }), NotLocated::NoImport { .. }));
        assert!(matches!(error(Sketch { slots: 2, ..genuine(machine) }), NotLocated::Imports { .. }));
        assert!(matches!(error(Sketch { frames: false, ..genuine(machine) }), NotLocated::NoFunctions));
    }
    let mut other = genuine(Machine::X86_64).build();
    other[18] = 243; // RISC-V
    assert!(matches!(locate_in(&other, None), Err(NotLocated::NoCode)));
}

/// Sections are of no use here, so absurd ones do no harm.
#[test]
fn sections_do_not_matter() {
    for machine in BOTH {
        let mut file = genuine(machine).build();
        file[40..48].copy_from_slice(&(u64::MAX - 7).to_le_bytes()); // e_shoff
        file[58..64].fill(0xff); // e_shentsize, e_shnum, e_shstrndx
        assert!(is_genuine(&locate_in(&file, None).expect("found")));
    }
}

#[test]
fn segments_that_overlap_without_end_are_refused() {
    let mut file = genuine(Machine::X86_64).build();
    // All five become executable and map the whole file.
    for segment in 0..5 {
        let at = 64 + 56 * segment;
        let len = file.len() as u64;
        file[at..at + 48].copy_from_slice(&longs(&[1 | 5 << 32, 0, 0, 0, len, len]));
    }
    assert!(matches!(locate_in(&file, None), Err(NotLocated::NoCode)));
}

#[test]
fn every_prefix_is_survived() {
    for machine in BOTH {
        let file = genuine(machine).build();
        for len in (0..0x180).chain((0x180..file.len()).step_by(37)) {
            assert!(locate_in(&file[..len], None).map_or(true, |found| is_genuine(&found)), "{len} bytes");
        }
    }
}

#[test]
fn flipped_bytes_are_survived() {
    let mut next = numbers();
    for machine in BOTH {
        let original = genuine(machine).build();
        for _ in 0..1_000 {
            let mut file = original.clone();
            for _ in 0..=next() % 4 {
                let at = (next() % file.len() as u64) as usize;
                file[at] = next() as u8;
            }
            if let Ok(found) = locate_in(&file, None) {
                assert!(found.function.file_offset < file.len() as u64);
            }
        }
    }
}

fn entry(folder: &Path) -> std::path::PathBuf {
    folder.join("abcdef01-pta-report.json")
}

#[test]
fn an_answer_is_remembered() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("new/cache");
    let cache = Cache::in_folder(&folder).expect("usable");
    let file = genuine(Machine::X86_64).build();
    let first = locate_in(&file, Some(&cache)).expect("found");
    assert!(!first.evidence.cached);
    assert_eq!(fs::read_dir(&folder).expect("readable").count(), 1);
    let text = fs::read_to_string(entry(&folder)).expect("written");
    // 0x2080 and the length of the file.
    assert_eq!(text, r#"{"version":1,"file_bytes":16384,"vaddr":8320,"callers":3,"allocator":"agrees"}"#);

    let second = locate_in(&file, Some(&cache)).expect("found");
    assert!(second.evidence.cached && second.function == first.function);
    assert!(second.evidence.to_string().ends_with("; from the cache"));
}

/// Whatever lies there, the answer is right; and a wrong entry is replaced.
#[test]
fn a_wrong_entry_is_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::in_folder(folder.path()).expect("usable");
    let file = genuine(Machine::X86_64).build();
    let good = |version, size, vaddr: u64| {
        format!(r#"{{"version":{version},"file_bytes":{size},"vaddr":{vaddr},"callers":9,"allocator":"agrees"}}"#)
    };
    for bad in [
        String::new(),
        "{".to_owned(),
        "x".repeat(100_000),
        good(1, 16384, start(0)),
        good(1, 16384, start(1) + 1),
        good(1, 16384, u64::MAX),
        good(1, 16383, start(1)),
        good(0, 16384, start(1)),
    ] {
        fs::write(entry(folder.path()), &bad).expect("writable");
        let found = locate_in(&file, Some(&cache)).expect("found");
        assert!(is_genuine(&found) && found.evidence.callers == 3, "{bad}: {found:?}");
        assert!(locate_in(&file, Some(&cache)).expect("found").evidence.cached, "{bad}");
    }
}

/// Another file of the same build-id and length, with a different function at that address.
#[test]
fn a_forged_build_id_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::in_folder(folder.path()).expect("usable");
    let mut hostile = genuine(Machine::X86_64);
    hostile.functions = vec![Report, Virtual, Calls(0), Calls(0), Jumps(0), Calls(3), Nothing];
    assert_eq!(locate_in(&hostile.build(), Some(&cache)).expect("found").function.vaddr, start(0));
    let found = locate_in(&genuine(Machine::X86_64).build(), Some(&cache)).expect("found");
    assert!(is_genuine(&found) && !found.evidence.cached, "{found:?}");
}

#[test]
fn a_folder_that_others_control_is_no_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, link) = (folder.path().join("ours"), folder.path().join("link"));
    assert!(Cache::in_folder(&ours).is_some());
    symlink(&ours, &link).expect("a link");
    assert!(Cache::in_folder(&link).is_none());
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).expect("our folder");
    assert!(Cache::in_folder(&ours).is_none());
    fs::write(folder.path().join("file"), "").expect("writable");
    assert!(Cache::in_folder(&folder.path().join("file")).is_none());
    assert!(Cache::in_folder(&folder.path().join("file/below")).is_none());
}

#[test]
fn entries_that_are_no_files_of_ours_are_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = genuine(Machine::X86_64).build();
    let other = folder.path().join("other");
    let good = Cache::in_folder(&folder.path().join("good")).expect("usable");
    locate_in(&file, Some(&good)).expect("found");
    fs::rename(entry(&folder.path().join("good")), &other).expect("written");

    let linked = folder.path().join("linked");
    let cache = Cache::in_folder(&linked).expect("usable");
    symlink(&other, entry(&linked)).expect("a link");
    assert!(!locate_in(&file, Some(&cache)).expect("found").evidence.cached);
    // The link was replaced, not written through.
    assert!(!entry(&linked).symlink_metadata().expect("there").is_symlink());

    let piped = folder.path().join("piped");
    let cache = Cache::in_folder(&piped).expect("usable");
    nix::unistd::mkfifo(&entry(&piped), nix::sys::stat::Mode::S_IRUSR).expect("a pipe");
    assert!(!locate_in(&file, Some(&cache)).expect("found").evidence.cached);
}
