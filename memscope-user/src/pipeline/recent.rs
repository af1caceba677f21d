//! A map that forgets its oldest entries instead of growing without bound.

use std::hash::Hash;

use crate::hash::HashMap;

/// Holds at least the last `half` and at most the last `2 * half` insertions.
#[derive(Clone, Debug)]
pub(super) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(half: usize) -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), half }
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

    /// As [`Recent::get`]; the entry is no longer among the oldest.
    pub(super) fn refresh(&mut self, key: &K) -> Option<&V>
    where
        K: Clone,
    {
        if !self.young.contains_key(key) {
            let value = self.old.remove(key)?;
            self.insert(key.clone(), value);
        }
        self.young.get(key)
    }

    /// Forgets the oldest.
    pub(super) fn age(&mut self) {
        self.old = std::mem::take(&mut self.young);
    }

    /// All entries, in the order of the keys.
    pub(super) fn take_all(&mut self) -> Vec<(K, V)>
    where
        K: Ord,
    {
        let young = std::mem::take(&mut self.young);
        let mut all: Vec<(K, V)> =
            std::mem::take(&mut self.old).into_iter().filter(|(key, _)| !young.contains_key(key)).collect();
        all.extend(young);
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
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

    /// Refreshed entries stay.
    #[test]
    fn what_is_used_stays() {
        let mut map = Recent::new(2);
        map.insert(0, 'x');
        for n in 1..10 {
            map.insert(n, 'y');
            assert_eq!(map.refresh(&0), Some(&'x'), "{n}");
        }
        assert_eq!(map.refresh(&1), None);
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
