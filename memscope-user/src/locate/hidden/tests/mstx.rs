//! Modules as a compiler could make `mstx.so`, word by word.

use super::{
    BOTH, DATA, DYNAMIC, END, STRIDE, STRINGS, SYMBOLS, TEXT, TEXT_OFFSET, numbers, put, put_frames, put_header, start,
    words,
};
use crate::{
    locate::hidden::{Located, NotLocated, locate},
    os::elf::{ElfFile, Machine},
    probes::Locator,
};

const IMPORT: &[u8] = b"\0PyArg_ParseTupleAndKeywords\0";
/// Where each name begins; the last one is the end of a longer text, as linkers share them.
const NAMES: &[u8] = b"range_start\0range_end\0a remark\0";
const NAME_AT: [u64; 3] = [TEXTS + 26, TEXTS, TEXTS + 12];
const TEXTS: u64 = DATA + 0x100;
const SLOT: u64 = DATA + 0x300;
const TABLE: u64 = DATA + 0x320;
const RELOCATIONS: u64 = DATA + 0x400;
const CALLS: u64 = DATA + 0x5c0;

const MARK: usize = 0;
const RANGE_START: usize = 1;
const RANGE_END: usize = 2;
const OWN_PARSE: usize = 3;
const STUB: usize = 4;

/// How a method has its arguments parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// By the interpreter's function.
    Direct,
    /// By a function of the module that jumps there.
    Own,
    /// As the first, but the address of the text's variable comes into its register last.
    Late,
    /// As the first, but a branch leads to the call.
    Entered,
    /// By a function that does not get there.
    Elsewhere,
    /// Not at all.
    None,
}

#[derive(Clone, Debug)]
struct Sketch {
    machine: Machine,
    form: Form,
    /// Names of the table's entries, in order, as numbers of `NAMES`; and the functions that they lead to.
    entries: Vec<(usize, usize)>,
    flags: u64,
    imports: u64,
}

fn genuine(machine: Machine, form: Form) -> Sketch {
    let entries = vec![(1, RANGE_START), (2, RANGE_END), (0, MARK)];
    Sketch { machine, form, entries, flags: 3, imports: 1 }
}

fn x86(form: Form, at: u64, function: usize) -> Vec<u8> {
    let call = |bytes: &mut Vec<u8>, opcode: u8, target: usize| {
        bytes.push(opcode);
        let end = at + bytes.len() as u64 + 4;
        bytes.extend((start(target).wrapping_sub(end) as u32).to_le_bytes());
    };
    let mut bytes = Vec::new();
    match function {
        STUB => {
            bytes.extend([0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25]); // endbr64; jmp [rip + …]
            bytes.extend((SLOT.wrapping_sub(at + 10) as u32).to_le_bytes());
            return bytes;
        }
        OWN_PARSE => {
            bytes.extend([0x49, 0x89, 0xd0]); // mov r8, rdx
            if form == Form::Elsewhere {
                bytes.push(0xc3);
            } else {
                call(&mut bytes, 0xe9, STUB);
            }
            return bytes;
        }
        _ => {}
    }
    let (place, copy) = ([0x4c, 0x8d, 0x04, 0x24], [0x48, 0x89, 0xf7]); // lea r8, [rsp]; mov rdi, rsi
    let own_place = [0x48, 0x8d, 0x14, 0x24]; // lea rdx, [rsp]
    bytes.extend([0x48, 0x83, 0xec, 0x08]); // sub rsp, 8
    match form {
        Form::Direct | Form::None => bytes.extend([&place[..], &copy].concat()),
        Form::Own | Form::Elsewhere => bytes.extend([&own_place[..], &copy].concat()),
        Form::Late => bytes.extend([&copy[..], &place].concat()),
        Form::Entered => bytes.extend([&[0x74, 0x07], &place[..], &copy].concat()), // je to the call
    }
    match form {
        Form::None => {}
        Form::Own | Form::Elsewhere => call(&mut bytes, 0xe8, OWN_PARSE),
        _ => call(&mut bytes, 0xe8, STUB),
    }
    bytes.extend([0x31, 0xc0, 0x48, 0x83, 0xc4, 0x08, 0xc3]); // xor eax, eax; add rsp, 8; ret
    bytes
}

fn arm(form: Form, at: u64, function: usize) -> Vec<u8> {
    let branch = |opcode: u32, before: u64, target: usize| {
        opcode | (start(target).wrapping_sub(at + 4 * before) as u32 / 4) & 0x3ff_ffff
    };
    let (place, own_place, copy) = (0x9100_23e4, 0x9100_23e2, 0xaa01_03e0); // add x4|x2, sp, 8; mov x0, x1
    let end = [0x5280_0000, 0xa8c1_7bfd, 0xd65f_03c0]; // mov w0, 0; ldp x29, x30, [sp], 16; ret
    let begin = 0xa9bf_7bfd; // stp x29, x30, [sp, -16]!
    let (call, own_call) = (branch(0x9400_0000, 3, STUB), branch(0x9400_0000, 3, OWN_PARSE));
    let mut code = match (function, form) {
        (STUB, _) => {
            let pages = (SLOT >> 12).wrapping_sub(at >> 12) as u32;
            let page = 0x9000_0010 | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5; // adrp x16, page
            return words(&[page, 0xf940_0211 | ((SLOT as u32 & 0xfff) / 8) << 10, 0x9100_0210, 0xd61f_0220]);
        }
        (OWN_PARSE, Form::Elsewhere) => return words(&[0xaa02_03e4, 0xd65f_03c0]), // mov x4, x2; ret
        (OWN_PARSE, _) => return words(&[0xaa02_03e4, branch(0x1400_0000, 1, STUB)]),
        (_, Form::Direct) => vec![begin, place, copy, call],
        (_, Form::Own | Form::Elsewhere) => vec![begin, own_place, copy, own_call],
        (_, Form::Late) => vec![begin, copy, place, call],
        (_, Form::Entered) => vec![begin, place, 0xb400_0020, call], // cbz x0, to the call
        (_, Form::None) => vec![begin],
    };
    code.extend(end);
    words(&code)
}

impl Sketch {
    fn code(&self, function: usize) -> Vec<u8> {
        let code = if self.machine == Machine::X86_64 { x86 } else { arm };
        code(self.form, start(function), function)
    }

    fn build(&self) -> Vec<u8> {
        let mut file = vec![0; (END - TEXT + TEXT_OFFSET) as usize];
        for function in 0..=STUB {
            put(&mut file, start(function), &self.code(function));
        }
        put(&mut file, STRINGS, IMPORT);
        put(&mut file, TEXTS, NAMES);
        put(&mut file, SYMBOLS + 24, &[1, 0, 0, 0, 0x12, 0, 0, 0]); // name, global function, undefined
        let (relative, jump) = if self.machine == Machine::X86_64 { (8, 7) } else { (1027, 1026) };
        let entries = self.entries.iter().zip((TABLE..).step_by(32));
        let pointers: Vec<u64> = entries
            .flat_map(|((name, function), at)| [at, relative, NAME_AT[*name], at + 8, relative, start(*function)])
            .collect();
        for at in (TABLE..).step_by(32).take(self.entries.len()) {
            put(&mut file, at + 16, &self.flags.to_le_bytes());
        }
        let calls: Vec<u64> = (0..self.imports).flat_map(|_| [SLOT, 1 << 32 | jump, 0]).collect();
        put(&mut file, RELOCATIONS, &super::longs(&pointers));
        put(&mut file, CALLS, &super::longs(&calls));
        let (size, calls_size) = (8 * pointers.len() as u64, 8 * calls.len() as u64);
        let strings = [[5, STRINGS], [10, IMPORT.len() as u64], [6, SYMBOLS]];
        let tables = [[7, RELOCATIONS], [8, size], [23, CALLS], [2, calls_size], [0, 0]];
        put(&mut file, DYNAMIC, &super::longs([&strings[..], &tables].concat().as_flattened()));
        put_frames(
            &mut file,
            (0..=STUB).map(|function| self.code(function).len() as u32).collect::<Vec<_>>().into_iter(),
        );
        put_header(&mut file, self.machine);
        file
    }

    fn parse(&self, place: u8) -> Result<Option<Located>, NotLocated> {
        parse_in(&self.build(), "mark", place)
    }

    fn error(&self, place: u8) -> String {
        self.parse(place).expect_err("refused").to_string()
    }
}

fn parse_in(file: &[u8], method: &'static str, place: u8) -> Result<Option<Located>, NotLocated> {
    locate(Locator::MstxParse { method, place }, "mstx", &ElfFile::parse(file)?, None)
}

fn method_in(file: &[u8], method: &'static str) -> Result<Option<Located>, NotLocated> {
    locate(Locator::MstxMethod(method), "mstx", &ElfFile::parse(file)?, None)
}

/// The places by hand: eight bytes of code before the probed instruction, then the call.
fn assert_places(machine: Machine, found: &Located, function: usize) {
    let at = start(function);
    let (before, after) = if machine == Machine::X86_64 { ((8, 11), (16, 18)) } else { ((8, 12), (16, 20)) };
    let call = found.call.expect("a call");
    assert_eq!(call.before(), (at + before.0, at + before.1), "{found:?}");
    assert_eq!(call.after(), (at + after.0, at + after.1), "{found:?}");
    assert_eq!((found.function.vaddr, found.function.file_offset), (at, at - TEXT + TEXT_OFFSET));
}

#[test]
fn each_form_is_found_by_its_row_alone() {
    for machine in BOTH {
        for (form, place, other) in [(Form::Direct, 4, 2), (Form::Own, 2, 4)] {
            let file = genuine(machine, form).build();
            for (method, function) in [("mark", MARK), ("range_start", RANGE_START)] {
                let found = parse_in(&file, method, place).expect("found").expect("this form");
                assert_places(machine, &found, function);
                assert!(parse_in(&file, method, other).expect("found").is_none(), "{form:?}");
            }
            let end = method_in(&file, "range_end").expect("found").expect("one form");
            assert_eq!((end.function.vaddr, end.call), (TEXT + 2 * STRIDE, None));
            assert_eq!(end.evidence.to_string(), "by the module's table of methods");
        }
    }
}

#[test]
fn calls_that_a_probe_could_misread_are_refused() {
    for machine in BOTH {
        for (form, place) in [(Form::Late, 4), (Form::Entered, 4), (Form::Elsewhere, 2), (Form::None, 4)] {
            let error = genuine(machine, form).error(place);
            assert!(error.starts_with("the method at 0x2000 does not begin with a call"), "{form:?}: {error}");
        }
    }
}

#[test]
fn the_table_has_to_be_whole_and_the_only_one() {
    for machine in BOTH {
        let sketch = genuine(machine, Form::Direct);
        let error = |entries: &[(usize, usize)]| Sketch { entries: entries.to_vec(), ..sketch.clone() }.error(4);
        let several = "entries of the module's table of methods could be";
        assert_eq!(error(&[(0, MARK), (1, RANGE_START)]), format!("0 {several} `range_end`, expected 1"));
        let twice = [(0, MARK), (1, RANGE_START), (2, RANGE_END), (0, RANGE_END)];
        assert_eq!(error(&twice), format!("2 {several} `mark`, expected 1"));
        // Other ways of calling have other arguments.
        let flags = Sketch { flags: 1, ..sketch.clone() }.error(4);
        assert_eq!(flags, format!("0 {several} `mark`, expected 1"));
        // A pointer into a function is no pointer to it.
        let mut file = sketch.build();
        put(&mut file, RELOCATIONS + 5 * 24 + 16, &(start(MARK) + 4).to_le_bytes());
        let error = parse_in(&file, "mark", 4).expect_err("no function").to_string();
        assert_eq!(error, format!("0 {several} `mark`, expected 1"));
    }
}

/// A method without arguments, or with a tuple of them, is known by its name and that, if one entry has it.
#[test]
fn methods_by_name() {
    for (machine, (own, has_arguments)) in
        BOTH.into_iter().flat_map(|machine| [(machine, (4, false)), (machine, (1, true))])
    {
        let of = |flags: u64, entries: &[(usize, usize)]| {
            let sketch = Sketch { flags, entries: entries.to_vec(), ..genuine(machine, Form::Direct) };
            let locator = Locator::PtaMethod { name: "mark", has_arguments };
            locate(locator, "m", &ElfFile::parse(&sketch.build()).expect("a file"), None)
        };
        let found = of(own, &[(0, MARK), (1, RANGE_START)]).expect("found").expect("one form");
        assert_eq!((found.function.vaddr, found.call), (start(MARK), None));
        let wrong =
            [(3, &[(0, MARK)][..]), (5 - own, &[(0, MARK)]), (own, &[(1, MARK)]), (own, &[(0, MARK), (0, RANGE_END)])];
        for (flags, entries) in wrong {
            let error = of(flags, entries).expect_err("refused").to_string();
            assert!(error.ends_with("entries of the module's table of methods could be `mark`, expected 1"), "{error}");
        }
    }
}

#[test]
fn the_interpreters_function_has_to_be_imported_once() {
    for machine in BOTH {
        let sketch = genuine(machine, Form::Direct);
        let error = |imports| Sketch { imports, ..sketch.clone() }.parse(4).expect_err("refused");
        assert!(matches!(error(0), NotLocated::NoImport { symbol: "PyArg_ParseTupleAndKeywords" }));
        assert!(matches!(error(2), NotLocated::Imports { .. }));
    }
}

#[test]
fn endless_candidates_are_refused() {
    let mut file = genuine(Machine::X86_64, Form::Direct).build();
    put(&mut file, TEXT + 0x800, &b"mark\0".repeat(300));
    let error = parse_in(&file, "mark", 4).expect_err("too many").to_string();
    assert!(error.starts_with("256 entries"), "{error}");
}

#[test]
fn every_prefix_and_flipped_bytes_are_survived() {
    let mut next = numbers();
    for machine in BOTH {
        for form in [Form::Direct, Form::Own] {
            let original = genuine(machine, form).build();
            for len in (0..0x180).chain((0x180..original.len()).step_by(37)) {
                let _ = (parse_in(&original[..len], "mark", 4), method_in(&original[..len], "range_end"));
            }
            for _ in 0..500 {
                let mut file = original.clone();
                for _ in 0..=next() % 4 {
                    let at = (next() % file.len() as u64) as usize;
                    file[at] = next() as u8;
                }
                if let Ok(Some(found)) = parse_in(&file, "mark", 4) {
                    assert!(found.function.file_offset < file.len() as u64);
                }
            }
        }
    }
}
