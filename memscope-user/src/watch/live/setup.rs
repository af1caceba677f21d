//! Puts the handler into a process, with the help of one of its threads: six system calls, each of which the thread
//! makes by itself between two signal frames, so that it continues unchanged whether we live or not.
//!
//! One thread of ours does all of this, and only it traces: when it ends, the kernel releases everything it traced.

use std::{
    cell::Cell,
    fs::{self, File, OpenOptions},
    io,
    mem::MaybeUninit,
    ops::Range,
    os::unix::fs::FileExt as _,
    thread,
    time::{Duration, Instant},
};

use super::{
    arch::{self, CODE_BYTES, HANDLER_FLAGS, Others, Registers},
    blob::{Action, MEMORY_NAME, TOTAL_BYTES},
    frames::{self, Saved, SystemCall},
    seccomp::{self, Instruction, Verdict},
    shared::Shared,
    target::{self, Functions, OWN_HANDLER, Refusal, inner_id},
};
use crate::os::maps;

/// Longest time until the thread's next operator.
const NEXT_OPERATOR: Duration = Duration::from_millis(500);
/// Longest wait for a signal that was under way when no more were to be sent.
const LAST_OPERATOR: Duration = Duration::from_millis(1);
/// Longest time of a system call.
const CALL_PATIENCE: Duration = Duration::from_secs(2);
/// The thread's wait for an answer before it checks whether we live.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// `SI_KERNEL`
const FROM_KERNEL: i32 = 0x80;
/// `NT_PRSTATUS`: the general registers.
const GENERAL: usize = 1;

/// Why nothing was put into the process.
#[derive(Debug)]
pub(super) enum Failure {
    /// The thread came to no operator.
    NoOperator,
    /// It is not done, for a reason.
    Refused(Refusal),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Refused(Refusal::Later(error.to_string()))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn never(text: impl Into<String>) -> Failure {
    Failure::Refused(Refusal::Never(text.into()))
}

/// A traced thread.
struct Traced<'a> {
    pid: u32,
    tid: i32,
    memory: File,
    replaceable: &'a [Range<u64>],
    is_at_operator: &'a dyn Fn([u64; 2]) -> bool,
    /// A system call was not seen to return: where the thread is, is not known, and its registers are not touched again.
    lost: Cell<bool>,
}

fn ptrace(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: `data` is a number, or points to what the request reads or writes.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A thread that is traced until this is dropped.
struct Seized {
    tid: i32,
}

impl Seized {
    fn new(tid: i32) -> io::Result<Self> {
        ptrace(libc::PTRACE_SEIZE, tid, 0, 0)?;
        Ok(Self { tid })
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        // Whatever it is doing, it continues by itself from here.
        let _ = ptrace(libc::PTRACE_DETACH, self.tid, 0, 0);
    }
}

/// Puts the handler into `pid`, helped by its thread `tid` when it arrives at its next operator. `arm` lets threads be
/// sent signals from there on, or no longer; handlers at addresses in `replaceable` are none of the program's own; `is_at_operator`
/// returns whether the thread is where it was sent one, by its stack pointer and instruction pointer.
pub(super) fn run(
    pid: u32,
    tid: u32,
    functions: Functions,
    replaceable: &[Range<u64>],
    mut arm: impl FnMut(bool) -> io::Result<()>,
    is_at_operator: &dyn Fn([u64; 2]) -> bool,
) -> Result<Shared, Failure> {
    let seized = Seized::new(tid.cast_signed())?;
    // Until the thread is released, its process's number is not reused, so the memory is that of the process.
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let traced = Traced { pid, tid: seized.tid, memory, replaceable, is_at_operator, lost: Cell::new(false) };
    arm(true)?;
    let result = traced.wait_for_signal(NEXT_OPERATOR, || traced.has_come()).and_then(|()| traced.set_up(functions));
    if result.is_err() {
        // While it is traced: once released, its next operator would send it a signal for a handler of its own.
        let _ = arm(false);
        let _ = traced.wait_for_signal(LAST_OPERATOR, || traced.has_come());
    }
    result
}

impl Traced<'_> {
    /// Waits until the thread is stopped by the expected `SIGURG`. All other signals are passed on unchanged.
    fn wait_for_signal(&self, patience: Duration, is_meant: impl Fn() -> bool) -> Result<(), Failure> {
        const STOPPED_BY_EVENT: i32 = libc::PTRACE_EVENT_STOP;
        const NAP: Duration = Duration::from_micros(20);
        let start = Instant::now();
        loop {
            let mut status = 0;
            // Only this thread's own tracees: others of our process wait for their children.
            // SAFETY: `status` is a number of ours.
            let found =
                unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
            if found < 0 {
                return Err(io::Error::last_os_error().into());
            }
            if found == 0 {
                if start.elapsed() > patience {
                    return Err(Failure::NoOperator);
                }
                thread::sleep(NAP);
                continue;
            }
            if !libc::WIFSTOPPED(status) {
                return Err(io::Error::other("the thread has ended").into());
            }
            let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
            match event {
                0 if signal == libc::SIGURG && is_meant() => return Ok(()),
                0 => ptrace(libc::PTRACE_CONT, self.tid, 0, signal as usize)?,
                // The process is stopped as a whole: it stays so.
                STOPPED_BY_EVENT if signal != libc::SIGTRAP => ptrace(libc::PTRACE_LISTEN, self.tid, 0, 0)?,
                _ => ptrace(libc::PTRACE_CONT, self.tid, 0, 0)?,
            };
        }
    }

    /// `si_code` of the signal by which the thread is stopped.
    fn origin(&self) -> io::Result<i32> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        ptrace(libc::PTRACE_GETSIGINFO, self.tid, 0, info.as_mut_ptr().addr())?;
        // SAFETY: zeroes are a value, and the kernel has written over them.
        Ok(unsafe { info.assume_init() }.si_code)
    }

    /// Whether the thread was sent by an operator, and has arrived at once.
    fn has_come(&self) -> bool {
        let from_kernel = self.origin().is_ok_and(|origin| origin == FROM_KERNEL);
        from_kernel && self.place().is_ok_and(|place| (self.is_at_operator)(place))
    }

    /// Stack pointer and instruction pointer.
    fn place(&self) -> io::Result<[u64; 2]> {
        self.registers().map(|registers| arch::place(&registers))
    }

    fn registers(&self) -> io::Result<Registers> {
        let bytes = self.regset(GENERAL)?;
        if bytes.len() != size_of::<Registers>() {
            return Err(io::Error::other("it is a program of another kind of machine"));
        }
        // SAFETY: as long as the bytes, and any are a value.
        Ok(unsafe { bytes.as_ptr().cast::<Registers>().read_unaligned() })
    }

    /// A set of the thread's registers, by its number.
    fn regset(&self, number: usize) -> io::Result<Vec<u8>> {
        const MAX_BYTES: usize = 64 << 10;
        let mut bytes = vec![0_u8; MAX_BYTES];
        let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        ptrace(libc::PTRACE_GETREGSET, self.tid, number, (&raw mut place).addr())?;
        bytes.truncate(place.iov_len);
        Ok(bytes)
    }

    fn save(&self) -> Result<Saved, Failure> {
        let registers = self.registers()?;
        if arch::is_in_system_call(&registers) {
            return Err(Failure::NoOperator);
        }
        let others = Others::read(|number| self.regset(number)).map_err(Failure::Refused)?;
        let mut signal_mask = 0_u64;
        ptrace(libc::PTRACE_GETSIGMASK, self.tid, 8, (&raw mut signal_mask).addr())?;
        Ok(Saved { registers, others, signal_mask })
    }

    /// The thread makes a system call; its result is unknown, only its effects are.
    fn call(&self, saved: &Saved, functions: Functions, number: i64, args: [u64; 6]) -> Result<(), Failure> {
        // Its report is lost where another signal meets it: then the thread has gone back to its operator by itself.
        if self.lost.replace(true) {
            return Err(Failure::NoOperator);
        }
        let inner = |id| inner_id(self.pid, id).map(u64::from).ok_or_else(|| io::Error::other("the thread has ended"));
        let (pid, tid) = (inner(self.pid)?, inner(self.tid.cast_unsigned())?);
        let report = SystemCall { number: libc::SYS_tgkill as u64, args: [pid, tid, libc::SIGURG as u64, 0, 0, 0] };
        let call = SystemCall { number: number as u64, args };
        let chain = frames::chain(saved, call, report, [functions.system_call, functions.restore]);
        let chain = chain.ok_or_else(|| never("its stack has no room"))?;
        for (at, bytes) in &chain.writes {
            self.memory.write_all_at(bytes, *at)?;
        }
        let mut registers = chain.registers;
        let mut place = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<Registers>() };
        ptrace(libc::PTRACE_SETREGSET, self.tid, GENERAL, (&raw mut place).addr())?;
        ptrace(libc::PTRACE_CONT, self.tid, 0, 0)?;
        // By where the thread is: the program may send that signal, too, and of two that meet the kernel keeps one.
        let reported = || self.place().is_ok_and(|place| place == chain.reported);
        match self.wait_for_signal(CALL_PATIENCE, reported) {
            Ok(()) => {
                self.lost.set(false);
                Ok(())
            }
            Err(Failure::NoOperator) => Err(io::Error::other("a system call of setting up did not return").into()),
            Err(other) => Err(other),
        }
    }

    fn set_up(&self, functions: Functions) -> Result<Shared, Failure> {
        self.check_seccomp()?;
        self.check_handler()?;
        let saved = self.save()?;
        let call = |number, args| self.call(&saved, functions, number, args);
        let text_at = frames::scratch(&saved);
        self.memory.write_all_at(format!("{MEMORY_NAME}\0").as_bytes(), text_at)?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        call(libc::SYS_memfd_create, [text_at, flags, 0, 0, 0, 0])?;
        let (number, file) =
            self.our_file()?.ok_or_else(|| never("the program may not make anonymous files (memfd_create)"))?;
        let result = self.map(&saved, functions, number, &file);
        let closed = call(libc::SYS_close, [number, 0, 0, 0, 0, 0]);
        let shared = result?;
        closed?;
        let (action, old) = shared.actions();
        // A first call that only queries: the program may have set a handler since the other was put there.
        let steps: &[u64] = if self.replaceable.is_empty() { &[action] } else { &[0, action] };
        for new in steps {
            shared.forget_old_handler();
            call(libc::SYS_rt_sigaction, [libc::SIGURG as u64, *new, old, 8, 0, 0])?;
            let refusal = match shared.old_handler() {
                None => "the program may not have a handler for SIGURG (rt_sigaction)",
                Some(handler) if *new == 0 && !self.may_replace(handler) => OWN_HANDLER,
                Some(_) => continue,
            };
            let (from, to) = shared.target_range();
            call(libc::SYS_munmap, [from, to - from, 0, 0, 0, 0])?;
            return Err(never(refusal));
        }
        Ok(shared)
    }

    /// The thread has gone on since its program was checked: that may have set a handler meanwhile.
    fn check_handler(&self) -> Result<(), Failure> {
        if self.replaceable.is_empty() && target::has_handler(self.pid, self.tid.cast_unsigned())? {
            return Err(never(OWN_HANDLER));
        }
        Ok(())
    }

    fn may_replace(&self, handler: u64) -> bool {
        handler <= libc::SIG_IGN as u64 || self.replaceable.iter().any(|range| range.contains(&handler))
    }

    fn map(&self, saved: &Saved, functions: Functions, number: u64, file: &File) -> Result<Shared, Failure> {
        let refused = || never("the program may not map code of ours (mmap; SELinux, seccomp or vm.memfd_noexec)");
        let mut shared = Shared::create(file)?;
        let call = |number, args| self.call(saved, functions, number, args);
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let total = TOTAL_BYTES as u64;
        call(libc::SYS_mmap, [0, total, protection, libc::MAP_SHARED as u64, number, 0])?;
        let (base, _) = self.mapping(file, false)?.ok_or_else(refused)?;
        // Over our own mapping, so nothing of the program's is in the way.
        let (code, fixed) = ((libc::PROT_READ | libc::PROT_EXEC) as u64, (libc::MAP_SHARED | libc::MAP_FIXED) as u64);
        call(libc::SYS_mmap, [base, CODE_BYTES as u64, code, fixed, number, 0])?;
        if self.mapping(file, true)?.map(|(at, _)| at) != Some(base) {
            call(libc::SYS_munmap, [base, total, 0, 0, 0, 0])?;
            return Err(refused());
        }
        shared.set_target(base);
        let action = Action {
            handler: shared.handler(),
            flags: libc::SA_SIGINFO as u64 | libc::SA_RESTART as u64 | HANDLER_FLAGS,
            restorer: if HANDLER_FLAGS == 0 { 0 } else { functions.restore },
            mask: u64::MAX,
        };
        shared.prepare(functions.errno, ANSWER_PATIENCE, action);
        Ok(shared)
    }

    /// The anonymous file that the thread has made, as it and as we have it.
    fn our_file(&self) -> io::Result<Option<(u64, File)>> {
        let directory = format!("/proc/{}/task/{}/fd", self.pid, self.tid);
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let is_ours = target.to_string_lossy().starts_with(&format!("/memfd:{MEMORY_NAME}"));
            if is_ours {
                let file = OpenOptions::new().read(true).write(true).open(entry.path())?;
                // One of an earlier tracer has its size.
                if file.metadata()?.len() == 0 {
                    return Ok(Some((number, file)));
                }
            }
        }
        Ok(None)
    }

    /// Where the process has mapped the file.
    fn mapping(&self, file: &File, executable: bool) -> io::Result<Option<(u64, u64)>> {
        use std::os::unix::fs::MetadataExt as _;
        let inode = file.metadata()?.ino();
        let maps = maps::read(self.pid)?;
        let found = maps::lines(&maps).find(|found| {
            found.id.inode == inode && found.name.starts_with(b"/memfd:") && found.executable == executable
        });
        Ok(found.map(|found| (found.start, found.end)))
    }

    /// A filter that would end the program for one of our system calls is not tried.
    fn check_seccomp(&self) -> Result<(), Failure> {
        const MAX_FILTERS: usize = 64;
        const GET_FILTER: libc::c_uint = 0x420c;
        let status = fs::read_to_string(format!("/proc/{}/task/{}/status", self.pid, self.tid))?;
        if !status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0")) {
            return Ok(());
        }
        let calls: [(&str, i64, [u64; 6]); 9] = [
            ("memfd_create", libc::SYS_memfd_create, [0, 3, 0, 0, 0, 0]),
            ("mmap", libc::SYS_mmap, [0, TOTAL_BYTES as u64, 3, 1, 3, 0]),
            ("mmap of code", libc::SYS_mmap, [1 << 40, CODE_BYTES as u64, 5, 0x11, 3, 0]),
            ("close", libc::SYS_close, [3, 0, 0, 0, 0, 0]),
            ("munmap", libc::SYS_munmap, [1 << 40, TOTAL_BYTES as u64, 0, 0, 0, 0]),
            ("rt_sigaction", libc::SYS_rt_sigaction, [libc::SIGURG as u64, 1 << 40, 1 << 40, 8, 0, 0]),
            ("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 6]),
            ("tgkill", libc::SYS_tgkill, [self.pid.into(), self.tid as u64, libc::SIGURG as u64, 0, 0, 0]),
            ("futex", libc::SYS_futex, [1 << 40, 0, 0, 1 << 40, 0, 0]),
        ];
        // What fails instead of being made would leave the thread where it is, or make it wait for nothing.
        let must_work = ["rt_sigreturn", "tgkill", "futex", "gettid"];
        for index in 0..MAX_FILTERS {
            let count = match ptrace(GET_FILTER, self.tid, index, 0) {
                Ok(count) => count as usize,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                Err(error) => return Err(never(format!("its seccomp filters cannot be read ({error})"))),
            };
            let mut bytes = vec![[0_u8; 8]; count];
            ptrace(GET_FILTER, self.tid, index, bytes.as_mut_ptr().addr())?;
            let filter: Vec<Instruction> = bytes.into_iter().map(Instruction::from_bytes).collect();
            let more = ("gettid", libc::SYS_gettid, [0; 6]);
            for (name, number, args) in calls.into_iter().chain([more]) {
                match seccomp::run(&filter, number as u32, args) {
                    Verdict::Allowed => {}
                    Verdict::Fails if !must_work.contains(&name) => {}
                    _ => return Err(never(format!("its seccomp filter does not allow {name}"))),
                }
            }
        }
        Err(never("it has more seccomp filters than are looked at"))
    }
}
