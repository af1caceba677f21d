//! Snapshots: copies of stacks for which a rule is missing. User space completes the stack, and
//! learns the rules.

use core::ffi::c_void;

use aya_ebpf::{bindings::pt_regs, macros::map, maps::LruHashMap};
use memscope_common::{
    Kind, Replaced, SnapshotRecord,
    miss::MAX_DEPTH,
    stack::MAX_RETURNS,
    unwind::{STACK_BYTES, WALKLESS_BYTES, mix, without_signature},
};

use super::{
    copy::next_page,
    record::not_zero,
    slot::{PAGE, Place, Slot, Walk},
};
use crate::{
    current, regs,
    settings::setting,
    thread::{Frame, Thread},
    transport::{header, is_crowded, knows_crowding, send},
    verifier::{masked, read_once},
};

/// Requests for rules, by generation and address.
#[map]
static RULES_ASKED: LruHashMap<[u64; 2], Asked> = LruHashMap::with_max_entries(1, 0);

/// Requests for one rule.
#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    /// Of the first.
    time_ns: u64,
    /// Within [`PATIENCE_NS`].
    times: u32,
    /// Not zero: an earlier period passed without an answer.
    unanswered: u32,
}

/// Within this time user space gets at most [`TIMES`] requests for one rule: it may be about to
/// answer, or unable to.
const PATIENCE_NS: u64 = 100_000_000;
const TIMES: u32 = 32;
/// Requests in the first period: on a busy machine user space answers late, and a stack without a
/// request is cut. The ring says when it is crowded; perf buffers do not.
const FIRST_TIMES: u32 = 1024;

const _: () = assert!(MAX_RETURNS == MAX_DEPTH);

/// Sends a snapshot, unless the same rule was asked for just now. Returns whether it was sent.
/// `walks`: the program walks stacks.
#[inline(always)]
pub(super) fn ask(ctx: *mut c_void, thread: &mut Thread, slot: *mut Slot, row: u16, walks: bool) -> bool {
    // SAFETY: a live map value, locked; nothing else refers to this part of it.
    let walk = unsafe { &mut (*slot).walk };
    if is_crowded() || passed(walk) >= STACK_BYTES.into() {
        return false;
    }
    let now_ns = current::now_ns();
    let key = [walk.generation, walk.at];
    let Some(asked) = request(&key, now_ns, walks) else { return false };
    let len = copy_wanted(Place { slot, thread }, walk, walks);
    // An unreadable page lies before the missing frame: each snapshot then adds one rule.
    if walks && passed(walk) >= len {
        return false;
    }
    let id = not_zero(mix(now_ns ^ current::thread_id().rotate_left(40)));
    // SAFETY: as above.
    let snapshot = unsafe { &mut (*slot).snapshot };
    fill(snapshot, regs::of(ctx), thread, walk, id, len);
    snapshot.header = header(Kind::Snapshot, row, size_of::<SnapshotRecord>() as u16 + len as u16);
    let len = size_of::<SnapshotRecord>() as u64 + masked::<0xffff>(len);
    // Wakes user space: the same stack is not walked until it answers.
    if !send(ctx, (&raw mut *snapshot).cast(), len, row, walks) {
        return false;
    }
    if walks {
        let _ = RULES_ASKED.insert(&key, &asked, 0);
    }
    thread.call.native_stack = id;
    true
}

/// Bytes of the stack that the walk has passed.
#[inline(always)]
fn passed(walk: &Walk) -> u64 {
    walk.stack_pointer.wrapping_sub(walk.base)
}

/// The request for a rule, counted with those before it; none if there were too many.
#[inline(always)]
fn request(key: &[u64; 2], now_ns: u64, walks: bool) -> Option<Asked> {
    let mut asked = Asked { time_ns: now_ns, times: 0, unanswered: 0 };
    if walks && let Some(before) = RULES_ASKED.get_ptr(key) {
        // SAFETY: a live map value; a change meanwhile does no harm.
        let before = unsafe { *before };
        if now_ns.wrapping_sub(before.time_ns) < PATIENCE_NS {
            let most = if before.unanswered == 0 && knows_crowding() { FIRST_TIMES } else { TIMES };
            if before.times >= most {
                return None;
            }
            asked = before;
        } else {
            asked.unanswered = 1;
        }
    }
    asked.times += 1;
    Some(asked)
}

/// Copies the bytes that user space needs. Returns their number.
#[inline(always)]
fn copy_wanted(place: Place, walk: &mut Walk, walks: bool) -> u64 {
    let wanted = if walks { wanted(walk) } else { WALKLESS_BYTES.into() };
    copy_pages(place.slot, place.thread, wanted);
    // SAFETY: a live map value.
    let have = unsafe { read_once(&raw const walk.have) };
    if have < wanted { have } else { wanted }
}

/// Copies pages until there are `wanted` bytes, or one cannot be read.
///
/// A function of its own: Linux 5.10 verifies what follows for each exit of the loop, unless these
/// states are equal, as they are behind a return.
#[inline(never)]
fn copy_pages(slot: *mut Slot, thread: *const Thread, wanted: u64) -> u32 {
    let place = Place { slot, thread };
    // SAFETY: a live map value, locked; nothing else refers to this part of it meanwhile.
    let walk = unsafe { &mut (*slot).walk };
    for _ in 0..STACK_BYTES / PAGE {
        if walk.have >= wanted || !next_page(place, walk) {
            break;
        }
    }
    0
}

/// Bytes that user space will probably need: those that the missing frames may take.
#[inline(always)]
fn wanted(walk: &Walk) -> u64 {
    const MORE: u64 = 16 << 10;
    const PER_FRAME: u64 = 512;
    let passed = passed(walk).wrapping_add(MORE);
    let wanted = u64::from(setting!(native_depth)) * PER_FRAME;
    let wanted = if wanted < passed { passed } else { wanted };
    // A wrong rule can have passed anything.
    if wanted > STACK_BYTES.into() { STACK_BYTES.into() } else { wanted }
}

/// Fills the snapshot, but for its header.
#[inline(always)]
fn fill(snapshot: &mut SnapshotRecord, regs: &pt_regs, thread: &Thread, walk: &Walk, id: u64, len: u64) {
    snapshot.id = id;
    snapshot.generation = walk.generation;
    snapshot.instruction_pointer = regs::instruction_pointer(regs);
    snapshot.stack_pointer = walk.base;
    snapshot.frame_pointer = regs::frame_pointer(regs);
    snapshot.link_register = without_signature(regs::link_register(regs));
    snapshot.replaced_count = thread.depth as u16;
    snapshot.reserved = 0;
    snapshot.len = len as u32;
    for call in 0..MAX_RETURNS {
        let Frame { stack_pointer, return_address, .. } = thread.frames[call];
        snapshot.replaced[call] = Replaced { stack_pointer, address: return_address };
    }
}
