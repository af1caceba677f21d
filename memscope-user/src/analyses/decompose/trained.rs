//! Blocks that an optimizer trains: a backward pass leaves gradients of their size.
//!
//! An optimizer's step finds a gradient for each parameter. Gradients of a size beyond the known weights of that size
//! mean as many more parameters, whoever made them.

use crate::hash::HashMap;
use crate::model::Name;

const GRADIENT: [Name; 2] = [Name::fixed(&"backward"), Name::fixed(&"gradient")];
const WEIGHT: Name = Name::fixed(&"weight");

/// Most sizes; blocks of further ones are no parameters.
const MAX_SIZES: usize = 1 << 16;

/// Gradients and weights of a process on a device, by size.
#[derive(Debug, Default)]
pub(super) struct Trained(HashMap<u64, Counts>);

/// Blocks of one size.
#[derive(Debug, Default)]
struct Counts {
    /// What backward passes have made and is live.
    gradients: u32,
    /// Known live weights.
    weights: u32,
    /// Most gradients beyond the weights when an optimizer's step began.
    beyond: u32,
    /// Blocks identified as parameters.
    found: u32,
}

impl Trained {
    /// A block of a component is allocated or freed.
    pub(super) fn change(&mut self, component: Name, size_bytes: u64, comes: bool) {
        let is_gradient = GRADIENT.contains(&component);
        if !is_gradient && component != WEIGHT {
            return;
        }
        if self.0.len() >= MAX_SIZES && !self.0.contains_key(&size_bytes) {
            return;
        }
        let counts = self.0.entry(size_bytes).or_default();
        let count = if is_gradient { &mut counts.gradients } else { &mut counts.weights };
        *count = if comes { count.saturating_add(1) } else { count.saturating_sub(1) };
    }

    /// A step of the optimizer begins.
    pub(super) fn step(&mut self) {
        for counts in self.0.values_mut() {
            counts.beyond = counts.beyond.max(counts.gradients.saturating_sub(counts.weights));
        }
    }

    /// Whether a gradient of this size belongs to a parameter not identified yet.
    pub(super) fn lacks(&self, size_bytes: u64) -> bool {
        self.0.get(&size_bytes).is_some_and(|counts| counts.found < counts.beyond)
    }

    /// A parameter of this size is found.
    pub(super) fn find(&mut self, size_bytes: u64) {
        if let Some(counts) = self.0.get_mut(&size_bytes) {
            counts.found = counts.found.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three gradients, one known weight: two parameters are missing. Gradients of another size and of no step count
    /// for nothing.
    #[test]
    fn parameters_are_as_many_as_gradients_beyond_weights() {
        let mut trained = Trained::default();
        trained.change(WEIGHT, 64, true);
        for (component, size) in [(GRADIENT[0], 64), (GRADIENT[0], 64), (GRADIENT[1], 64), (Name::fixed(&"input"), 8)] {
            trained.change(component, size, true);
        }
        assert!(!trained.lacks(64));
        trained.step();
        trained.change(GRADIENT[0], 32, true);
        let found: Vec<bool> = (0..3)
            .map(|_| {
                let lacks = trained.lacks(64);
                trained.find(64);
                lacks
            })
            .collect();
        assert_eq!((found, trained.lacks(32), trained.lacks(8)), (vec![true, true, false], false, false));
    }
}
