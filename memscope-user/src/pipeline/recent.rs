//! A map that forgets its oldest entries instead of growing without bound.

use std::collections::HashMap;
use std::hash::Hash;

/// Holds at least the last `half` and at most the last `2 * half` insertions.
#[derive(Clone, Debug)]
pub(super) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half }
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_are_forgotten() {
        let mut map = Recent::new(2);
        for n in 0..5 {
            map.insert(n, n * 10);
        }
        assert_eq!([0, 1, 2, 3, 4].map(|n| map.get(&n).copied()), [None, None, Some(20), Some(30), Some(40)]);
    }

    /// A newer value hides the older one, also after removal.
    #[test]
    fn newest_value_counts() {
        let mut map = Recent::new(1);
        map.insert(1, 'a');
        map.insert(2, 'b');
        map.insert(1, 'c');
        assert_eq!((map.remove(&1), map.get(&1)), (Some('c'), None));
    }
}
