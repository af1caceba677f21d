//! What the repository's own code looks like: which folder knows which (`layers`), and its figures (`figures`), and what
//! writes to terminals (`terminal`).

pub(crate) mod figures;
mod graph;
pub(crate) mod layers;
mod source;
pub(crate) mod terminal;
