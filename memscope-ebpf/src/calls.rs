//! The calls that a thread is inside of: pushed at entry, popped at return.

use core::arch::asm;

use memscope_common::{Miss, miss::MAX_DEPTH, row::GROUP_API};

use crate::{
    maps::{EMPTY_THREAD, Frame, SEATS, THREADS, Thread, setting},
    misses::count,
};

const _: () = assert!(MAX_DEPTH == 8, "the mask in `bounded`");

/// `index` below 8. The verifier has to see the bound at the access itself, and the compiler drops a mask that it can
/// prove to be superfluous: so the mask is assembly.
#[inline(always)]
pub(crate) fn bounded(index: u32) -> usize {
    let mut index = u64::from(index);
    // SAFETY: changes a register.
    unsafe { asm!("{index} &= 7", index = inout(reg) index) };
    index as usize
}

#[inline(always)]
fn frame_at(thread: &mut Thread, depth: u32) -> &mut Frame {
    // SAFETY: below the number of frames.
    unsafe { thread.frames.get_unchecked_mut(bounded(depth)) }
}

/// The thread's state, made on first use. `EXCHANGES`: see [`exchange`].
#[inline(always)]
pub(crate) fn thread<const EXCHANGES: bool>(id: u64, row: u16) -> Option<&'static mut Thread> {
    let seats = EXCHANGES && setting!(seats) != 0;
    if seats && let Some(seat) = seat_of(id) {
        // SAFETY: a live map value that only this thread's programs touch.
        return Some(unsafe { &mut *seat });
    }
    if let Some(thread) = THREADS.get_ptr_mut(&id) {
        // SAFETY: as above.
        return Some(unsafe { &mut *thread });
    }
    if seats && let Some(seat) = take_seat(id) {
        // SAFETY: as above.
        return Some(unsafe { &mut *seat });
    }
    // SAFETY: never written, so shared reading is fine.
    let empty = unsafe { &*EMPTY_THREAD.get_ptr(0)? };
    if THREADS.insert(&id, empty, 0).is_err() {
        count(row, Miss::ThreadsFull);
        return None;
    }
    // SAFETY: as above.
    THREADS.get_ptr_mut(&id).map(|thread| unsafe { &mut *thread })
}

/// Seats that a thread can have.
const SEATS_OF_ONE: u32 = 8;

/// One of them. The first is far from that of the next thread, so that threads of several processes, whose numbers each lie side by
/// side, do not take all of one another's.
#[inline(always)]
fn seat_at(id: u64, place: u32) -> Option<*mut Thread> {
    // 2^32 divided by the golden ratio spreads numbers that follow one another best; its upper bits know all of a thread's number.
    let first = (id as u32).wrapping_mul(0x9e37_79b9) >> 12;
    SEATS.get_ptr_mut(first.wrapping_add(place) & (setting!(seats) - 1))
}

/// Who has a seat.
#[inline(always)]
fn owner(seat: *mut Thread) -> u64 {
    // SAFETY: a live map value; eight bytes, which others may change at once.
    unsafe { (&raw const (*seat).owner).read_volatile() }
}

/// The thread's seat, if it has one.
#[inline(always)]
fn seat_of(id: u64) -> Option<*mut Thread> {
    for place in 0..SEATS_OF_ONE {
        let seat = seat_at(id, place)?;
        if owner(seat) == id {
            return Some(seat);
        }
    }
    None
}

/// A seat for a thread that has none, if one is free.
#[inline(always)]
fn take_seat(id: u64) -> Option<*mut Thread> {
    for place in 0..SEATS_OF_ONE {
        let seat = seat_at(id, place)?;
        // SAFETY: a field of a live map value.
        if owner(seat) == 0 && exchange(unsafe { &raw mut (*seat).owner }, 0, id) == 0 {
            // SAFETY: from now on only this thread's programs touch it.
            unsafe { ((*seat).depth, (*seat).groups, (*seat).api) = (0, 0, 0) };
            return Some(seat);
        }
    }
    None
}

/// A thread ends, or runs another program.
#[inline(always)]
pub(crate) fn forget_thread(id: u64) {
    if setting!(seats) != 0
        && let Some(seat) = seat_of(id)
    {
        // Nobody else gives it back, and its last call is long over.
        // SAFETY: a live map value; eight bytes that are written at once.
        unsafe { (&raw mut (*seat).owner).write_volatile(0) };
        return;
    }
    let _ = THREADS.remove(&id);
}

/// Writes `new` if `old` is there. Gives what was there. Only for programs that kernels before 5.12 do not load: they refuse the
/// instruction, even where it is never run.
#[inline(always)]
pub(crate) fn exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: a live map value, aligned to eight bytes.
    unsafe {
        asm!("r0 = cmpxchg_64({word} + 0, r0, {new})", word = in(reg) word, new = in(reg) new, inout("r0") old => found);
    };
    found
}

/// Forgets all calls of a thread whose returns do not match its entries (`longjmp`, unwinding, probes attached in
/// between). Each of them is counted, here or when it returns after all.
#[inline(always)]
fn forget(thread: &mut Thread, row: u16, miss: Miss) {
    thread.depth = 0;
    thread.groups = 0;
    thread.api = 0;
    count(row, miss);
}

/// What became of a call that was pushed.
pub(crate) enum Pushed {
    /// It is to be reported.
    Reported,
    /// It is not, and was counted.
    Dropped,
}

/// A call that is entered.
pub(crate) struct Entered {
    pub(crate) row: u16,
    pub(crate) group: u8,
    /// Its return is seen at the function's own instructions.
    pub(crate) own: bool,
    pub(crate) stack_pointer: u64,
    /// As in [`Frame`].
    pub(crate) return_address: u64,
}

const API_BIT: u32 = 1 << GROUP_API;

/// Pushes the call whose arguments the thread holds.
#[inline(always)]
pub(crate) fn push(thread: &mut Thread, call: &Entered) -> Pushed {
    let Entered { row, group, own, stack_pointer, return_address } = *call;
    let mut depth = thread.depth;
    if depth > 0 {
        let top = frame_at(thread, depth - 1);
        if top.own != 0 && top.stack_pointer == stack_pointer {
            // It was left by an exception, or ended by a jump to this function: either way it does not return.
            count(top.row, Miss::Thrown);
            depth -= 1;
        }
    }
    if depth > 0 {
        let top = frame_at(thread, depth - 1);
        // A call that is entered from inside another one lies deeper on the stack, or as deep after a tail call.
        if top.stack_pointer < stack_pointer {
            // Only those whose returns are seen at their own instructions may throw.
            let (left, miss) = (top.row, if top.own == 0 { Miss::NoReturn } else { Miss::Thrown });
            forget(thread, left, miss);
            depth = 0;
        }
    }
    if depth >= MAX_DEPTH as u32 {
        count(row, Miss::TooDeep);
        return Pushed::Dropped;
    }
    let bit = if group == 0 { 0 } else { 1_u32 << (group & 15) };
    let nested = thread.groups & bit != 0;
    let args = thread.args;
    let frame = frame_at(thread, depth);
    frame.row = row;
    frame.group = if nested { 0 } else { bit as u16 };
    frame.nested = nested.into();
    frame.own = own.into();
    frame.stack_pointer = stack_pointer;
    frame.return_address = return_address;
    frame.args = args;
    thread.groups |= bit;
    if !nested && bit == API_BIT {
        thread.api = row.into();
    }
    thread.depth = depth + 1;
    if nested {
        count(row, Miss::Nested);
        return Pushed::Dropped;
    }
    Pushed::Reported
}

/// Pops the innermost call, which must be of `row`; its arguments become the thread's.
#[inline(always)]
pub(crate) fn pop(thread: &mut Thread, row: u16) -> Pushed {
    for _ in 0..MAX_DEPTH {
        let depth = thread.depth;
        if depth == 0 {
            break;
        }
        let top = frame_at(thread, depth - 1);
        if top.own == 0 {
            break;
        }
        // Left by an exception that this call has caught.
        let left = top.row;
        thread.depth = depth - 1;
        count(left, Miss::Thrown);
    }
    let depth = thread.depth;
    if depth == 0 {
        count(row, Miss::UnknownReturn);
        return Pushed::Dropped;
    }
    let top = depth - 1;
    let frame = *frame_at(thread, top);
    if frame.row != row {
        forget(thread, frame.row, Miss::NoReturn);
        count(row, Miss::UnknownReturn);
        return Pushed::Dropped;
    }
    thread.depth = top;
    thread.groups &= !u32::from(frame.group);
    if u32::from(frame.group) == API_BIT {
        thread.api = 0;
    }
    thread.args = frame.args;
    if frame.nested != 0 {
        return Pushed::Dropped;
    }
    Pushed::Reported
}

/// Pops the call of `row` that was entered at `stack_pointer`, and what an exception has left inside of it; its arguments
/// become the thread's. Rows with such returns are in no group.
#[inline(always)]
pub(crate) fn pop_own(thread: &mut Thread, row: u16, stack_pointer: u64) -> Pushed {
    for _ in 0..MAX_DEPTH {
        let depth = thread.depth;
        if depth == 0 {
            break;
        }
        let top = frame_at(thread, depth - 1);
        let (own, left, at) = (top.row, top.own, top.stack_pointer);
        if at > stack_pointer {
            break;
        }
        if at < stack_pointer && left == 0 {
            // A call with a return probe is never left by an exception.
            forget(thread, own, Miss::NoReturn);
            break;
        }
        thread.depth = depth - 1;
        if at == stack_pointer && own == row {
            let frame = frame_at(thread, depth - 1);
            thread.args = frame.args;
            return Pushed::Reported;
        }
        count(own, Miss::Thrown);
    }
    count(row, Miss::UnknownReturn);
    Pushed::Dropped
}
