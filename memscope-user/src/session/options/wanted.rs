//! Which rows and analyses a trace makes.

use crate::analyses::{AnalysisBit, Questions};

/// Blocks named when memory is out.
pub(crate) const DEFAULT_BLOCKS: u32 = 10;

/// Which rows are written.
#[expect(clippy::struct_excessive_bools, reason = "one field per kind of row")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events {
    /// MALLOC rows.
    pub alloc: bool,
    /// FREE rows.
    pub free: bool,
    /// Launch rows.
    pub launch: bool,
    /// ACCESS rows.
    pub access: bool,
    /// `BLOCK_FREE` rows; an addition of ours.
    pub block_free: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self { alloc: true, free: true, launch: true, ..Self::NONE }
    }
}

impl Events {
    /// None of them.
    pub const NONE: Self = Self { alloc: false, free: false, launch: false, access: false, block_free: false };

    /// The contract's bits: alloc 1, free 2, launch 4, access 8; ours has none.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.alloc as u32 | (self.free as u32) << 1 | (self.launch as u32) << 2 | (self.access as u32) << 3
    }
}

/// Rows of operators, of kernels, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLevel {
    /// Operators.
    pub op: bool,
    /// Kernels.
    pub kernel: bool,
}

impl Default for RowLevel {
    fn default() -> Self {
        Self { op: true, kernel: false }
    }
}

impl RowLevel {
    /// The contract's bits: op 1, kernel 2.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.op as u32 | (self.kernel as u32) << 1
    }
}

/// Which devices' rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// Every NPU.
    pub all_npu: bool,
    /// Bit *n*: NPU *n*.
    pub slots: u32,
    /// Host memory.
    pub cpu: bool,
}

impl Default for Devices {
    fn default() -> Self {
        Self { all_npu: true, slots: 0, cpu: false }
    }
}

/// The requested analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Analyses {
    /// Questions of the registry, by their words: leaks, decompose, inefficient, oom, peaks, …
    pub questions: Questions,
    /// Number of blocks to name when memory is out, of the newest and of the largest.
    pub oom_blocks: u32,
    /// What costs no probe, beside those: requests that failed (without rows), free pieces of pools, inefficient use where
    /// accesses are written.
    pub cheap: bool,
    /// Whether there are findings at all. What each report has comes without a question: memory held at the end and its places, the ledger of
    /// devices, settings, what held blocks.
    pub findings: bool,
}

impl Default for Analyses {
    fn default() -> Self {
        Self::NONE.with("leaks")
    }
}

impl Analyses {
    /// Only what each report has.
    pub const NONE: Self =
        Self { questions: Questions::NONE, oom_blocks: DEFAULT_BLOCKS, cheap: false, findings: true };
    /// No findings: the listener gets events.
    pub const OFF: Self = Self { findings: false, ..Self::NONE };

    /// With the question of a word added.
    #[must_use]
    pub fn with(self, word: &str) -> Self {
        Self { questions: self.questions.with(word), ..self }
    }

    /// Without the question of a word.
    #[must_use]
    pub fn without(self, word: &str) -> Self {
        Self { questions: self.questions.without(word), ..self }
    }

    /// Whether owners are requested.
    #[must_use]
    pub fn decompose(self) -> bool {
        AnalysisBit::DECOMPOSE.is_in(self.of_scripts())
    }

    /// Whether inefficient use is requested.
    #[must_use]
    pub fn inefficient(self) -> bool {
        AnalysisBit::INEFFICIENT.is_in(self.of_scripts())
    }

    /// Number of blocks to name when memory is out, if that is requested.
    #[must_use]
    pub fn oom(self) -> Option<u32> {
        AnalysisBit::OOM.is_in(self.of_scripts()).then_some(self.oom_blocks)
    }

    /// All of them as bits for scripts.
    #[must_use]
    pub fn of_scripts(self) -> u64 {
        self.questions.script_bits()
    }

    /// Leaks, and what costs no probe.
    #[must_use]
    pub fn automatic() -> Self {
        Self { cheap: true, ..Self::default() }
    }

    /// The contract's bits: leaks 1, decompose 2, inefficient 4, oom 8; ours have none.
    #[must_use]
    pub fn bits(self) -> u32 {
        const OF_CONTRACT: u64 = 15;
        (self.of_scripts() & OF_CONTRACT) as u32
    }

    /// Bits of the events to collect: the written ones, and those that they and the analyses need (contract §1.5).
    #[must_use]
    pub fn collect_bits(self, events: Events) -> u32 {
        const BLOCKS: u32 = 1 | 2;
        const ACCESS: u32 = 8;
        let written = events.bits();
        let of_written = if written & (BLOCKS | ACCESS) != 0 { BLOCKS } else { 0 };
        self.questions.iter().fold(written | of_written, |bits, question| bits | question.collects)
    }
}
