//! Limits the memory that this process's allocator keeps: a trace may run for weeks beside programs that need it.

/// Call before any large allocation.
#[cfg(target_env = "gnu")]
pub(super) fn keep_little() {
    /// Larger blocks get a mapping of their own, and are unmapped when freed. Otherwise the allocator raises this, and
    /// its reserve, to the largest freed size.
    const OWN_MAPPING_BYTES: i32 = 256 << 10;
    /// Reserve at the end of a heap.
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
