//! The calls that a thread is inside of: pushed at entry, popped at return.

use memscope_common::{Miss, miss::MAX_DEPTH, row::GROUP_API};

use crate::{
    misses::count,
    thread::{Frame, Thread},
};

/// Whether a call is reported.
pub(crate) enum Outcome {
    /// Report it.
    Reported,
    /// Don't report it; it is counted.
    Dropped,
}

/// A call at its entry.
pub(crate) struct Entered {
    pub(crate) row: u16,
    pub(crate) group: u8,
    /// Its return is probed at the function's own return instructions.
    pub(crate) own: bool,
    pub(crate) stack_pointer: u64,
    /// As in [`Frame`].
    pub(crate) return_address: u64,
}

const API_BIT: u32 = 1 << GROUP_API;

/// Pushes the call, with the arguments that the thread holds.
#[inline(always)]
pub(crate) fn push(thread: &mut Thread, call: &Entered) -> Outcome {
    let row = call.row;
    let depth = depth_after_throw(thread, call.stack_pointer);
    let depth = depth_after_unwinding(thread, depth, call.stack_pointer);
    if depth >= MAX_DEPTH as u32 {
        count(row, Miss::TooDeep);
        return Outcome::Dropped;
    }
    let bit = if call.group == 0 { 0 } else { 1_u32 << (call.group & 15) };
    let nested = thread.groups & bit != 0;
    fill_frame(thread, depth, call, bit, nested);
    thread.groups |= bit;
    if !nested && bit == API_BIT {
        thread.api = row.into();
    }
    thread.depth = depth + 1;
    if nested {
        count(row, Miss::Nested);
        return Outcome::Dropped;
    }
    Outcome::Reported
}

/// The depth without a call that was left by an exception, or ended by a jump to the function
/// entered: it does not return.
#[inline(always)]
fn depth_after_throw(thread: &mut Thread, stack_pointer: u64) -> u32 {
    let mut depth = thread.depth;
    if depth > 0 {
        let top = thread.frame(depth - 1);
        if top.own != 0 && top.stack_pointer == stack_pointer {
            count(top.row, Miss::Thrown);
            depth -= 1;
        }
    }
    depth
}

/// The depth without calls that were unwound: an inner call lies deeper on the stack, or as deep
/// after a tail call.
#[inline(always)]
fn depth_after_unwinding(thread: &mut Thread, depth: u32, stack_pointer: u64) -> u32 {
    if depth > 0 {
        let top = thread.frame(depth - 1);
        if top.stack_pointer < stack_pointer {
            // Only functions whose own return instructions are probed may throw.
            let (row, miss) = (top.row, if top.own == 0 { Miss::NoReturn } else { Miss::Thrown });
            forget_calls(thread, row, miss);
            return 0;
        }
    }
    depth
}

/// Fills the frame of a call.
#[inline(always)]
fn fill_frame(thread: &mut Thread, depth: u32, call: &Entered, bit: u32, nested: bool) {
    let args = thread.args;
    let frame = thread.frame(depth);
    frame.row = call.row;
    frame.group = if nested { 0 } else { bit as u16 };
    frame.nested = nested.into();
    frame.own = call.own.into();
    frame.stack_pointer = call.stack_pointer;
    frame.return_address = call.return_address;
    frame.args = args;
}

/// Forgets all calls of a thread: its returns do not match its entries (`longjmp`, unwinding, probes attached in
/// between). Each is counted, here or if it returns after all.
#[inline(always)]
fn forget_calls(thread: &mut Thread, row: u16, miss: Miss) {
    thread.depth = 0;
    thread.groups = 0;
    thread.api = 0;
    count(row, miss);
}

/// Pops the innermost call, which must be of `row`. Its arguments become the thread's.
#[inline(always)]
pub(crate) fn pop(thread: &mut Thread, row: u16) -> Outcome {
    pop_thrown(thread);
    let depth = thread.depth;
    if depth == 0 {
        return unknown(row);
    }
    let Frame { row: of, group, nested, args, .. } = *thread.frame(depth - 1);
    if of != row {
        forget_calls(thread, of, Miss::NoReturn);
        return unknown(row);
    }
    thread.depth = depth - 1;
    thread.groups &= !u32::from(group);
    if u32::from(group) == API_BIT {
        thread.api = 0;
    }
    thread.args = args;
    if nested != 0 { Outcome::Dropped } else { Outcome::Reported }
}

/// Pops calls that were left by an exception, which the returning call has caught.
#[inline(always)]
fn pop_thrown(thread: &mut Thread) {
    for _ in 0..MAX_DEPTH {
        let depth = thread.depth;
        if depth == 0 {
            break;
        }
        let top = thread.frame(depth - 1);
        if top.own == 0 {
            break;
        }
        let row = top.row;
        thread.depth = depth - 1;
        count(row, Miss::Thrown);
    }
}

/// Pops the call of `row` that was entered at `stack_pointer`, and calls inside of it that an
/// exception has left. Its arguments become the thread's. Rows with own return instructions are in
/// no group.
#[inline(always)]
pub(crate) fn pop_own(thread: &mut Thread, row: u16, stack_pointer: u64) -> Outcome {
    for _ in 0..MAX_DEPTH {
        match pop_one_own(thread, row, stack_pointer) {
            Step::Found => return Outcome::Reported,
            Step::Passed => {}
            Step::End => break,
        }
    }
    unknown(row)
}

/// Counts a return without an entry.
#[inline(always)]
fn unknown(row: u16) -> Outcome {
    count(row, Miss::UnknownReturn);
    Outcome::Dropped
}

/// The relation of a frame to the call that returns.
enum Step {
    Found,
    /// A call that an exception has left.
    Passed,
    /// No outer call can match.
    End,
}

/// Looks at the innermost frame.
#[inline(always)]
fn pop_one_own(thread: &mut Thread, row: u16, stack_pointer: u64) -> Step {
    let depth = thread.depth;
    if depth == 0 {
        return Step::End;
    }
    let Frame { row: of, own, stack_pointer: at, .. } = *thread.frame(depth - 1);
    if at > stack_pointer {
        return Step::End;
    }
    if at < stack_pointer && own == 0 {
        // An exception cannot leave a call with a return probe.
        forget_calls(thread, of, Miss::NoReturn);
        return Step::End;
    }
    thread.depth = depth - 1;
    if at == stack_pointer && of == row {
        let args = thread.frame(depth - 1).args;
        thread.args = args;
        return Step::Found;
    }
    count(of, Miss::Thrown);
    Step::Passed
}
