//! Sends code objects, each once: a moment later their addresses may mean other code.

use core::ffi::c_void;

use aya_ebpf::{macros::map, maps::LruHashMap};
use memscope_common::{
    CodeRecord, Kind, PythonLayout,
    python::{LINES_AT, TEXT_FROM, TEXT_STATE, TextState},
    stack::{CODE_FILE_CUT, CODE_LINES_CUT, CODE_NAME_CUT},
};

use super::{
    code,
    scratch::{Part, Scratch, Walk},
};
use crate::{
    current,
    transport::{header, send},
    user_memory::{copy_bytes, word},
    verifier::{element, masked, read_once},
};

/// Code objects that were sent.
#[map]
static PYTHON_CODES: LruHashMap<CodeKey, u8> = LruHashMap::with_max_entries(1, 0);

/// Names a code object.
#[repr(C)]
#[derive(Clone, Copy)]
struct CodeKey {
    space: u64,
    code: u64,
    fingerprint: u32,
    tgid: u32,
}

/// Most bytes of a name, a file name and a line table: whole characters of any kind.
const NAME_ROOM: u64 = 252;
const FILE_ROOM: u64 = 508;
const LINES_ROOM: u64 = 4092;

/// Sends the code object of the next frame, unless it was sent before.
#[inline(never)]
pub(super) unsafe extern "C" fn send_next(_: u32, walk: *mut Walk) -> u64 {
    // SAFETY: the loop's own; a locked slot, and a live map value.
    let (scratch, layout, ctx, row) = unsafe { (&mut *(*walk).scratch, &*(*walk).layout, (*walk).ctx, (*walk).row) };
    let frame = *element(&scratch.frames, scratch.count.into());
    scratch.count += 1;
    let (code, fingerprint) = (frame.address(), frame.fingerprint);
    let key = CodeKey { space: layout.space, code, fingerprint, tgid: current::tgid() };
    if PYTHON_CODES.get_ptr(&key).is_some() {
        return 0;
    }
    scratch.pointer = code;
    if code::read(scratch, layout) && scratch.fingerprint == fingerprint && send_code(ctx, scratch, layout, row) {
        let _ = PYTHON_CODES.insert(&key, &1, 0);
    } else {
        scratch.unsent = 1;
    }
    0
}

/// Sends the code object at hand. Returns whether there was room.
#[inline(always)]
fn send_code(ctx: *mut c_void, scratch: &mut Scratch, layout: &PythonLayout, row: u16) -> bool {
    begin(scratch, layout);
    let name = copy_text(scratch, layout, layout.name, 0, NAME_ROOM, CODE_NAME_CUT);
    (scratch.record.name_kind, scratch.record.name_len) = (name.kind, name.len as u16);
    let name_len = masked::<255>(name.len);
    let file = copy_text(scratch, layout, layout.file, name_len, FILE_ROOM, CODE_FILE_CUT);
    (scratch.record.file_kind, scratch.record.file_len) = (file.kind, file.len as u16);
    let file_len = masked::<511>(file.len);
    let lines = copy_lines(scratch, layout, name_len + file_len);
    scratch.record.lines_len = lines.len as u16;
    let len = masked::<8191>(size_of::<CodeRecord>() as u64 + name_len + file_len + masked::<4095>(lines.len));
    scratch.record.header = header(Kind::Code, row, len as u16);
    send(ctx, (&raw mut scratch.record).cast(), masked::<8191>(len), row, false)
}

/// Fills the code object's record, but for its header and texts.
#[inline(always)]
fn begin(scratch: &mut Scratch, layout: &PythonLayout) {
    let first_line = scratch.code_word(layout.first_line) >> ((layout.first_line & 4) * 8);
    let record = &mut scratch.record;
    record.code = scratch.pointer;
    record.fingerprint = scratch.fingerprint;
    record.first_line = first_line as u32;
    record.version = layout.version;
    record.flags = 0;
    record.reserved = [0; 6];
}

/// Keeps a copied part, and takes it out of memory again: so the verifier does not follow each way in which it came to be through all that
/// is behind it.
#[inline(always)]
fn joined(scratch: &mut Scratch, part: Part, flag: u8) -> Part {
    scratch.part = part;
    // SAFETY: a field of a live map value.
    let part = unsafe { read_once(&raw const scratch.part) };
    scratch.record.flags |= flag * (part.cut & 1);
    part
}

/// Copies a text to `at` bytes behind the record. Notes by the flag that it is not whole.
#[inline(always)]
fn copy_text(scratch: &mut Scratch, layout: &PythonLayout, offset: u16, at: u64, room: u64, flag: u8) -> Part {
    let part = read_text(scratch, layout, offset, at, room);
    joined(scratch, part, flag)
}

#[inline(always)]
fn read_text(scratch: &mut Scratch, layout: &PythonLayout, offset: u16, at: u64, room: u64) -> Part {
    const HEAD: u64 = 24;
    let text = scratch.code_word(offset);
    // SAFETY: the array has more words.
    if !unsafe { copy_bytes((&raw mut scratch.text).cast(), HEAD, text.wrapping_add(TEXT_FROM)) } {
        return Part { len: 0, kind: 1, cut: 1 };
    }
    let state = TextState::new(scratch.text[TEXT_STATE]);
    let kind = state.kind();
    let chars_at = if state.is_ascii() { layout.ascii_at } else { layout.text_at };
    let chars = scratch.text[0];
    if !state.is_compact() || chars > u64::from(u16::MAX) {
        return Part { len: 0, kind, cut: 1 };
    }
    let whole = chars * u64::from(kind);
    let len = masked::<511>(if whole > room { room } else { whole });
    let at = masked::<511>(at) as usize;
    // SAFETY: `at` and `len` are below 512 each, and there is more room than that.
    let read = unsafe { copy_bytes(bytes_at(scratch, at), len, text.wrapping_add(chars_at.into())) };
    if !read {
        return Part { len: 0, kind, cut: 1 };
    }
    Part { len, kind, cut: (whole > room).into() }
}

/// Copies the line table to `at` bytes behind the record.
#[inline(always)]
fn copy_lines(scratch: &mut Scratch, layout: &PythonLayout, at: u64) -> Part {
    let part = read_lines(scratch, layout, at);
    joined(scratch, part, CODE_LINES_CUT)
}

#[inline(always)]
fn read_lines(scratch: &mut Scratch, layout: &PythonLayout, at: u64) -> Part {
    let table = scratch.code_word(layout.lines);
    let Some(whole) = word(table.wrapping_add(TEXT_FROM)) else { return Part { len: 0, kind: 1, cut: 1 } };
    let len = masked::<4095>(if whole > LINES_ROOM { LINES_ROOM } else { whole });
    let at = masked::<1023>(at) as usize;
    // SAFETY: `at` is below 1024, `len` below 4096, and there is more room than that.
    let read = unsafe { copy_bytes(bytes_at(scratch, at), len, table.wrapping_add(LINES_AT)) };
    if !read {
        return Part { len: 0, kind: 1, cut: 1 };
    }
    Part { len, kind: 1, cut: (whole > LINES_ROOM).into() }
}

/// The place behind the record.
///
/// # Safety
///
/// `at` is within the room there.
#[inline(always)]
unsafe fn bytes_at(scratch: &mut Scratch, at: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { (&raw mut scratch.bytes).cast::<u8>().add(at).cast() }
}
