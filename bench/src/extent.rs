//! How much of the leaks is measured, and by which analyses.

use memscope::analyses::{self, Analysis};

/// Servers of each case, and training programs.
const SEEDS: u64 = 40;
const LESSONS: u64 = 60;

/// How much is run, and what is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Servers of each case.
    pub(crate) servers: u64,
    /// Training programs.
    pub(crate) lessons: u64,
    /// Servers of each case that are attached to.
    pub(crate) attached: u64,
    /// Each seed with a verdict that is not right is printed.
    pub(crate) details: bool,
}

impl Extent {
    /// All of it.
    pub(crate) const fn full(details: bool) -> Self {
        Self { servers: SEEDS, lessons: LESSONS, attached: 2, details }
    }

    /// The first of each.
    pub(crate) fn first(seeds: u64, details: bool) -> Self {
        Self { servers: seeds, lessons: LESSONS.max(3 * seeds), attached: seeds.min(2), details }
    }
}

/// The analyses that are measured.
pub(crate) fn measured() -> Vec<Box<dyn Analysis>> {
    vec![Box::new(analyses::judged_leaks())]
}
