//! Compares a trace of `torch_npu` with what `torch_npu` says of itself (`torch-npu/README.md`).
//!
//! [`mod@bench`] runs its programs, [`truth`] reads its own account, [`pool`] what the rows say of its allocator, and
//! [`compare`] holds one against the other, line by line of a [`table`]; [`checks`] has what is held to the journal, and the
//! form of files.

pub mod bench;
pub mod checks;
pub mod compare;
pub mod lookups;
pub mod pool;
pub mod table;
pub mod truth;
