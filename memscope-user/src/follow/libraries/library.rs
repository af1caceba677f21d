//! What was found in a file: its probes, and the reasons for those that it lacks.

use std::path::{Path, PathBuf};

use crate::locate::{
    hidden::Evidence,
    ops::OpsFigures,
    site::{Site, SiteCost},
};

/// A placed probe.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Row number.
    pub row: u16,
    /// Function.
    pub symbol: String,
    /// Where in the file the probe sits, in bytes.
    pub file_offset: u64,
    /// The chosen instruction.
    pub site: Site,
    /// Whether the return is probed too.
    pub with_return: bool,
    /// Start of the function and the evidence for it, if the library does not export it.
    pub located: Option<(u64, Evidence)>,
    /// Number of the function's own return instructions that are probed too.
    pub own_returns: usize,
    /// Cost of a hit at one of them, or at the probe that replaces them.
    pub return_cost: SiteCost,
}

impl Placed {
    /// Whether a call makes the kernel single-step an instruction.
    #[must_use]
    pub const fn is_stepped(&self) -> bool {
        self.site.cost.is_stepped() || self.own_returns > 0 && self.return_cost.is_stepped()
    }

    /// Estimated cost of the probes per call, in microseconds: entry and return.
    #[must_use]
    pub const fn price_us(&self) -> f64 {
        let back = if self.own_returns > 0 {
            self.return_cost.price_us()
        } else if self.with_return {
            SiteCost::Emulated.price_us()
        } else {
            0.0
        };
        self.site.cost.price_us() + back
    }
}

/// The result for one file.
#[derive(Clone, Debug)]
pub struct Library {
    /// Path as the first process that mapped it sees it.
    pub path: PathBuf,
    /// Probes in it.
    pub placed: Vec<Placed>,
    /// Functions that it does not define.
    pub absent: Vec<&'static str>,
    /// Functions that it does not export and that were not found, and why.
    pub not_located: Vec<(&'static str, String)>,
    /// Why it could not be probed, wholly or in part.
    pub error: Option<String>,
    /// It may not be opened, so none of its functions are traced.
    pub denied: bool,
    /// Operators in it.
    pub ops: Option<LibraryOps>,
    /// It has a copy of mstx with functions that cannot be found. Only searched by planners.
    pub hidden_copy: bool,
    /// Probed functions and their thunks that hold a copy, so that calls bypass the probe. Only searched by planners.
    pub bypassed: Vec<(String, String)>,
    /// Another name of the same file: its probes cover this one, which has none of its own.
    pub same_as: Option<PathBuf>,
}

/// Operators of one library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryOps {
    /// Probed operators.
    pub probed: usize,
    /// Probes in all.
    pub probes: usize,
    /// Whether their tensors can be read.
    pub with_tensors: bool,
    /// Numbers of operators left out.
    pub figures: OpsFigures,
}

impl Library {
    pub(crate) fn at(path: &Path) -> Self {
        let (placed, absent, not_located) = (Vec::new(), Vec::new(), Vec::new());
        let path = path.to_path_buf();
        Self {
            path,
            placed,
            absent,
            not_located,
            error: None,
            denied: false,
            ops: None,
            hidden_copy: false,
            bypassed: Vec::new(),
            same_as: None,
        }
    }
}
