//! What a process must be, and where it has what, before anything of ours is put into it.

use std::{fs, io};

use crate::attach::{
    elf::ElfFile,
    maps::{self, line},
};

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
    /// Code of libc that returns from a signal handler.
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

fn signals(status: &str, name: &str) -> u64 {
    field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(u64::MAX)
}

/// The bit of `SIGURG` in masks.
const SIGURG_BIT: u64 = 1 << (libc::SIGURG - 1);

/// Whether a thread may be worked on.
pub(super) fn check(pid: u32, tid: u32) -> Result<(), Refusal> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
    let status = status.map_err(|error| Refusal::Later(format!("thread {tid} cannot be looked at: {error}")))?;
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    check_status(&status, yama.trim())
}

fn check_status(status: &str, yama: &str) -> Result<(), Refusal> {
    let never = |text: &str| Err(Refusal::Never(text.to_owned()));
    if yama == "3" {
        return never("this system lets nobody trace (kernel.yama.ptrace_scope is 3)");
    }
    if signals(status, "SigCgt") & SIGURG_BIT != 0 {
        return never("the program has a handler of its own for SIGURG");
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
    if signals(status, "SigBlk") & SIGURG_BIT != 0 {
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

/// `mov $15, %rax; syscall`: how libc returns from a handler; debuggers look for the same bytes.
const RESTORE: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `syscall; ret`
const SYSTEM_CALL: &[u8] = &[0x0f, 0x05, 0xc3];

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
        memchr::memmem::find(code, bytes).map(|at| start + at as u64)
    }
}

/// Files larger than this are none of those looked for.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The first executable mapping of a file whose name begins so.
fn mapped(pid: u32, maps: &[u8], names: &[&str]) -> io::Result<Option<Mapped>> {
    for name in names {
        for text in maps.split(|byte| *byte == b'\n') {
            let Some(found) = line(text).filter(|found| found.executable && found.id.inode != 0) else { continue };
            let file_name = found.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if !file_name.starts_with(name.as_bytes()) {
                continue;
            }
            let range = maps::plain_range(found.range);
            let file = fs::File::open(format!("/proc/{pid}/map_files/{range}"))?;
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

/// Where the process has what the handler calls.
pub(super) fn functions(pid: u32) -> Result<Functions, Refusal> {
    let later = |error: io::Error| Refusal::Later(format!("its mappings cannot be read: {error}"));
    let maps = fs::read(format!("/proc/{pid}/maps")).map_err(later)?;
    let libc = mapped(pid, &maps, &["libc.so.6", "libc-2.", "libc.musl", "ld-musl"]).map_err(later)?;
    let libc = libc.ok_or_else(|| Refusal::Never("it has no libc that is mapped as a library".to_owned()))?;
    let acl = mapped(pid, &maps, &["libascendcl.so", "libacl_rt.so"]).map_err(later)?;
    let acl = acl.ok_or_else(|| Refusal::Later("it has not mapped libascendcl.so".to_owned()))?;
    let of_libc =
        |found: Option<u64>| found.ok_or_else(|| Refusal::Never("its libc is not one that is known".to_owned()));
    let of_acl =
        |name: &str| acl.symbol(&[name]).ok_or_else(|| Refusal::Never(format!("its libascendcl.so has no `{name}`")));
    Ok(Functions {
        errno: of_libc(libc.symbol(&["__errno_location"]))?,
        system_call: of_libc(libc.bytes_at(SYSTEM_CALL))?,
        restore: of_libc(libc.bytes_at(RESTORE))?,
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
        assert_eq!(check_status(PLAIN, "1"), Ok(()));
        let with = |from: &str, to: &str| PLAIN.replace(from, to);
        for (status, yama, never) in [
            (with("SigCgt:\t0000000180014002", "SigCgt:\t0000000000400000"), "0", true),
            (with("Seccomp:\t0", "Seccomp:\t1"), "0", true),
            (format!("{PLAIN}x86_Thread_features:\tshstk wrss\n"), "0", true),
            (PLAIN.to_owned(), "3", true),
            (with("TracerPid:\t0", "TracerPid:\t9"), "0", false),
            (with("SigBlk:\t0000000000000000", "SigBlk:\t0000000000400000"), "0", false),
            // What cannot be read is no permission.
            (String::new(), "0", true),
        ] {
            let refused = check_status(&status, yama).expect_err("refused");
            assert_eq!(matches!(refused, Refusal::Never(_)), never, "{refused:?}");
        }
    }
}
