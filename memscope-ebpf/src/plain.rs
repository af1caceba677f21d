//! Types for copies of foreign memory.

/// A type in which every bit pattern is a value.
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
