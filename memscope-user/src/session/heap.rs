//! Memory that is not needed any more goes back to the system: a trace may run for weeks beside what needs the memory.

/// To be called when much has been freed. Takes about a millisecond.
#[cfg(target_env = "gnu")]
pub(super) fn give_back() {
    // SAFETY: no arguments that could be wrong.
    unsafe { libc::malloc_trim(0) };
}

/// As above; other allocators decide themselves.
#[cfg(not(target_env = "gnu"))]
pub(super) const fn give_back() {}
