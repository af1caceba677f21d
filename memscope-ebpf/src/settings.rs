//! Settings: user space writes them before loading, and the verifier drops every branch that they
//! switch off.

use memscope_common::{Config, config::Offsets};

/// All zero here. Read volatile, so that the compiler does not fold these zeroes.
#[unsafe(no_mangle)]
pub(crate) static CONFIG: Config = Config {
    transport: 0,
    wake_bytes: 0,
    newtask_pid: 0,
    newtask_flags: 0,
    free_pid: 0,
    task_pid: 0,
    stacks: 0,
    native_depth: 0,
    python_depth: 0,
    loops: 0,
    thread_pointer: 0,
    native_slots: 0,
    stop_user: 0,
    watch: 0,
    task_sighand: 0,
    urgent_handler: 0,
    exchanges: 0,
    thread_slots: 0,
    home_group: 0,
    tracer: 0,
    offsets: Offsets {
        known: 0,
        task_mm: 0,
        task_ptrace: 0,
        task_signal: 0,
        task_tgid: 0,
        task_parent: 0,
        task_blocked: 0,
        task_real_blocked: 0,
        task_sighand: 0,
        child_handler: 0,
        child_flags: 0,
        signal_group: 0,
        pid_number: 0,
        mm_auxv: 0,
        mm_exe_file: 0,
        vma_file: 0,
        file_inode: 0,
        inode_number: 0,
        inode_super: 0,
        inode_generation: 0,
        inode_size: 0,
        super_device: 0,
    },
};

/// Reads one setting. Reading the whole struct would load each field on every use of one.
macro_rules! setting {
    ($name:ident $(. $inner:ident)?) => {
        // SAFETY: a static that is never written after loading.
        unsafe { core::ptr::read_volatile(&raw const $crate::settings::CONFIG.$name $(. $inner)?) }
    };
}
pub(crate) use setting;
