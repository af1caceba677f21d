//! Types that memory of others may be copied into.

/// A type whose every bit pattern is a value.
///
/// # Safety
///
/// It has integers only, and no padding.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: as its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
