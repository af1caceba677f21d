//! Whether objects hold each other and nothing else holds them.
//!
//! That no root was found does not show it: a list may have moved while it was looked at, or its holder is of no known
//! kind. Reference counts do: all references to each of the objects must be among them.

use std::rc::Rc;

use super::{Graph, Kind, Step};
use crate::hash::{HashMap, HashSet};

impl Graph<'_> {
    /// `steps`: all that were found behind a block. `parents`: what holds each object, by its start.
    pub(super) fn is_garbage<'a>(
        &self,
        steps: impl Iterator<Item = &'a Step>,
        parents: &HashMap<u64, Rc<[Step]>>,
    ) -> bool {
        let nodes: HashMap<u64, &Step> = steps.map(|step| (step.parent.start, step)).collect();
        let held = held(parents, |start| nodes.get(&start).is_some_and(|step| step.parent.is_plain()));
        let mut sees_python = false;
        let are_counted = nodes.iter().filter(|(start, _)| parents.contains_key(*start)).all(|(start, step)| {
            let are_known = |count: u64| count <= references(&parents[start], &held);
            match (&step.parent.kind, self.references(&step.parent)) {
                (Kind::Python { .. }, count) => {
                    sees_python = true;
                    count.is_some_and(are_known)
                }
                (Kind::Cpp(_), Some(count)) => are_known(count),
                (Kind::Cpp(_), None) => held.contains(start),
                // Left-overs.
                (Kind::Plain | Kind::Root(_), _) => true,
            }
        });
        are_counted && sees_python
    }
}

/// What a ring holds: all but what nothing holds, what only that holds, and so on. Plain memory that holds plain memory is no ring of objects:
/// its owner is of no known kind.
fn held(parents: &HashMap<u64, Rc<[Step]>>, is_plain: impl Fn(u64) -> bool) -> HashSet<u64> {
    let mut held: HashSet<u64> = parents.keys().copied().collect();
    loop {
        let before = held.len();
        let still: Vec<u64> = held
            .iter()
            .copied()
            .filter(|start| {
                let counts = |step: &Step| !(step.parent.is_plain() && is_plain(*start));
                parents[start].iter().any(|step| held.contains(&step.parent.start) && counts(step))
            })
            .collect();
        held = still.into_iter().collect();
        if held.len() == before {
            return held;
        }
    }
}

/// References from what is held itself, by their places.
fn references(steps: &[Step], held: &HashSet<u64>) -> u64 {
    let places: HashSet<u64> =
        steps.iter().filter(|step| held.contains(&step.parent.start)).map(|step| step.place).collect();
    places.len() as u64
}
