//! The origin of a process's steps.

use schemars::JsonSchema;
use serde::Serialize;

/// The origin of a process's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepsFrom {
    /// Marks of the program.
    #[default]
    Marks,
    /// The ends of the optimizer's steps, as call stacks show them.
    Optimizer,
    /// The ends of backward passes, where no optimizer is seen.
    Backward,
}

impl StepsFrom {
    /// Report text behind a number of steps; empty for marked ones.
    #[must_use]
    pub const fn note(self) -> &'static str {
        match self {
            Self::Marks => "",
            Self::Optimizer => ", inferred from the optimizer",
            Self::Backward => ", inferred from backward passes",
        }
    }
}
