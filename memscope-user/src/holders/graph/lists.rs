//! Where lists have their items now.
//!
//! A list that grows moves its items. A pass over memory sees the list at one moment and the items at another one: where it grows faster than
//! a pass takes, no pass finds both together. Lists themselves stay where they are, so each is read again, and its items at once.

use super::Graph;
use crate::{
    hash::HashSet,
    holders::{pointers::Pointer, python::of_object},
};

/// Most items read of all lists.
const MAX_ITEMS: u64 = 4 << 20;

impl Graph<'_> {
    /// Notes which lists have these objects as items now; whether that was not noted before. Call [`forget`](Self::forget)
    /// before, or old pages are used.
    pub(in crate::holders) fn read_lists(&self, objects: &HashSet<u64>) -> bool {
        let Some(list_type) = self.python.and_then(|python| python.list_type) else { return false };
        let mut found = Vec::new();
        let mut room = MAX_ITEMS;
        for place in &self.pointers.of_type {
            let Some(list) = place.checked_sub(of_object::TYPE) else { continue };
            let Some(words) = self.memory.words(list, 5) else { continue };
            let &[_, ty, size, items, allocated] = &words[..] else { continue };
            if ty != list_type || size > allocated || size > room {
                continue;
            }
            room -= size;
            let Some(words) = self.memory.words(items, size as usize) else { continue };
            let before = found.len();
            let places = (items..).step_by(8).zip(words).filter(|(_, item)| objects.contains(item));
            found.extend(places.map(|(place, target)| Pointer { target, place }));
            if found.len() > before {
                found.push(Pointer { target: items, place: list + of_object::LIST_ITEMS });
            }
        }
        self.pointers.add_later(found)
    }
}
