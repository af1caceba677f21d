//! The kernel side of memscope-bpf: pairs calls, fills records, counts misses.
//!
//! The programs know shapes, not libraries: the probe rows say what to fetch ([`memscope_common::row`]), user space
//! knows what it means. Every early return is a counted miss, or the call of a process that is not traced.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(clippy::inline_always, reason = "old kernels verify few calls, and a call costs registers")]

mod calls;
mod current;
mod emit;
mod filter;
mod kernel_memory;
mod mappings;
mod misses;
mod plain;
mod probes;
mod process;
mod regs;
mod row_programs;
mod rows;
mod settings;
mod sites;
mod stacks;
mod tensors;
mod thread;
mod thread_slots;
mod transport;
mod user_memory;
mod verifier;
mod waits;
mod watch;

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_attach_cookie;

/// The probe's row number and, in the upper half, what distinguishes the probes of one row.
#[inline(always)]
fn cookie(ctx: *mut c_void) -> u64 {
    // SAFETY: the context of a uprobe.
    unsafe { bpf_get_attach_cookie(ctx) }
}

/// The probe's row number.
#[inline(always)]
fn row(ctx: *mut c_void) -> u32 {
    cookie(ctx) as u32
}

/// Runs the body for a thread of a traced process. Comes first: other processes pay for this check only.
#[inline(always)]
fn traced(body: impl FnOnce(filter::Caller) -> u32) {
    if let Some(caller) = filter::traced_thread() {
        body(caller);
    }
}

/// Declares a program. The macros of aya-ebpf would wrap the context in unused types.
macro_rules! program {
    ($(#[doc = $doc:literal])* $name:ident in $section:literal, $ctx:ident => $body:expr) => {
        $(#[doc = $doc])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = $section)]
        fn $name(ctx: *mut c_void) -> u32 {
            verifier::keep_stack(ctx);
            let $ctx = ctx;
            $body;
            0
        }
    };
}

program!(
    /// Entry, one link per probe.
    enter in "uprobe", ctx => traced(|caller| probes::enter::<true>(ctx, caller, cookie(ctx)))
);
program!(
    /// Return, one link per probe.
    leave in "uretprobe", ctx => traced(|caller| probes::leave::<true>(ctx, caller, row(ctx)))
);
program!(
    /// Entry, one link for many probes (kernel 6.6 and later).
    enter_multi in "uprobe.multi", ctx => traced(|caller| probes::enter::<true>(ctx, caller, cookie(ctx)))
);
program!(
    /// Return, one link for many probes.
    leave_multi in "uretprobe.multi", ctx => traced(|caller| probes::leave::<true>(ctx, caller, row(ctx)))
);
program!(
    /// A function's own return instruction, one link per probe.
    leave_own in "uprobe", ctx => traced(|caller| probes::leave_own::<true>(ctx, caller, row(ctx)))
);
program!(
    /// The same, one link for many probes.
    leave_own_multi in "uprobe.multi", ctx => traced(|caller| probes::leave_own::<true>(ctx, caller, row(ctx)))
);
program!(
    /// Entry, where programs of single rows jump to.
    enter_slot in "uprobe", ctx => traced(|caller| probes::enter::<false>(ctx, caller, row_programs::jumper().into()))
);
program!(
    /// Return, where programs of single rows jump to.
    leave_slot in "uretprobe", ctx => traced(|caller| probes::leave::<false>(ctx, caller, row_programs::jumper()))
);
program!(
    /// A function's own return instruction, where programs of single rows jump to.
    leave_own_slot in "uprobe", ctx => traced(|caller| probes::leave_own::<false>(ctx, caller, row_programs::jumper()))
);
program!(
    /// Faults in a text before [`enter`] reads it; may wait for the page (Linux 6.0).
    touch in "uprobe.s", ctx => probes::touch(ctx, || cookie(ctx))
);
program!(
    /// The same, one link for many probes.
    touch_multi in "uprobe.multi.s", ctx => probes::touch(ctx, || cookie(ctx))
);
program!(
    /// Entry of a call with a text that is reported at once; may wait for the page.
    enter_text in "uprobe.s", ctx => traced(|caller| probes::enter_text(ctx, caller.id, cookie(ctx)))
);
program!(
    /// The same, one link for many probes.
    enter_text_multi in "uprobe.multi.s", ctx => traced(|caller| probes::enter_text(ctx, caller.id, cookie(ctx)))
);
program!(
    /// A place with arguments that lead to tensors, one link per probe.
    tensors in "uprobe", ctx => tensors::on_hit(ctx, cookie(ctx))
);
program!(
    /// The same, one link for many probes.
    tensors_multi in "uprobe.multi", ctx => tensors::on_hit(ctx, cookie(ctx))
);
program!(
    /// A place with arguments that lead to an array of tensors, one link per probe.
    tensor_array in "uprobe", ctx => tensors::on_array_hit(ctx, cookie(ctx))
);
program!(
    /// The same, one link for many probes.
    tensor_array_multi in "uprobe.multi", ctx => tensors::on_array_hit(ctx, cookie(ctx))
);
program!(
    /// An interpreter frees a code object, one link per probe.
    code_freed in "uprobe", _ctx => stacks::code_freed()
);
program!(
    /// The same, one link for many probes.
    code_freed_multi in "uprobe.multi", _ctx => stacks::code_freed()
);
program!(
    /// A process or thread is made.
    task_newtask in "tracepoint", ctx => process::forked::<false>(ctx)
);
program!(
    /// The same, without tracefs.
    task_newtask_raw in "raw_tp", ctx => process::forked::<true>(ctx)
);
program!(
    /// A process runs another program.
    process_exec in "tracepoint", ctx => process::executed::<false>(ctx)
);
program!(
    /// The same, without tracefs.
    process_exec_raw in "raw_tp", ctx => process::executed::<false>(ctx)
);
program!(
    /// The same, where the file that it runs can be found (Linux 5.17).
    process_exec_image_raw in "raw_tp", ctx => process::executed::<true>(ctx)
);
program!(
    /// A signal is sent.
    signal_generate_raw in "raw_tp", ctx => waits::on_signal(ctx)
);
program!(
    /// A thread that has mapped a library waits until user space has examined it (Linux 6.0).
    hold in "uprobe.s", ctx => waits::hold(ctx, || row(ctx))
);
program!(
    /// The same, one link for many probes.
    hold_multi in "uprobe.multi.s", ctx => waits::hold(ctx, || row(ctx))
);
program!(
    /// A thread ends.
    process_exit in "tracepoint", _ctx => process::exited()
);
program!(
    /// The same, without tracefs.
    process_exit_raw in "raw_tp", _ctx => process::exited()
);
program!(
    /// A process is gone.
    process_free in "tracepoint", ctx => process::freed::<false>(ctx)
);
program!(
    /// The same, without tracefs.
    process_free_raw in "raw_tp", ctx => process::freed::<true>(ctx)
);

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
