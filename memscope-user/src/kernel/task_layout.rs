//! Where the running kernel keeps the fields of a task that BPF programs read.

use std::sync::LazyLock;

use memscope_common::config::Offsets;

use crate::os::btf::{self, BTF, Btf};

/// An offset in bytes, or why it is not known.
type Offset = Result<u32, String>;

/// The fields read of the types.
struct Types {
    /// Offsets in `task_struct`.
    thread_pointer: Offset,
    pid: Offset,
    sighand: Offset,
    /// Offset in `sighand_struct` of the handler for `SIGURG`.
    urgent_handler: Offset,
    /// Offsets of a process's fields; `None` if one of them is unknown.
    offsets: Option<Offsets>,
    multi_links: bool,
}

/// Read once: the file has megabytes, and the kernel stays the same.
static TYPES: LazyLock<Types> = LazyLock::new(Types::read);

/// Offset of the thread pointer in `task_struct`, in bytes; or why it is not known.
pub(super) fn thread_pointer() -> Offset {
    TYPES.thread_pointer.clone()
}

/// Offset of the number of a task, in bytes; or why it is not known.
pub(super) fn pid() -> Offset {
    TYPES.pid.clone()
}

/// Offsets of a task's `sighand`, and of the handler for `SIGURG` in it, in bytes; or why they are unknown.
pub(super) fn urgent_handler() -> Result<(u32, u32), String> {
    Ok((TYPES.sighand.clone()?, TYPES.urgent_handler.clone()?))
}

/// Offsets of a process's fields in this kernel; all 0 if unknown.
pub(super) fn offsets() -> Offsets {
    TYPES.offsets.unwrap_or_default()
}

/// Whether the kernel has links for many probes; false if it does not describe its types.
pub(super) fn has_multi_links() -> bool {
    TYPES.multi_links
}

impl Types {
    fn read() -> Self {
        let (bytes, error) = match btf::read() {
            Ok(bytes) => (bytes, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let unread = error.map(|error| format!("the kernel does not describe its types ({BTF}: {error})"));
        let btf = Btf::parse(&bytes);
        let offset_of = |path: &[&str]| match &unread {
            Some(reason) => Err(reason.clone()),
            None => btf
                .as_ref()
                .and_then(|btf| btf.member("task_struct", path))
                .ok_or_else(|| format!("{BTF} does not say where task_struct has {}", path.join("."))),
        };
        Self {
            thread_pointer: match std::env::consts::ARCH {
                "x86_64" => offset_of(&["thread", "fsbase"]),
                "aarch64" => offset_of(&["thread", "uw", "tp_value"]),
                other => Err(format!("threads of {other} are not known")),
            },
            pid: offset_of(&["pid"]),
            sighand: offset_of(&["sighand"]),
            urgent_handler: btf
                .as_ref()
                .and_then(|btf| btf.action(libc::SIGURG, "sa_handler"))
                .ok_or_else(|| format!("{BTF} does not say where handlers of signals are")),
            offsets: btf.as_ref().and_then(offsets_of),
            multi_links: btf.as_ref().is_some_and(|btf| btf.enumerates("BPF_TRACE_UPROBE_MULTI")),
        }
    }
}

/// Reads any bytes as the kernel's description of its types.
#[cfg(feature = "fuzzing")]
pub(crate) fn any_types(bytes: &[u8]) {
    if let Some(btf) = Btf::parse(bytes) {
        let _ = (offsets_of(&btf), btf.action(libc::SIGURG, "sa_handler"), btf.enumerates("BPF_TRACE_UPROBE_MULTI"));
        let _ = (btf.member("a", &["b", "c"]), btf.member("task_struct", &["thread", "fsbase"]));
    }
}

/// Offsets of a process's fields.
fn offsets_of(btf: &Btf<'_>) -> Option<Offsets> {
    /// `PIDTYPE_PGID`, among pointers.
    const GROUP: u32 = 2 * 8;
    let task = |name| btf.member("task_struct", &[name]);
    Some(Offsets {
        known: 1,
        task_mm: task("mm")?,
        task_ptrace: task("ptrace")?,
        task_signal: task("signal")?,
        task_tgid: task("tgid")?,
        task_parent: task("real_parent")?,
        task_blocked: task("blocked")?,
        task_real_blocked: task("real_blocked")?,
        task_sighand: task("sighand")?,
        child_handler: btf.action(libc::SIGCHLD, "sa_handler")?,
        child_flags: btf.action(libc::SIGCHLD, "sa_flags")?,
        signal_group: btf.member("signal_struct", &["pids"])? + GROUP,
        // Its first member, the number, is that of the outermost namespace.
        pid_number: btf.member("pid", &["numbers"])?,
        mm_auxv: btf.member("mm_struct", &["saved_auxv"])?,
        mm_exe_file: btf.member("mm_struct", &["exe_file"])?,
        vma_file: btf.member("vm_area_struct", &["vm_file"])?,
        file_inode: btf.member("file", &["f_inode"])?,
        inode_number: btf.member("inode", &["i_ino"])?,
        inode_super: btf.member("inode", &["i_sb"])?,
        inode_generation: btf.member("inode", &["i_generation"])?,
        inode_size: btf.member("inode", &["i_size"])?,
        super_device: btf.member("super_block", &["s_dev"])?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that the handler is found in this kernel, if it describes its types: the same place as counted by hand, a count and the
    /// lock before 64 actions of 32 bytes each.
    #[test]
    fn handler_of_this_kernel() {
        let Ok((sighand, handler)) = urgent_handler() else { return };
        assert!(sighand > 0);
        assert_eq!((handler - 22 * 32) % 8, 0);
        assert!((22 * 32..22 * 32 + 256).contains(&handler), "{handler}");
    }
}
