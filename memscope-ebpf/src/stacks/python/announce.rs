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
    scratch::{Scratch, Walk},
};
use crate::{
    current,
    transport::{header, send},
    user_memory::{copy_bytes, word},
    verifier::{element, masked},
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
    let name = copy_text(scratch, layout, layout.name, 0, NAME_ROOM);
    let name_len = masked::<255>(name.len);
    let file = copy_text(scratch, layout, layout.file, name_len, FILE_ROOM);
    let file_len = masked::<511>(file.len);
    let lines = copy_lines(scratch, layout, name_len + file_len);
    let lines_len = masked::<4095>(lines.len);
    let len = masked::<8191>(size_of::<CodeRecord>() as u64 + name_len + file_len + lines_len);
    fill(scratch, layout, &name, &file, &lines);
    scratch.record.header = header(Kind::Code, row, len as u16);
    send(ctx, (&raw mut scratch.record).cast(), masked::<8191>(len), row, false)
}

/// Fills the code object's record, but for its header.
#[inline(always)]
fn fill(scratch: &mut Scratch, layout: &PythonLayout, name: &Part, file: &Part, lines: &Part) {
    let first_line = scratch.code_word(layout.first_line) >> ((layout.first_line & 4) * 8);
    let flag = |part: &Part, flag: u8| if part.cut { flag } else { 0 };
    let record = &mut scratch.record;
    record.code = scratch.pointer;
    record.fingerprint = scratch.fingerprint;
    record.first_line = first_line as u32;
    record.version = layout.version;
    record.name_kind = name.kind;
    record.file_kind = file.kind;
    record.flags = flag(name, CODE_NAME_CUT) | flag(file, CODE_FILE_CUT) | flag(lines, CODE_LINES_CUT);
    record.name_len = name.len as u16;
    record.file_len = file.len as u16;
    record.lines_len = lines.len as u16;
    record.reserved = [0; 6];
}

/// A copied text or line table.
struct Part {
    len: u64,
    /// Bytes per character.
    kind: u8,
    /// It is not whole.
    cut: bool,
}

/// Copies a text to `at` bytes behind the record.
#[inline(always)]
fn copy_text(scratch: &mut Scratch, layout: &PythonLayout, offset: u16, at: u64, room: u64) -> Part {
    const HEAD: u64 = 24;
    let text = scratch.code_word(offset);
    // SAFETY: the array has more words.
    if !unsafe { copy_bytes((&raw mut scratch.text).cast(), HEAD, text.wrapping_add(TEXT_FROM)) } {
        return Part { len: 0, kind: 1, cut: true };
    }
    let state = TextState::new(scratch.text[TEXT_STATE]);
    let kind = state.kind();
    let chars_at = if state.is_ascii() { layout.ascii_at } else { layout.text_at };
    let chars = scratch.text[0];
    if !state.is_compact() || chars > u64::from(u16::MAX) {
        return Part { len: 0, kind, cut: true };
    }
    let whole = chars * u64::from(kind);
    let len = masked::<511>(if whole > room { room } else { whole });
    let at = masked::<511>(at) as usize;
    // SAFETY: `at` and `len` are below 512 each, and there is more room than that.
    let read = unsafe { copy_bytes(bytes_at(scratch, at), len, text.wrapping_add(chars_at.into())) };
    if !read {
        return Part { len: 0, kind, cut: true };
    }
    Part { len, kind, cut: whole > room }
}

/// Copies the line table to `at` bytes behind the record.
#[inline(always)]
fn copy_lines(scratch: &mut Scratch, layout: &PythonLayout, at: u64) -> Part {
    let table = scratch.code_word(layout.lines);
    let Some(whole) = word(table.wrapping_add(TEXT_FROM)) else { return Part { len: 0, kind: 1, cut: true } };
    let len = masked::<4095>(if whole > LINES_ROOM { LINES_ROOM } else { whole });
    let at = masked::<1023>(at) as usize;
    // SAFETY: `at` is below 1024, `len` below 4096, and there is more room than that.
    let read = unsafe { copy_bytes(bytes_at(scratch, at), len, table.wrapping_add(LINES_AT)) };
    if !read {
        return Part { len: 0, kind: 1, cut: true };
    }
    Part { len, kind: 1, cut: whole > LINES_ROOM }
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
