use std::path::Path;

use super::*;

const LIBC: [&str; 2] = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"];
const LOADER: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

fn read(paths: &[&str]) -> Vec<u8> {
    let path = paths.iter().find(|path| Path::new(path).exists());
    std::fs::read(path.expect("one of the paths exists")).expect("readable")
}

/// Calls everything; the results are of no interest, only that there are some.
fn exercise(bytes: &[u8]) {
    let Ok(file) = ElfFile::parse(bytes) else {
        return;
    };
    let _ = (file.machine(), file.build_id(), file.interpreter().is_ok(), file.soname().is_ok());
    for vaddr in [0, 1, 0x1000, 0x26000, u64::MAX - 1, u64::MAX] {
        let _ = (file.file_offset(vaddr), file.bytes_at(vaddr, usize::MAX));
    }
    for resolved in file.resolve(&["malloc", "free", "", "_dl_debug_state"]).unwrap_or_default() {
        assert!(resolved.file_offset < bytes.len() as u64);
        assert!(file.bytes_at(resolved.vaddr, 64).is_some_and(|bytes| bytes.len() <= 64));
    }
}

/// A fixed sequence: failures must come back. Xorshift, because quality does not matter here.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Header and one `PT_LOAD` of the whole file at 0x1000, then the test's own bytes; no sections.
fn minimal(extra_segments: &[[u64; 4]], payload: &[u8]) -> Vec<u8> {
    let count = 1 + extra_segments.len();
    let start = 64 + 56 * count;
    let size = (start + payload.len()) as u64;
    let mut bytes = Vec::new();
    bytes.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, EM_X86_64, version
    bytes.extend([0_u64, 64, 0].iter().flat_map(|word| word.to_le_bytes())); // entry, phoff, shoff
    bytes.extend([0_u8; 4]); // flags
    bytes.extend([64, 56, count as u16, 64, 0, 0].iter().flat_map(|half: &u16| half.to_le_bytes()));
    let load = [1 | 5 << 32, 0, 0x1000, size];
    for [type_flags, offset, vaddr, len] in [load].iter().chain(extra_segments) {
        let words = [*type_flags, *offset, *vaddr, *vaddr, *len, *len, 8];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes.extend(payload);
    bytes
}

#[test]
fn nothing_and_garbage_are_refused_by_type() {
    assert!(matches!(ElfFile::parse(&[]), Err(ElfError::NotElf { len: 0 })));
    assert!(matches!(ElfFile::parse(b"\x7fELF"), Err(ElfError::NotElf { len: 4 })));
    assert!(matches!(ElfFile::parse(b"#!/bin/sh\n"), Err(ElfError::NotElf { .. })));
    let arm32 = b"\x7fELF\x01\x01\x01";
    assert!(matches!(ElfFile::parse(arm32), Err(ElfError::Unsupported { class: 1, order: 1 })));
    let cut = b"\x7fELF\x02\x01\x01";
    assert!(matches!(ElfFile::parse(cut), Err(ElfError::Malformed { part: "header", .. })));
}

#[test]
fn libc_is_read() {
    let bytes = read(&LIBC);
    let file = ElfFile::parse(&bytes).expect("libc parses");
    assert_eq!(file.soname().expect("soname"), Some("libc.so.6"));
    assert_eq!(file.build_id().map(<[u8]>::len), Some(20));
    let found = file.resolve(&["malloc", "free", "no_such_function", "environ"]).expect("resolves");
    let mut names: Vec<_> = found.iter().map(|resolved| resolved.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["free", "malloc"]);
    for resolved in found {
        assert_eq!(file.file_offset(resolved.vaddr), Some(resolved.file_offset));
        assert!(resolved.size_bytes > 0);
        assert!(resolved.next_vaddr.is_some_and(|next| next >= resolved.vaddr + resolved.size_bytes));
    }
}

/// The vectorised string functions are chosen by the loader; their symbols are resolvers.
#[test]
fn ifuncs_are_flagged_and_not_resolved() {
    let bytes = read(&LIBC);
    let file = ElfFile::parse(&bytes).expect("libc parses");
    let kind = file.symbols().expect("symbols").find(|symbol| symbol.name == b"memset").map(|symbol| symbol.kind);
    assert_eq!(kind, Some(SymbolKind::Ifunc));
    assert_eq!(file.resolve(&["memset"]).expect("resolves"), []);
}

/// `memcpy` is versioned, but an ifunc; this one is a function with two versions.
#[test]
fn versions_of_a_name_are_all_found() {
    let found = resolve(&read(&LIBC), &["pthread_cond_wait"]).expect("resolves");
    assert!(!found.is_empty() && found.len() <= MAX_PER_NAME, "{found:?}");
    let addresses: HashSet<_> = found.iter().map(|resolved| resolved.vaddr).collect();
    assert_eq!(addresses.len(), found.len());
}

#[test]
fn program_and_loader_are_read() {
    let bytes = read(&["/bin/true"]);
    let program = ElfFile::parse(&bytes).expect("program parses");
    let interpreter = program.interpreter().expect("readable").expect("dynamic program");
    assert!(LOADER.contains(&interpreter), "{interpreter}");
    let loader = read(&[interpreter]);
    let loader = ElfFile::parse(&loader).expect("loader parses");
    assert_eq!(loader.interpreter().expect("readable"), None);
    assert_eq!(loader.resolve(&["_dl_debug_state"]).expect("resolves").len(), 1);
}

/// Without section headers the loader's own tables serve, and give the same.
#[test]
fn symbols_are_found_without_sections() {
    let mut bytes = read(&LIBC);
    let names = ["malloc", "free", "qsort"];
    let with = resolve(&bytes, &names).expect("resolves");
    bytes[40..48].fill(0); // e_shoff
    bytes[60..64].fill(0); // e_shnum, e_shstrndx
    let without = resolve(&bytes, &names).expect("resolves");
    assert_eq!(without, with);
    assert_eq!(without.len(), names.len());
}

#[test]
fn every_prefix_is_survived() {
    for path in [&LIBC[..], &LOADER[..], &["/bin/true"]] {
        let bytes = read(path);
        let step = (bytes.len() / 150).max(1);
        for len in (0..1024.min(bytes.len())).step_by(7).chain((0..bytes.len()).step_by(step)) {
            exercise(&bytes[..len]);
        }
    }
}

#[test]
fn flipped_bytes_are_survived() {
    let original = read(&LOADER);
    let mut next = random(0x5eed);
    for round in 0..400_u64 {
        let mut bytes = original.clone();
        // The header and the tables behind it, then anywhere.
        let range = if round % 2 == 0 { 0x400 } else { bytes.len() as u64 };
        for _ in 0..=next() % 8 {
            let at = (next() % range) as usize;
            bytes[at] = next() as u8;
        }
        exercise(&bytes);
    }
}

#[test]
fn offsets_follow_segments_only() {
    let bytes = minimal(&[], b"code");
    let file = ElfFile::parse(&bytes).expect("parses");
    assert_eq!(file.machine(), Machine::X86_64);
    assert_eq!(file.file_offset(0x1000), Some(0));
    assert_eq!(file.file_offset(0x1000 + 120), Some(120));
    assert_eq!(file.bytes_at(0x1000 + 120, 64), Some(&b"code"[..]));
    assert_eq!(file.file_offset(0x1000 + 124), None);
    assert_eq!(file.file_offset(0xfff), None);
}

#[test]
fn interpreter_must_be_bounded_text() {
    let interpreter = |path: &[u8]| {
        let bytes = minimal(&[[3 | 4 << 32, 64 + 112, 0x1000 + 176, path.len() as u64]], path);
        ElfFile::parse(&bytes).expect("parses").interpreter().map(|found| found.map(str::to_owned))
    };
    assert_eq!(interpreter(b"/lib/ld.so\0").expect("text"), Some("/lib/ld.so".to_owned()));
    for bad in [&b"/lib/ld.so"[..], b"/\xff\xfe\0", b"\0", &[b'a'; 5000], b""] {
        assert!(matches!(interpreter(bad), Err(ElfError::BadString { part: "interpreter" })));
    }
}

#[test]
fn segment_beyond_the_file_is_an_error() {
    let bytes = minimal(&[[3, u64::MAX - 3, 0x9000, 64]], b"");
    let file = ElfFile::parse(&bytes).expect("parses");
    assert!(matches!(file.interpreter(), Err(ElfError::BadString { .. })));
    let bytes = minimal(&[[2, 1 << 40, 0x9000, 1 << 40]], b"");
    let file = ElfFile::parse(&bytes).expect("parses");
    assert!(matches!(file.soname(), Err(ElfError::Malformed { part: "dynamic segment", .. })));
}

#[test]
fn absurd_section_count_is_an_error() {
    let mut bytes = minimal(&[], &[0; 256]);
    bytes[40..48].copy_from_slice(&128_u64.to_le_bytes()); // e_shoff
    bytes[60..62].copy_from_slice(&0xfff0_u16.to_le_bytes()); // e_shnum
    assert!(matches!(resolve(&bytes, &["f"]), Err(ElfError::Malformed { part: "sections", .. })));
}
