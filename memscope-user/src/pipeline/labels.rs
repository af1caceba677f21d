//! Labels that a script gives to what its threads allocate (contract §8.5).

use std::sync::Arc;

use super::recent::Recent;
use crate::hash::HashMap;

/// Levels of an owner: of the framework, the component, the process, two details, and three of the user.
pub(super) const LEVELS: usize = 8;
/// Fewest threads per process with kept labels.
const MAX_THREADS: usize = 32 << 10;
/// Most characters of a label; the package passes at most 128 bytes, some of which may be escaped.
const MAX_CHARS: usize = 512;

/// Numbers of labels by level; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LabelIds([u16; LEVELS]);

impl LabelIds {
    /// From the two registers that a marker has them in, the first level in the lowest bits.
    pub(super) fn new(low: u64, high: u64) -> Self {
        let word = u128::from(high) << 64 | u128::from(low);
        Self(std::array::from_fn(|level| (word >> (16 * level)) as u16))
    }

    /// These, where there are some, over the others.
    pub(super) fn over(self, others: Self) -> Self {
        Self(std::array::from_fn(|level| if self.0[level] == 0 { others.0[level] } else { self.0[level] }))
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Labels of one process.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    /// By number. At most as many as there are numbers. Shared with forked children until either learns another.
    texts: Arc<HashMap<u16, Box<str>>>,
    threads: Recent<u32, LabelIds>,
}

impl Default for Labels {
    fn default() -> Self {
        Self { texts: Arc::default(), threads: Recent::new(MAX_THREADS) }
    }
}

impl Labels {
    /// The labels of a forked child: its one thread is a copy of `parent`.
    pub(super) fn child(&self, parent: u32, child: u32) -> Self {
        let mut labels = Self { texts: Arc::clone(&self.texts), ..Self::default() };
        labels.of_thread(child, self.at(parent));
        labels
    }

    /// Sets the text of a number.
    pub(super) fn text(&mut self, id: u16, text: &str) {
        let text: Box<str> = text.chars().take(MAX_CHARS).collect();
        if self.texts.get(&id) != Some(&text) {
            Arc::make_mut(&mut self.texts).insert(id, text);
        }
    }

    /// Sets the labels of a thread's later allocations.
    pub(super) fn of_thread(&mut self, tid: u32, ids: LabelIds) {
        if ids.is_empty() {
            self.threads.remove(&tid);
        } else {
            self.threads.insert(tid, ids);
        }
    }

    /// The labels of a thread's allocations.
    pub(super) fn at(&self, tid: u32) -> LabelIds {
        self.threads.get(&tid).copied().unwrap_or_default()
    }

    /// Texts of labels: of the framework's level, of the system's, and of the user's; those of one kind with `@`
    /// between them.
    pub(super) fn texts(&self, ids: LabelIds) -> [String; 3] {
        let text = |id: &u16| match (id, self.texts.get(id)) {
            (0, _) => None,
            (_, Some(text)) => Some(text.to_string()).filter(|text| !text.is_empty()),
            // Its text was lost.
            (id, None) => Some(format!("label_{id}")),
        };
        let join = |ids: &[u16]| ids.iter().filter_map(text).collect::<Vec<_>>().join("@");
        let [framework, system @ .., user_1, user_2, user_3] = &ids.0;
        [join(&[*framework]), join(system), join(&[*user_1, *user_2, *user_3])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_lie_in_registers_from_the_lowest_bits_on() {
        let ids = LabelIds::new(0x0004_0003_0002_0001, 0x0008_0007_0006_0005);
        assert_eq!(ids, LabelIds([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(LabelIds([0, 9, 0, 0, 0, 0, 0, 7]).over(ids), LabelIds([1, 9, 3, 4, 5, 6, 7, 7]));
    }

    /// Levels without a label leave no gap, and a label without a known text still shows.
    #[test]
    fn texts_are_joined_in_the_order_of_levels() {
        let mut labels = Labels::default();
        for (id, text) in [(1, "a"), (2, ""), (3, "b@c"), (4, "d")] {
            labels.text(id, text);
        }
        let texts = labels.texts(LabelIds([0, 1, 2, 3, 4, 4, 0, 77]));
        assert_eq!(texts, [String::new(), "a@b@c@d".to_owned(), "d@label_77".to_owned()]);
        labels.text(9, &"x".repeat(10_000));
        assert_eq!(labels.texts(LabelIds([9, 0, 0, 0, 0, 0, 0, 0]))[0].len(), MAX_CHARS);
    }

    /// A child's one thread has its parent thread's labels, and they part from there.
    #[test]
    fn child_begins_with_its_parents_labels() {
        let (mut parent, ids) = (Labels::default(), LabelIds([0, 1, 0, 0, 0, 0, 0, 0]));
        parent.text(1, "a");
        parent.of_thread(10, ids);
        let mut child = parent.child(10, 20);
        assert_eq!((child.at(20), child.at(10), child.texts(ids)[1].as_str()), (ids, LabelIds::default(), "a"));
        child.text(1, "b");
        child.of_thread(20, LabelIds::default());
        assert_eq!((parent.at(10), parent.texts(ids)[1].as_str(), child.at(20).is_empty()), (ids, "a", true));
    }
}
