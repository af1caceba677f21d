//! From a file or a process to the places of probes. Nothing here asks the kernel to trace.
//!
//! `hidden` finds functions without a name in the library, `mstx_copies` files with copies of mstx's functions, `site`
//! the cheapest instruction of a function to probe, `ops` the operators of libtorch, `python` an interpreter and its
//! structs, `thunks` calls that bypass a probe.

pub mod hidden;
pub mod mstx_copies;
pub mod ops;
pub mod python;
pub mod site;
pub(crate) mod thunks;
