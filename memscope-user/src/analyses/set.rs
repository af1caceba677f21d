//! Analyses of one view of a run: those that judge up to the exit, and those that see all of it.

use super::{Analysis, Judged};

/// Analyses, each placed where it has to be.
#[derive(Default)]
pub struct AnalysisSet {
    /// Made with its first analysis.
    judged: Option<Judged>,
    whole: Vec<Box<dyn Analysis>>,
}

impl AnalysisSet {
    /// Without an analysis; reports the judged spans.
    #[must_use]
    pub fn judging() -> Self {
        Self { judged: Some(Judged::default()), whole: Vec::new() }
    }

    /// Another set reports the spans.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { judged: self.judged.map(Judged::silent), ..self }
    }

    /// With these analyses of leaks. Before others that judge.
    #[must_use]
    pub fn leaks(self, leaks: Judged) -> Self {
        Self { judged: Some(leaks), ..self }
    }

    /// Adds an analysis that sees all blocks up to the exit.
    #[must_use]
    pub fn freezing(mut self, analysis: impl Analysis + 'static) -> Self {
        let judged = self.judged.take().unwrap_or_default();
        Self { judged: Some(judged.freezing(Box::new(analysis))), ..self }
    }

    /// Adds an analysis that sees which frees are of the exit.
    #[must_use]
    pub fn marking(mut self, analysis: impl Analysis + 'static) -> Self {
        let judged = self.judged.take().unwrap_or_default();
        Self { judged: Some(judged.marking(Box::new(analysis))), ..self }
    }

    /// Adds an analysis that sees all of the run.
    #[must_use]
    pub fn whole(mut self, analysis: impl Analysis + 'static) -> Self {
        self.whole.push(Box::new(analysis));
        self
    }

    /// All of them.
    #[must_use]
    pub fn into_vec(self) -> Vec<Box<dyn Analysis>> {
        let judged = self.judged.map(|judged| Box::new(judged) as Box<dyn Analysis>);
        judged.into_iter().chain(self.whole).collect()
    }
}
