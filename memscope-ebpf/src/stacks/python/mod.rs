//! Python stacks: the frames of the interpreter, walked from the thread's own state.
//!
//! The thread is inside of the call, so its frames and the code that they run cannot go away. What an address of code
//! stands for is told at once, when it is seen first: a moment later there may be other code. Only for kernels that can loop.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    helpers::generated::{
        bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        bpf_probe_read_kernel, bpf_probe_read_user,
    },
    macros::map,
    maps::{Array, HashMap, LruHashMap},
};
use memscope_common::{
    CodeRecord, Kind, PythonFrame, PythonLayout, StackEnd, StackRecord,
    python::{
        CODE_FROM, CODE_WORDS, FRAME_BYTES, LAYOUT_ENTRIES, LAYOUT_FREES, LAYOUT_TEXTS, LINES_AT, LINES_WORD, NONE,
        OWNER_INTERPRETER, STATE_BYTES, TEXT_CHARS, TEXT_FROM, TEXT_STATE, TEXT_WORDS, TextState, mix, mix_code,
        mix_text, text_bytes, text_room,
    },
    stack::{
        CODE_FILE_CUT, CODE_LINES_CUT, CODE_NAME_CUT, FRAME_ENTRY, MAX_FRAMES, POINTER_TAGS, SCRATCH_PER_CPU,
        STACK_PYTHON,
    },
};

use super::{
    Site, bpf_loop,
    slot_lock::{Claims, Owner},
};
use crate::{
    emit::{header, send},
    maps::{Thread, setting},
};

/// Interpreters, by tgid. User space writes, forks copy. Sized by user space: one entry as long as no stacks are wanted.
#[map]
static PYTHON: HashMap<u32, PythonLayout> = HashMap::with_max_entries(1, 0);

/// Stacks that were told of, by id.
#[map]
static PYTHON_SEEN: LruHashMap<u64, u8> = LruHashMap::with_max_entries(1, 0);

/// Code objects that were told of.
#[map]
static PYTHON_CODES: LruHashMap<CodeKey, u8> = LruHashMap::with_max_entries(1, 0);

/// Who has which slot of [`PYTHON_SCRATCH`].
#[map]
static PYTHON_OWNERS: Array<Owner> = Array::with_max_entries(1, 0);

/// Slots in use where the kernel cannot exchange.
#[map]
static PYTHON_CLAIMS: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

static CLAIMS: Claims = Claims { owners: &PYTHON_OWNERS, taken: &PYTHON_CLAIMS };

/// Room for walks.
#[map]
static PYTHON_SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// What names a code object.
#[repr(C)]
#[derive(Clone, Copy)]
struct CodeKey {
    space: u64,
    code: u64,
    fingerprint: u32,
    tgid: u32,
}

/// Bytes of a stack's record at most, and of the verifier's idea of it.
const STACK_ROOM: usize = 1 << 14;
const _: () = assert!(size_of::<StackRecord>() + MAX_FRAMES * size_of::<PythonFrame>() <= STACK_ROOM);
/// Frames that the verifier believes there could be.
const FRAME_SLOTS: usize = 1 << 10;
/// Bytes of a code object's record, and of the verifier's idea of it.
const CODE_ROOM: usize = 1 << 13;
/// Bytes of a name, a file's name and a line table at most; whole characters of any kind.
const NAME_ROOM: u64 = 252;
const FILE_ROOM: u64 = 508;
const LINES_ROOM: u64 = 4092;
const _: () = assert!(size_of::<CodeRecord>() + 255 + 511 + 4095 <= CODE_ROOM);

/// Everything of one walk. In a map, because it does not fit onto the stack, and because the verifier does not follow what
/// is in maps.
#[repr(C)]
struct Scratch {
    /// The stack, as it is sent.
    stack: StackRecord,
    frames: [PythonFrame; FRAME_SLOTS],
    /// The next frame.
    next: u64,
    /// Hash over what was found so far.
    hash: u64,
    count: u32,
    /// A code object could not be told of: the stack is to be told once more.
    untold: u32,
    /// The code object at hand.
    pointer: u64,
    /// Walks that were made in this slot.
    walks: u64,
    /// As long as this is the same, code objects are what they were.
    epoch: u64,
    /// The file's name that was hashed last in this walk, and its hash.
    file: u64,
    file_hash: u64,
    /// Code that this walk has met, or an earlier one of the same epoch: programs run the same code again and again.
    known: [Known; KNOWN_SLOTS],
    fingerprint: u32,
    /// Frames at most.
    depth: u32,
    code: [u64; CODE_SLOTS],
    text: [u64; TEXT_WORDS],
    state: [u64; STATE_SLOTS],
    /// Memory of the program that has the frame at hand, and maybe others ...
    window: [u64; WINDOW_WORDS],
    /// ... from this address on, ...
    window_from: u64,
    /// ... so many bytes.
    window_len: u64,
    /// Where in it the frame at hand is, in words.
    frame_at: u64,
    /// A code object, as it is sent.
    record: CodeRecord,
    bytes: [u8; CODE_ROOM],
}

/// A code object that a walk has met.
#[repr(C)]
#[derive(Clone, Copy)]
struct Known {
    code: u64,
    epoch: u64,
    fingerprint: u64,
}

// Powers of two, so that a mask bounds every index.
const KNOWN_SLOTS: usize = 512;
const STATE_SLOTS: usize = 32;
const WINDOW_WORDS: usize = 1024;
const CODE_SLOTS: usize = 32;
const _: () = assert!(
    STATE_BYTES <= 8 * STATE_SLOTS
        && FRAME_BYTES <= 127
        && PAGE as usize + 2 * 127 <= 8 * WINDOW_WORDS
        && CODE_WORDS <= CODE_SLOTS
);

/// Bytes of a page.
const PAGE: u64 = 4096;

/// What the steps of a walk share. The pointers do not change from step to step.
#[repr(C)]
struct Walk {
    ctx: *mut c_void,
    scratch: *mut Scratch,
    layout: *const PythonLayout,
    row: u16,
}

/// `value` below `$mask + 1`, seen by the verifier where it is used (see [`calls::bounded`](crate::calls::bounded)).
macro_rules! masked {
    ($value:expr, $mask:literal) => {{
        let mut value = u64::from($value);
        // SAFETY: changes a register.
        unsafe { asm!(concat!("{value} &= ", $mask), value = inout(reg) value) };
        value
    }};
}

/// Eight bytes at an offset.
#[inline(always)]
fn state_word(scratch: &Scratch, offset: u16) -> u64 {
    let at = masked!(offset >> 3, "31") as usize;
    // SAFETY: below the number of slots.
    *unsafe { scratch.state.get_unchecked(at) }
}

#[inline(always)]
fn frame_word(scratch: &Scratch, offset: u16) -> u64 {
    let at = masked!(scratch.frame_at + u64::from(offset >> 3), "1023") as usize;
    // SAFETY: below the number of slots.
    *unsafe { scratch.window.get_unchecked(at) }
}

/// Eight bytes of a code object, by their offset in it.
#[inline(always)]
fn code_word(scratch: &Scratch, offset: u16) -> u64 {
    let at = masked!(offset.wrapping_sub(CODE_FROM) >> 3, "31") as usize;
    // SAFETY: below the number of slots.
    *unsafe { scratch.code.get_unchecked(at) }
}

/// Reads memory of the program; whether it could.
#[inline(always)]
fn read(to: *mut c_void, len: u32, from: u64) -> bool {
    // SAFETY: `to` has `len` bytes; the helper checks the address, and zeroes on a fault.
    unsafe { bpf_probe_read_user(to, len, from as *const c_void) == 0 }
}

/// Eight bytes of the program.
#[inline(always)]
fn read_word(from: u64) -> Option<u64> {
    let mut word = 0_u64;
    read((&raw mut word).cast(), 8, from).then_some(word)
}

/// A child has what its parent has.
#[inline(always)]
pub(super) fn forked(parent: u32, child: u32) {
    if let Some(layout) = PYTHON.get_ptr(&parent) {
        // SAFETY: a live map value, which the map copies.
        let _ = PYTHON.insert(&child, unsafe { &*layout }, 0);
        freed_in(child);
    }
}

/// The process has another program, or none.
#[inline(always)]
pub(super) fn forget(tgid: u32) {
    let _ = PYTHON.remove(&tgid);
}

/// Puts the id of the thread's Python stack into its record. Nothing is told of a process that runs no Python.
#[inline(always)]
pub(super) fn take(site: &Site, thread: &mut Thread) {
    // SAFETY: a helper without arguments.
    let tgid = (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32;
    thread.call.python_stack = 0;
    let Some(layout) = PYTHON.get_ptr(&tgid) else { return };
    let Some(slot) = claim() else {
        return tell_nothing(site, thread, tgid, StackEnd::Busy);
    };
    if let Some(scratch) = PYTHON_SCRATCH.get_ptr_mut(slot) {
        // SAFETY: a live map value that nobody else has until it is given back.
        unsafe { (*scratch).stack.generation = site.generation };
        take_into(site.ctx, thread, scratch, layout, site.row.into());
    }
    CLAIMS.give_back::<true>(slot);
}

/// A slot of this processor that nobody has.
#[inline(always)]
fn claim() -> Option<u32> {
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    // Counted from 0: of a count that begins with a number that it does not know, an older verifier sees no end.
    (0..SCRATCH_PER_CPU).map(|at| processor * SCRATCH_PER_CPU + at).find(|slot| CLAIMS.take::<true>(*slot))
}

/// A stack of no frames, for which there is no room.
#[inline(always)]
fn tell_nothing(site: &Site, thread: &mut Thread, tgid: u32, end: StackEnd) {
    const LEN: u16 = size_of::<StackRecord>() as u16;
    const _: () = assert!(size_of::<StackRecord>() <= size_of::<memscope_common::TextRecord>());
    let id = finish(mix(tgid.into(), site.generation), 0, end as u8);
    // The text comes after the stacks.
    let record = (&raw mut thread.text).cast::<StackRecord>();
    // SAFETY: in the bounds of the text's record; both are plain integers.
    unsafe {
        (*record).header = header(Kind::Stack, site.row, LEN);
        (*record).id = id;
        (*record).generation = site.generation;
        (*record).frame_count = 0;
        (*record).end = end as u8;
        (*record).which = STACK_PYTHON;
        (*record).reserved = 0;
    }
    thread.call.python_stack = id;
    if PYTHON_SEEN.get_ptr(&id).is_none() && send(site.ctx, record.cast(), LEN.into(), site.row, false) {
        let _ = PYTHON_SEEN.insert(&id, &1, 0);
    }
}

/// An id out of a hash.
#[inline(always)]
fn finish(hash: u64, count: u32, end: u8) -> u64 {
    let id = mix(hash, u64::from(count) << 8 | u64::from(end));
    if id == 0 { 1 } else { id }
}

/// Walks, and tells what was not told before.
#[inline(never)]
fn take_into(
    ctx: *mut c_void,
    thread: &mut Thread,
    scratch: *mut Scratch,
    layout: *const PythonLayout,
    row: u32,
) -> u32 {
    let row = row as u16;
    let mut walk = Walk { ctx, scratch, layout, row };
    // SAFETY: a slot that this program has, and a live map value.
    let (scratch, layout) = unsafe { (&mut *scratch, &*layout) };
    // SAFETY: a helper without arguments.
    let tgid = unsafe { bpf_get_current_pid_tgid() } >> 32;
    scratch.count = 0;
    scratch.untold = 0;
    scratch.walks += 1;
    scratch.epoch = epoch(scratch.walks, tgid, layout);
    scratch.file = u64::MAX;
    scratch.window_len = 0;
    scratch.hash = mix(tgid, layout.space);
    scratch.stack.end = start(scratch, layout) as u8;
    if scratch.stack.end == 0 {
        // As long as nothing else ends it.
        scratch.stack.end = StackEnd::Depth as u8;
        // Between frames of Python there can be one of the interpreter's own each.
        scratch.depth = setting!(python_depth);
        repeat(2 * scratch.depth + 16, step, &mut walk);
        if scratch.stack.end == StackEnd::Root as u8 && read_word(layout.interpreters) != Some(layout.first_interpreter)
        {
            scratch.stack.end = StackEnd::OneOfSeveral as u8;
        }
    }
    let count = scratch.count;
    let id = finish(scratch.hash, count, scratch.stack.end);
    thread.call.python_stack = id;
    if PYTHON_SEEN.get_ptr(&id).is_some() {
        return 0;
    }
    scratch.count = 0;
    repeat(count, tell_code, &mut walk);
    let len = masked!(size_of::<StackRecord>() as u64 + u64::from(count) * size_of::<PythonFrame>() as u64, "16383");
    scratch.stack.header = header(Kind::Stack, row, len as u16);
    scratch.stack.id = id;
    scratch.stack.frame_count = count as u16;
    scratch.stack.which = STACK_PYTHON;
    scratch.stack.reserved = 0;
    let sent = send(ctx, (&raw mut scratch.stack).cast(), masked!(len, "16383"), row, false);
    if sent && scratch.untold == 0 {
        let _ = PYTHON_SEEN.insert(&id, &1, 0);
    }
    0
}

type Step = unsafe extern "C" fn(u32, *mut Walk) -> u64;

/// Calls `body` until it gives 1, `times` at most.
#[inline(always)]
fn repeat(times: u32, body: Step, walk: &mut Walk) {
    // SAFETY: `body` takes what it is given, and `walk` outlives the loop.
    unsafe { bpf_loop(times.into(), body as *mut c_void, (&raw mut *walk).cast()) };
}

/// Finds the thread's first frame. Gives why there is none, or 0.
#[inline(always)]
fn start(scratch: &mut Scratch, layout: &PythonLayout) -> u64 {
    scratch.next = 0;
    let mut pointer = 0_u64;
    let thread_pointer = setting!(thread_pointer);
    // SAFETY: `pointer` has eight bytes; the helpers check the address.
    let result = unsafe {
        let task = bpf_get_current_task() + u64::from(thread_pointer);
        bpf_probe_read_kernel((&raw mut pointer).cast(), 8, task as *const c_void)
    };
    if result != 0 {
        return StackEnd::Fault as u64;
    }
    let Some(block) = read_word(pointer.wrapping_add(i64::from(layout.block_at) as u64)) else {
        return StackEnd::Fault as u64;
    };
    if block == 0 {
        return StackEnd::NotPython as u64;
    }
    let Some(state) = read_word(block.wrapping_add(layout.value_at.into())) else {
        return StackEnd::Fault as u64;
    };
    if state == 0 {
        return StackEnd::NotPython as u64;
    }
    if !read((&raw mut scratch.state).cast(), STATE_BYTES as u32, state) {
        return StackEnd::Fault as u64;
    }
    if state_word(scratch, layout.thread_id) != pointer.wrapping_add(i64::from(layout.self_at) as u64) {
        return StackEnd::BadState as u64;
    }
    scratch.next = state_word(scratch, layout.frame);
    if layout.current_frame != NONE && scratch.next != 0 {
        let Some(frame) = read_word(scratch.next.wrapping_add(layout.current_frame.into())) else {
            return StackEnd::Fault as u64;
        };
        scratch.next = frame;
    }
    0
}

/// One frame. Gives 1 if it was the last.
#[inline(never)]
unsafe extern "C" fn step(_: u32, walk: *mut Walk) -> u64 {
    // SAFETY: the loop's own; a slot that this program has, and a live map value.
    let (scratch, layout) = unsafe { (&mut *(*walk).scratch, &*(*walk).layout) };
    let Some(end) = visit(scratch, layout) else { return 0 };
    scratch.stack.end = end as u8;
    1
}

#[inline(always)]
fn visit(scratch: &mut Scratch, layout: &PythonLayout) -> Option<StackEnd> {
    let frame = scratch.next;
    if frame == 0 {
        return Some(StackEnd::Root);
    }
    if !bring_frame(scratch, layout, frame.wrapping_add(layout.frame_from.into())) {
        return Some(StackEnd::Fault);
    }
    scratch.next = frame_word(scratch, layout.back);
    if scratch.next == frame {
        return Some(StackEnd::NoProgress);
    }
    if layout.owner != NONE {
        let owner = frame_word(scratch, layout.owner) >> ((layout.owner & 7) * 8);
        if owner as u8 >= OWNER_INTERPRETER {
            called_from_c(scratch);
            return None;
        }
    }
    if scratch.count >= scratch.depth {
        return Some(StackEnd::Depth);
    }
    let code = frame_word(scratch, layout.code) & !POINTER_TAGS;
    let last = frame_word(scratch, layout.last);
    let last = if layout.instructions == NONE {
        last as u32
    } else {
        last.wrapping_sub(code).wrapping_sub(layout.instructions.into()) as u32
    };
    if let Err(end) = identify(scratch, layout, code) {
        return Some(end);
    }
    let fingerprint = scratch.fingerprint;
    scratch.hash = mix(mix(scratch.hash, code), u64::from(last) << 32 | u64::from(fingerprint));
    let at = masked!(scratch.count, "1023") as usize;
    // SAFETY: below the number of slots.
    let slot = unsafe { scratch.frames.get_unchecked_mut(at) };
    slot.code = code;
    slot.last_instruction = last;
    slot.fingerprint = fingerprint;
    scratch.count += 1;
    if is_entry(scratch, layout) {
        called_from_c(scratch);
    }
    None
}

/// Brings a frame into the window; whether it could. Frames of functions that call each other follow each other in memory since
/// 3.11, the callers first: so what is read is the frame and all that lies before it on its page, where the next ones will be.
#[inline(always)]
fn bring_frame(scratch: &mut Scratch, layout: &PythonLayout, from: u64) -> bool {
    let len = masked!(layout.frame_len, "127");
    let inside = from.wrapping_sub(scratch.window_from);
    if inside.is_multiple_of(8) && inside < scratch.window_len && inside + len <= scratch.window_len {
        scratch.frame_at = inside / 8;
        return true;
    }
    // Before that each frame is an object of its own.
    let before = if layout.instructions == NONE || !from.is_multiple_of(8) { 0 } else { from & (PAGE - 1) };
    if bring(scratch, from - before, before + len) {
        scratch.frame_at = before / 8;
        return true;
    }
    scratch.frame_at = 0;
    before != 0 && bring(scratch, from, len)
}

/// Reads memory into the window; whether it could.
#[inline(always)]
fn bring(scratch: &mut Scratch, from: u64, len: u64) -> bool {
    scratch.window_from = from;
    scratch.window_len = len;
    let is_there = read((&raw mut scratch.window).cast(), masked!(len, "8191") as u32, from);
    if !is_there {
        scratch.window_len = 0;
    }
    is_there
}

/// Where the freeing of code objects is seen, the time between two of them; else one walk: frames keep the code that they
/// run as it is.
#[inline(always)]
fn epoch(walks: u64, tgid: u64, layout: &PythonLayout) -> u64 {
    if layout.flags & LAYOUT_FREES == 0 {
        return walks;
    }
    mix(mix(tgid, layout.space), layout.freed_ns)
}

/// A code object is about to be freed: another one may lie there next.
#[inline(always)]
pub(super) fn freed() {
    // SAFETY: a helper without arguments.
    freed_in((unsafe { bpf_get_current_pid_tgid() } >> 32) as u32);
}

/// What is known of a process's code objects is known no longer.
#[inline(always)]
fn freed_in(tgid: u32) {
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(layout) = PYTHON.get_ptr_mut(&tgid) {
        // SAFETY: a live map value; eight bytes that are written at once. Two threads without a common lock write different
        // times, so that each is a change.
        unsafe { (&raw mut (*layout).freed_ns).write_volatile(now_ns) };
    }
}

/// Gets the fingerprint of a code object.
#[inline(always)]
fn identify(scratch: &mut Scratch, layout: &PythonLayout, code: u64) -> Result<(), StackEnd> {
    // Code objects lie at multiples of 16.
    let at = masked!(code >> 4 ^ code >> 13, "511") as usize;
    // SAFETY: below the number of slots.
    let known = *unsafe { scratch.known.get_unchecked(at) };
    if known.code == code && known.epoch == scratch.epoch {
        scratch.fingerprint = known.fingerprint as u32;
        return Ok(());
    }
    scratch.pointer = code;
    if !read_code(scratch, layout) {
        return Err(StackEnd::Fault);
    }
    if scratch.code[0] != layout.code_type {
        return Err(StackEnd::BadState);
    }
    let known = Known { code, epoch: scratch.epoch, fingerprint: scratch.fingerprint.into() };
    // SAFETY: below the number of slots.
    *unsafe { scratch.known.get_unchecked_mut(at) } = known;
    Ok(())
}

/// Whether the frame at hand says that C called it.
#[inline(always)]
fn is_entry(scratch: &Scratch, layout: &PythonLayout) -> bool {
    if layout.entry == NONE {
        return layout.flags & LAYOUT_ENTRIES != 0;
    }
    (frame_word(scratch, layout.entry) >> ((layout.entry & 7) * 8)) as u8 != 0
}

/// C called the last frame that was found.
#[inline(always)]
fn called_from_c(scratch: &mut Scratch) {
    let at = masked!(scratch.count.wrapping_sub(1), "1023") as usize;
    // SAFETY: below the number of slots. If there is no frame yet, it is the last slot, which none gets to.
    unsafe { scratch.frames.get_unchecked_mut(at) }.code |= FRAME_ENTRY;
    scratch.hash = mix(scratch.hash, FRAME_ENTRY);
}

/// Reads what is needed of the code object at hand, and makes its fingerprint.
#[inline(always)]
fn read_code(scratch: &mut Scratch, layout: &PythonLayout) -> bool {
    let from = scratch.pointer.wrapping_add(CODE_FROM.into());
    if !read((&raw mut scratch.code).cast(), 8 * CODE_WORDS as u32, from) {
        return false;
    }
    // SAFETY: the array has more words.
    let words = unsafe { &*(&raw const scratch.code).cast::<[u64; CODE_WORDS]>() };
    let mut hash = mix_code(0, words, layout.code_words);
    if layout.flags & LAYOUT_TEXTS != 0 {
        read_text(scratch, layout.name);
        hash = mix_text::<TEXT_CHARS>(hash, &scratch.text, text_bytes(&scratch.text));
        // Functions that call each other are often of one file.
        let file = code_word(scratch, layout.file);
        if file != scratch.file {
            read_text(scratch, layout.file);
            scratch.file_hash = mix_text::<TEXT_CHARS>(0, &scratch.text, text_bytes(&scratch.text));
            scratch.file = file;
        }
        hash = mix(hash, scratch.file_hash);
        read_text(scratch, layout.lines);
        hash = mix_text::<LINES_WORD>(hash, &scratch.text, scratch.text[0] & 0xffff);
    }
    scratch.fingerprint = hash as u32;
    true
}

/// Reads the head and first bytes of a text or line table. What cannot be read is zero, in the same way each time.
#[inline(always)]
fn read_text(scratch: &mut Scratch, offset: u16) {
    const LEN: u64 = 8 * TEXT_WORDS as u64;
    let from = code_word(scratch, offset).wrapping_add(TEXT_FROM);
    if !read((&raw mut scratch.text).cast(), LEN as u32, from) && text_room(from) < LEN {
        // A short text may end before a page that nothing was written to yet.
        read((&raw mut scratch.text).cast(), masked!(text_room(from), "127") as u32, from);
    }
}

/// Tells of the code of one frame, if that was not done before.
#[inline(never)]
unsafe extern "C" fn tell_code(_: u32, walk: *mut Walk) -> u64 {
    // SAFETY: the loop's own; a slot that this program has, and a live map value.
    let (scratch, layout, ctx, row) = unsafe { (&mut *(*walk).scratch, &*(*walk).layout, (*walk).ctx, (*walk).row) };
    let at = masked!(scratch.count, "1023") as usize;
    scratch.count += 1;
    // SAFETY: below the number of slots.
    let frame = *unsafe { scratch.frames.get_unchecked(at) };
    let (code, fingerprint) = (frame.address(), frame.fingerprint);
    // SAFETY: a helper without arguments.
    let tgid = (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32;
    let key = CodeKey { space: layout.space, code, fingerprint, tgid };
    if PYTHON_CODES.get_ptr(&key).is_some() {
        return 0;
    }
    scratch.pointer = code;
    if read_code(scratch, layout) && scratch.fingerprint == fingerprint && send_code(ctx, scratch, layout, row) {
        let _ = PYTHON_CODES.insert(&key, &1, 0);
    } else {
        scratch.untold = 1;
    }
    0
}

/// Sends the code object at hand; whether it left.
#[inline(always)]
fn send_code(ctx: *mut c_void, scratch: &mut Scratch, layout: &PythonLayout, row: u16) -> bool {
    let first_line = code_word(scratch, layout.first_line) >> ((layout.first_line & 4) * 8);
    let (name, name_kind, name_cut) = copy_text(scratch, layout, layout.name, 0, NAME_ROOM);
    let name = masked!(name, "255");
    let (file, file_kind, file_cut) = copy_text(scratch, layout, layout.file, name, FILE_ROOM);
    let file = masked!(file, "511");
    let (lines, lines_cut) = copy_lines(scratch, layout, name + file);
    let lines = masked!(lines, "4095");
    let len = masked!(size_of::<CodeRecord>() as u64 + name + file + lines, "8191");
    let flag = |cut: bool, flag: u8| if cut { flag } else { 0 };
    let record = &mut scratch.record;
    record.header = header(Kind::Code, row, len as u16);
    record.code = scratch.pointer;
    record.fingerprint = scratch.fingerprint;
    record.first_line = first_line as u32;
    record.version = layout.version;
    record.name_kind = name_kind;
    record.file_kind = file_kind;
    record.flags = flag(name_cut, CODE_NAME_CUT) | flag(file_cut, CODE_FILE_CUT) | flag(lines_cut, CODE_LINES_CUT);
    record.name_len = name as u16;
    record.file_len = file as u16;
    record.lines_len = lines as u16;
    record.reserved = [0; 6];
    send(ctx, (&raw mut *record).cast(), masked!(len, "8191"), row, false)
}

/// Copies a text to `at` bytes behind the record. Gives its bytes, bytes per character, and whether it is a part only.
#[inline(always)]
fn copy_text(scratch: &mut Scratch, layout: &PythonLayout, offset: u16, at: u64, room: u64) -> (u64, u8, bool) {
    const HEAD: u32 = 24;
    let text = code_word(scratch, offset);
    if !read((&raw mut scratch.text).cast(), HEAD, text.wrapping_add(TEXT_FROM)) {
        return (0, 1, true);
    }
    let state = TextState::new(scratch.text[TEXT_STATE]);
    let kind = state.kind();
    let chars_at = if state.is_ascii() { layout.ascii_at } else { layout.text_at };
    let chars = scratch.text[0];
    if !state.is_compact() || chars > u64::from(u16::MAX) {
        return (0, kind, true);
    }
    let whole = chars * u64::from(kind);
    let len = masked!(if whole > room { room } else { whole }, "511");
    let at = masked!(at, "511") as usize;
    // SAFETY: `at` and `len` are below 512 each, and there is more room than that.
    let to = unsafe { (&raw mut scratch.bytes).cast::<u8>().add(at) };
    if !read(to.cast(), len as u32, text.wrapping_add(chars_at.into())) {
        return (0, kind, true);
    }
    (len, kind, whole > room)
}

/// Copies the line table to `at` bytes behind the record. Gives its bytes, and whether it is a part only.
#[inline(always)]
fn copy_lines(scratch: &mut Scratch, layout: &PythonLayout, at: u64) -> (u64, bool) {
    let table = code_word(scratch, layout.lines);
    let Some(whole) = read_word(table.wrapping_add(TEXT_FROM)) else { return (0, true) };
    let len = masked!(if whole > LINES_ROOM { LINES_ROOM } else { whole }, "4095");
    let at = masked!(at, "1023") as usize;
    // SAFETY: `at` is below 1024, `len` below 4096, and there is more room than that.
    let to = unsafe { (&raw mut scratch.bytes).cast::<u8>().add(at) };
    if !read(to.cast(), len as u32, table.wrapping_add(LINES_AT)) {
        return (0, true);
    }
    (len, whole > LINES_ROOM)
}
