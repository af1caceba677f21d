//! Conditions on a process, and addresses in it, before anything of ours is put into it.

use std::{
    collections::HashSet, ffi::OsStr, fs, io, ops::Range, os::unix::ffi::OsStrExt as _, path::Path, thread,
    time::Duration,
};

use super::{
    arch::{INSTRUCTION_ALIGN, RESTORE, RESTORE_IN_VDSO, SYSTEM_CALL},
    blob::{self, MEMORY_NAME},
};
use crate::os::{elf::ElfFile, maps, memory::Memory};

/// Functions of the process that the handler calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Functions {
    /// `int *__errno_location(void)`
    pub(super) errno: u64,
    /// `aclError aclrtGetDevice(int32_t *deviceId)`
    pub(super) get_device: u64,
    /// `aclError aclrtSynchronizeDevice(void)`
    pub(super) synchronize: u64,
    /// `aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)`
    pub(super) copy: u64,
    /// Code of libc that makes a system call and returns.
    pub(super) system_call: u64,
    /// Code that returns from a signal handler.
    pub(super) restore: u64,
}

/// Why nothing can be put into a process, now or ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It may be possible later.
    Later(String),
    /// It will not be.
    Never(String),
}

/// `/proc/<pid>/task/<tid>/status`: a field's text.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether `SIGURG` is in a mask; an unreadable one counts as no permission.
fn has_sigurg(status: &str, name: &str) -> Result<bool, Refusal> {
    let mask = field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let mask = mask.ok_or_else(|| Refusal::Later(format!("the thread's status has no {name}")))?;
    Ok(mask & SIGURG_BIT != 0)
}

/// The bit of `SIGURG` in masks.
const SIGURG_BIT: u64 = 1 << (libc::SIGURG - 1);

/// Why a program with its own handler is not touched.
pub(super) const OWN_HANDLER: &str = "the program has a handler of its own for SIGURG";

/// Whether a thread may be used. Returns the addresses of handlers that may be replaced: those of tracers that are
/// gone, and those that came with a fork. `ours` are the anonymous files of this tracer, by inode.
pub(super) fn check(pid: u32, tid: u32, ours: &HashSet<u64>) -> Result<Vec<Range<u64>>, Refusal> {
    let status = status_of(pid, tid)?;
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let has_handler = check_status(&status, yama.trim())?;
    let replaceable = if has_handler { replaceable(pid, ours)? } else { Vec::new() };
    // Only now: in another tracer's handler all signals are blocked, and the message has to name that tracer.
    check_mask(&status)?;
    Ok(replaceable)
}

fn status_of(pid: u32, tid: u32) -> Result<String, Refusal> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
    status.map_err(|error| Refusal::Later(format!("thread {tid} cannot be looked at: {error}")))
}

/// Whether the program has a handler for the signal now.
pub(super) fn has_handler(pid: u32, tid: u32) -> Result<bool, Refusal> {
    has_sigurg(&status_of(pid, tid)?, "SigCgt")
}

/// Handlers of ours in a process that has one for the signal.
fn replaceable(pid: u32, ours: &HashSet<u64>) -> Result<Vec<Range<u64>>, Refusal> {
    /// A tracer shows that it lives more often than this.
    const SIGN_OF_LIFE: Duration = Duration::from_millis(200);
    let later = |error: io::Error| Refusal::Later(format!("its mappings cannot be read: {error}"));
    let maps = maps::read(pid).map_err(later)?;
    let lines = maps::lines(&maps);
    let found: Vec<_> = lines.filter(|found| found.executable && is_memory(found.name)).collect();
    if found.is_empty() {
        return Err(Refusal::Never(OWN_HANDLER.to_owned()));
    }
    let memory = Memory::open(pid).map_err(later)?;
    let strangers = found.iter().filter(|found| !ours.contains(&found.id.inode));
    let alive = || -> Vec<Option<u32>> { strangers.clone().map(|found| blob::alive(&memory, found.start)).collect() };
    let before = alive();
    if !before.is_empty() {
        thread::sleep(SIGN_OF_LIFE);
        if alive() != before {
            return Err(Refusal::Later("another tracer watches its blocks".to_owned()));
        }
    }
    Ok(found.iter().map(|found| found.start..found.end).collect())
}

/// Whether a mapping is of a file of ours.
pub(super) fn is_memory(name: &[u8]) -> bool {
    name.strip_prefix(b"/memfd:").is_some_and(|name| name == MEMORY_NAME.as_bytes())
}

/// Gives whether the program has a handler for the signal.
fn check_status(status: &str, yama: &str) -> Result<bool, Refusal> {
    let never = |text: &str| Err(Refusal::Never(text.to_owned()));
    if yama == "3" {
        return never("this system allows no tracing (kernel.yama.ptrace_scope is 3)");
    }
    if field(status, "x86_Thread_features")
        .is_some_and(|features| features.split_whitespace().any(|word| word == "shstk"))
    {
        return never("the program runs with a shadow stack");
    }
    if field(status, "Seccomp").is_some_and(|mode| mode == "1") {
        return never("the program is in seccomp's strict mode");
    }
    let tracer = field(status, "TracerPid").unwrap_or("0");
    if tracer != "0" {
        return Err(Refusal::Later(format!("process {tracer} traces the program already (a debugger or strace)")));
    }
    has_sigurg(status, "SigCgt")
}

/// A thread that blocks the signal cannot be used.
fn check_mask(status: &str) -> Result<(), Refusal> {
    if has_sigurg(status, "SigBlk")? {
        return Err(Refusal::Later("the thread blocks SIGURG".to_owned()));
    }
    Ok(())
}

/// Number of a thread in the innermost namespace that it is in: as it knows itself.
#[must_use]
pub(super) fn inner_id(pid: u32, tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()
}

/// A file's code as it is mapped.
struct Mapped {
    bytes: Vec<u8>,
    /// Mapped at, its length, and where in the file that begins.
    code: (u64, u64, u64),
}

impl Mapped {
    fn symbol(&self, names: &[&str]) -> Option<u64> {
        let elf = ElfFile::parse(&self.bytes).ok()?;
        let found = elf.resolve(names).ok()?;
        names.iter().find_map(|name| self.at(found.iter().find(|place| place.name == *name)?.file_offset))
    }

    fn at(&self, file_offset: u64) -> Option<u64> {
        let (start, len, from) = self.code;
        let offset = file_offset.checked_sub(from).filter(|offset| *offset < len)?;
        Some(start + offset)
    }

    /// The first place of these bytes in the code.
    fn bytes_at(&self, bytes: &[u8]) -> Option<u64> {
        let (start, len, from) = self.code;
        let code = self.bytes.get(from as usize..)?;
        let code = &code[..code.len().min(len as usize)];
        instructions_at(code, start, bytes)
    }
}

/// The first place of these instructions in code that begins at `start`.
fn instructions_at(code: &[u8], start: u64, bytes: &[u8]) -> Option<u64> {
    let found = memchr::memmem::find_iter(code, bytes).map(|at| start + at as u64);
    found.into_iter().find(|at| at.is_multiple_of(INSTRUCTION_ALIGN))
}

/// Address of the kernel's own mapped code that returns from a signal handler.
fn restore_in_vdso(pid: u32, maps: &[u8]) -> io::Result<Option<u64>> {
    /// It has a few pages.
    const MAX_BYTES: u64 = 1 << 20;
    let mut lines = maps::lines(maps);
    let Some(vdso) = lines.find(|found| found.name == b"[vdso]" && found.executable) else { return Ok(None) };
    let mut code = vec![0; (vdso.end - vdso.start).min(MAX_BYTES) as usize];
    let read = Memory::open(pid)?.read(vdso.start, &mut code);
    read.ok_or_else(|| io::Error::other("its vDSO cannot be read"))?;
    Ok(instructions_at(&code, vdso.start, RESTORE))
}

/// Larger files are not read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The first executable mapping of a file with such a name.
fn mapped(pid: u32, maps: &[u8], names: &[&str]) -> io::Result<Option<Mapped>> {
    for name in names {
        for found in maps::lines(maps).filter(|found| found.executable && found.id.inode != 0) {
            let file_name = found.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if !file_name.starts_with(name.as_bytes()) {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(found.name));
            let file = crate::os::mapped::open(pid, &maps::plain_range(found.range), path, found.id)?;
            if file.metadata()?.len() > MAX_FILE_BYTES {
                continue;
            }
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut &file, &mut bytes)?;
            return Ok(Some(Mapped { bytes, code: (found.start, found.end - found.start, found.file_offset) }));
        }
    }
    Ok(None)
}

/// Whether it has mapped one of these functions, in a library with such a name.
pub(super) fn has_function(pid: u32, libraries: &[&str], names: &[&str]) -> bool {
    let maps = maps::read(pid).unwrap_or_default();
    mapped(pid, &maps, libraries).ok().flatten().is_some_and(|library| library.symbol(names).is_some())
}

/// Addresses of the functions that the handler calls.
pub(super) fn functions(pid: u32) -> Result<Functions, Refusal> {
    let later = |error: io::Error| Refusal::Later(format!("its mappings cannot be read: {error}"));
    let maps = maps::read(pid).map_err(later)?;
    let libc = mapped(pid, &maps, &["libc.so.6", "libc-2.", "libc.musl", "ld-musl"]).map_err(later)?;
    // The process may have become another program meanwhile, which its loader is still mapping.
    let libc = libc.ok_or_else(|| Refusal::Later("it has no libc that is mapped as a library".to_owned()))?;
    let acl = mapped(pid, &maps, &["libascendcl.so", "libacl_rt.so"]).map_err(later)?;
    let acl = acl.ok_or_else(|| Refusal::Later("it has not mapped libascendcl.so".to_owned()))?;
    let of_libc =
        |found: Option<u64>| found.ok_or_else(|| Refusal::Never("its libc is not one that is known".to_owned()));
    let of_acl =
        |name: &str| acl.symbol(&[name]).ok_or_else(|| Refusal::Never(format!("its libascendcl.so has no `{name}`")));
    let restore = if RESTORE_IN_VDSO { restore_in_vdso(pid, &maps).map_err(later)? } else { libc.bytes_at(RESTORE) };
    Ok(Functions {
        errno: of_libc(libc.symbol(&["__errno_location"]))?,
        system_call: of_libc(libc.bytes_at(SYSTEM_CALL))?,
        restore: of_libc(restore)?,
        get_device: of_acl("aclrtGetDevice")?,
        synchronize: of_acl("aclrtSynchronizeDevice")?,
        copy: of_acl("aclrtMemcpy")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "Name:\tpython\nTracerPid:\t0\nNSpid:\t70\t7\nSigBlk:\t0000000000000000\nSigCgt:\t0000000180014002\nSeccomp:\t0\n";

    #[test]
    fn states_in_which_nothing_is_done() {
        assert_eq!(check_status(PLAIN, "1"), Ok(false));
        let with = |from: &str, to: &str| PLAIN.replace(from, to);
        let caught = with("SigCgt:\t0000000180014002", "SigCgt:\t0000000000400000");
        assert_eq!(check_status(&caught, "0"), Ok(true));
        assert_eq!(check_mask(PLAIN), Ok(()));
        let blocked = with("SigBlk:\t0000000000000000", "SigBlk:\t0000000000400000");
        assert_eq!(check_mask(&blocked), Err(Refusal::Later("the thread blocks SIGURG".to_owned())));
        // The owner of the handler comes first.
        assert_eq!(check_status(&blocked, "0"), Ok(false));
        assert!(check_mask("").is_err());
        for (status, yama, never) in [
            (with("Seccomp:\t0", "Seccomp:\t1"), "0", true),
            (format!("{PLAIN}x86_Thread_features:\tshstk wrss\n"), "0", true),
            (PLAIN.to_owned(), "3", true),
            (with("TracerPid:\t0", "TracerPid:\t9"), "0", false),
            // An unreadable mask is no permission.
            (String::new(), "0", false),
        ] {
            let refused = check_status(&status, yama).expect_err("refused");
            assert_eq!(matches!(refused, Refusal::Never(_)), never, "{refused:?}");
        }
    }
}
