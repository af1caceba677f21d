//! From a file or a process to the places of probes. Nothing here asks the kernel to trace.
//!
//! `hidden` finds functions that a library does not name, `mstx_copies` files that have functions of mstx in them, `site` the
//! cheapest instruction of a function to probe, `ops` the operators of libtorch, `python` an interpreter and its structs, `thunks`
//! which calls pass by a probe.

pub mod hidden;
pub mod mstx_copies;
pub mod ops;
pub mod python;
pub mod site;
pub(crate) mod thunks;
