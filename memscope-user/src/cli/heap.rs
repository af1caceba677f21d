//! Memory that is not needed any more goes back to the system: a trace may run for weeks beside what needs the memory.

#[cfg(target_env = "gnu")]
mod glibc {
    /// Larger pieces are mapped each on their own, and unmapped when they are freed. Left to itself the allocator raises
    /// this, and what it keeps, to what was freed once.
    const OWN_MAPPING_BYTES: i32 = 256 << 10;
    /// What is kept at the end of a heap.
    const KEPT_BYTES: i32 = 256 << 10;
    /// Each heap keeps what its threads have freed. Nothing allocates on the way of a record, so they need not be many.
    const HEAPS: i32 = 2;

    pub(in crate::cli) fn keep_little() {
        for (option, value) in [
            (libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
            (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
            (libc::M_ARENA_MAX, HEAPS),
        ] {
            // SAFETY: a number each; an allocator that knows better stays as it is.
            unsafe { libc::mallopt(option, value) };
        }
    }

    pub(in crate::cli) fn give_back() {
        // SAFETY: no arguments that could be wrong.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(not(target_env = "gnu"))]
mod glibc {
    pub(in crate::cli) const fn keep_little() {}
    pub(in crate::cli) const fn give_back() {}
}

/// To be called before anything large is made.
pub(super) fn keep_little() {
    glibc::keep_little();
}

/// To be called when much has been freed. Takes about a millisecond.
pub(super) fn give_back() {
    glibc::give_back();
}
