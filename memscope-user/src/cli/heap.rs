//! What the allocator of this process keeps: a trace may run for weeks beside what needs the memory.

/// To be called before anything large is made.
#[cfg(target_env = "gnu")]
pub(super) fn keep_little() {
    /// Larger pieces are mapped each on their own, and unmapped when they are freed. Left to itself the allocator raises
    /// this, and what it keeps, to what was freed once.
    const OWN_MAPPING_BYTES: i32 = 256 << 10;
    /// What is kept at the end of a heap.
    const KEPT_BYTES: i32 = 256 << 10;
    /// Few arenas: the record path does not allocate, so there is no contention.
    const HEAPS: i32 = 2;

    for (option, value) in
        [(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES), (libc::M_TRIM_THRESHOLD, KEPT_BYTES), (libc::M_ARENA_MAX, HEAPS)]
    {
        // SAFETY: a number each; an allocator that knows better stays as it is.
        unsafe { libc::mallopt(option, value) };
    }
}

/// As above; other allocators decide themselves.
#[cfg(not(target_env = "gnu"))]
pub(super) const fn keep_little() {}
