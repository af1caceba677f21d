//! Call stacks on their way from the ring to the writer: what the kernel side could not finish is finished here.

pub mod mappings;
