//! Returns unused memory to the system: a trace may run for weeks beside programs that need it.

/// Call after large frees. Takes about a millisecond.
#[cfg(target_env = "gnu")]
pub(super) fn give_back() {
    // SAFETY: no arguments that could be wrong.
    unsafe { libc::malloc_trim(0) };
}

/// As above; other allocators decide themselves.
#[cfg(not(target_env = "gnu"))]
pub(super) const fn give_back() {}
