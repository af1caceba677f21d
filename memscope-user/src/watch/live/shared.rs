//! The memory shared with a watched process, from our side. The process may write anything into it, at any time.

use std::{
    fs::File,
    io,
    mem::offset_of,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering, fence},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
};

use super::blob::{
    self, Action, BUFFER_AT, BUFFER_BYTES, CALLS, Call, HEAD_AT, Head, SLOTS_AT, STRIDE, Slot, TOTAL_BYTES,
};

/// No handler is there.
const UNKNOWN_HANDLER: u64 = u64::MAX;

/// Our mapping of it.
pub(super) struct Shared {
    base: NonNull<u8>,
    /// Where the process has it.
    target: u64,
    /// Of the file.
    inode: u64,
}

// SAFETY: raw memory that is only accessed by volatile and atomic operations.
unsafe impl Send for Shared {}

impl Shared {
    /// Gives the file its size, for good, puts the handler into it and maps it.
    pub(super) fn create(file: &File) -> io::Result<Self> {
        file.set_len(TOTAL_BYTES as u64)?;
        // The process could cut it off under us otherwise.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;
        let len = std::num::NonZeroUsize::new(TOTAL_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping of a file that cannot shrink.
        let base = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, file.as_fd(), 0)? };
        let shared = Self { base: base.cast(), target: 0, inode: file.metadata()?.ino() };
        let (code, _) = blob::code();
        // SAFETY: the code fits into its page (checked by a test), which is not shared yet.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), shared.base.as_ptr(), code.len()) };
        Ok(shared)
    }

    /// Inode of the file.
    #[must_use]
    pub(super) const fn inode(&self) -> u64 {
        self.inode
    }

    /// The process has it at this address.
    pub(super) const fn set_target(&mut self, target: u64) {
        self.target = target;
    }

    /// Address of the handler in the process.
    #[must_use]
    pub(super) const fn handler(&self) -> u64 {
        self.target
    }

    /// Addresses in the process: first, and behind the last.
    #[must_use]
    pub(super) const fn target_range(&self) -> (u64, u64) {
        (self.target, self.target + TOTAL_BYTES as u64)
    }

    /// Address of the function for system calls in the process.
    #[must_use]
    pub(super) fn system_call(&self) -> u64 {
        self.target + blob::code().1
    }

    /// Address in the process of the action to set, and of the action set before.
    #[must_use]
    pub(super) const fn actions(&self) -> (u64, u64) {
        let head = self.target + HEAD_AT as u64;
        (head + offset_of!(Head, action) as u64, head + offset_of!(Head, old_action) as u64)
    }

    /// Address in the process of a slot's buffer.
    #[must_use]
    pub(super) const fn buffer(&self, slot: usize) -> u64 {
        self.target + (SLOTS_AT + slot * STRIDE + BUFFER_AT) as u64
    }

    const fn head(&self) -> *mut Head {
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(HEAD_AT).cast() }
    }

    const fn slot(&self, slot: usize) -> *mut Slot {
        assert!(slot < blob::SLOTS, "no such slot");
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(SLOTS_AT + slot * STRIDE).cast() }
    }

    /// Settings that the handler reads.
    pub(super) fn prepare(&self, errno_function: u64, patience: Duration, action: Action) {
        let head = self.head();
        // SAFETY: within the mapping, aligned.
        unsafe {
            (&raw mut (*head).errno_function).write_volatile(errno_function);
            (&raw mut (*head).patience).write_volatile([patience.as_secs(), patience.subsec_nanos().into()]);
            (&raw mut (*head).action).write_volatile(action);
        }
        fence(Ordering::SeqCst);
    }

    /// The handler that the process has, or had: the result of its query. `None` before that.
    pub(super) fn old_handler(&self) -> Option<u64> {
        // SAFETY: within the mapping, aligned.
        let handler = unsafe { (&raw const (*self.head()).old_action.handler).read_volatile() };
        (handler != UNKNOWN_HANDLER).then_some(handler)
    }

    /// Forgets it.
    pub(super) fn forget_old_handler(&self) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.head()).old_action.handler).write_volatile(UNKNOWN_HANDLER) };
    }

    fn head_word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned; the process accesses it atomically or not at all.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(HEAD_AT + offset).cast()) }
    }

    fn slot_word(&self, slot: usize, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.slot(slot).cast::<u8>().add(offset).cast()) }
    }

    /// Switches the handler on or off.
    pub(super) fn switch(&self, on: bool) {
        self.head_word(offset_of!(Head, on)).store(on.into(), Ordering::SeqCst);
    }

    /// Shows that we live.
    pub(super) fn live(&self) {
        self.head_word(offset_of!(Head, alive)).fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a thread has waited for us in vain.
    #[must_use]
    pub(super) fn given_up(&self) -> bool {
        self.head_word(offset_of!(Head, given_up)).load(Ordering::SeqCst) != 0
    }

    /// Threads that found no slot.
    #[must_use]
    pub(super) fn skipped(&self) -> u32 {
        self.head_word(offset_of!(Head, skipped)).load(Ordering::SeqCst)
    }

    /// The bell now.
    #[must_use]
    pub(super) fn bell(&self) -> u32 {
        self.head_word(offset_of!(Head, bell)).load(Ordering::SeqCst)
    }

    /// Waits until the bell has changed, or the time is over.
    pub(super) fn wait(&self, bell: u32, patience: Duration) {
        let time = libc::timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let word = self.head_word(offset_of!(Head, bell)).as_ptr();
        // SAFETY: the word is in memory that stays mapped; an error means that it is looked at once more.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, bell, &raw const time) };
    }

    /// The same without sleeping, for so short a time that others may well have the processor meanwhile.
    pub(super) fn await_soon(&self, bell: u32, patience: Duration) {
        let start = Instant::now();
        while self.bell() == bell && start.elapsed() < patience {
            std::thread::yield_now();
        }
    }

    /// Number of the thread that waits for an answer in a slot, as it knows it, and where it was interrupted: stack
    /// pointer, instruction pointer.
    #[must_use]
    pub(super) fn waiting(&self, slot: usize) -> Option<(u32, [u64; 2])> {
        let word = |offset| self.slot_word(slot, offset).load(Ordering::SeqCst);
        let owner = word(offset_of!(Slot, owner));
        if owner == 0 || word(offset_of!(Slot, done)) == word(offset_of!(Slot, order)) {
            return None;
        }
        // SAFETY: within the mapping, aligned.
        let place = unsafe {
            let slot = self.slot(slot);
            [
                (&raw const (*slot).stack_pointer).read_volatile(),
                (&raw const (*slot).instruction_pointer).read_volatile(),
            ]
        };
        Some((owner, place))
    }

    /// The returned value of a requested call.
    #[must_use]
    pub(super) fn returned(&self, slot: usize, call: usize) -> i32 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.slot(slot)).calls[call.min(CALLS - 1)].returned).read_volatile() as i32 }
    }

    /// Answers: the thread makes these calls and comes back; without any it continues with its program.
    pub(super) fn answer(&self, slot: usize, calls: &[Call]) {
        let calls = &calls[..calls.len().min(CALLS)];
        for (at, call) in calls.iter().enumerate() {
            // SAFETY: within the mapping, aligned.
            unsafe { (&raw mut (*self.slot(slot)).calls[at]).write_volatile(*call) };
        }
        self.slot_word(slot, offset_of!(Slot, count)).store(calls.len() as u32, Ordering::SeqCst);
        let done = self.slot_word(slot, offset_of!(Slot, done)).load(Ordering::SeqCst);
        let order = self.slot_word(slot, offset_of!(Slot, order));
        order.store(done, Ordering::SeqCst);
        // SAFETY: the word is in memory that stays mapped.
        unsafe { libc::syscall(libc::SYS_futex, order.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    /// Copies the first bytes of a slot's buffer.
    pub(super) fn read(&self, slot: usize, to: &mut [u8]) {
        let len = to.len().min(BUFFER_BYTES);
        // SAFETY: within the mapping. The process may change the bytes meanwhile: then they are those or these.
        unsafe { std::ptr::copy_nonoverlapping(self.slot(slot).cast::<u8>().add(BUFFER_AT), to.as_mut_ptr(), len) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our mapping, unused from here on.
        let _ = unsafe { munmap(self.base.cast(), TOTAL_BYTES) };
    }
}
