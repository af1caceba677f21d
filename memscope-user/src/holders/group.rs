//! Blocks with the same holders together: `kv['layer0'][*]  512 blocks`.

use super::{
    answer::{Group, Holder, Purpose, State, Sum},
    trail::{Segment, Trail},
};
use crate::{hash::HashMap, model::HeldAs};

/// Keys of one dict with a block each that are shown one by one.
const SHOWN_KEYS: usize = 8;
/// Addresses shown of a group.
const SHOWN_ADDRESSES: usize = 8;

/// A block and what holds it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) allocated_at: Option<String>,
    pub(super) state: State,
    /// Best first.
    pub(super) paths: Vec<Way>,
}

impl Held {
    /// Its purpose, if a sure way shows it: the first one that does. That autograd has saved it counts only if no way shows more, and none
    /// but those of running functions shows nothing: what a program keeps itself may be a weight without a module.
    pub(super) fn held_as(&self) -> Option<HeldAs> {
        let sure = || self.paths.iter().filter(|way| way.is_sure);
        let mut shown = sure().filter_map(|way| way.trail.held_as);
        let first = shown.next()?;
        if first != HeldAs::Activation {
            return Some(first);
        }
        let is_kept = || sure().any(|way| way.trail.held_as.is_none() && !way.trail.is_of_running_function());
        shown.find(|held| *held != first).or_else(|| (!is_kept()).then_some(first))
    }
}

/// A way to a block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Way {
    pub(super) trail: Trail,
    pub(super) is_sure: bool,
}

impl Way {
    /// The same for all numbers.
    fn of_any_number(&self) -> Self {
        let any = |segment: &Segment| match segment {
            Segment::Index(_) => Segment::Index(None),
            other => other.clone(),
        };
        let segments = self.trail.segments.iter().map(any).collect();
        let through = self.trail.through.iter().map(|text| without_number(text)).collect();
        Self { trail: Trail { segments, through, held_as: self.trail.held_as }, is_sure: self.is_sure }
    }
}

fn without_number(text: &str) -> String {
    let number = text.rsplit_once('[').filter(|(_, rest)| rest.strip_suffix(']').is_some_and(is_number));
    number.map_or_else(|| text.to_owned(), |(head, _)| format!("{head}[*]"))
}

/// The text of one of several: with any number, or any key.
fn without_key(text: &str) -> String {
    let any = without_number(text);
    match any.rsplit_once('[') {
        Some((head, rest)) if any == text && rest.ends_with(']') => format!("{head}[*]"),
        _ => any,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    state: State,
    allocated_at: Option<String>,
    ways: Vec<Way>,
}

/// Keys of dicts that stand for any key: where each of more than [`SHOWN_KEYS`] holds one block, as in a table of requests. Keys that hold several blocks each
/// stay apart.
struct AnyKey(HashMap<Vec<Segment>, Vec<Segment>>);

impl AnyKey {
    fn of<'a>(ways: impl Iterator<Item = &'a Way>) -> Self {
        let mut counts: HashMap<Vec<Segment>, usize> = HashMap::default();
        for way in ways {
            *counts.entry(way.of_any_number().trail.segments).or_default() += 1;
        }
        let single: Vec<Vec<Segment>> =
            counts.into_iter().filter(|(_, count)| *count == 1).map(|(segments, _)| segments).collect();
        let mut alike: HashMap<Vec<Segment>, usize> = HashMap::default();
        for without in single.iter().flat_map(|segments| Self::without_a_key(segments)) {
            *alike.entry(without).or_default() += 1;
        }
        let any = |segments: Vec<Segment>| {
            let best = Self::without_a_key(&segments).max_by_key(|without| alike[without])?;
            (alike[&best] > SHOWN_KEYS).then_some((segments, best))
        };
        Self(single.into_iter().filter_map(any).collect())
    }

    /// The same with any key, for each key in it.
    fn without_a_key(segments: &[Segment]) -> impl Iterator<Item = Vec<Segment>> {
        let keys = (0..segments.len()).filter(|at| matches!(segments[*at], Segment::Key(_)));
        keys.map(|at| {
            let mut without = segments.to_vec();
            without[at] = Segment::Index(None);
            without
        })
    }

    /// The way for all numbers, and for all such keys.
    fn way(&self, way: &Way) -> Way {
        let mut way = way.of_any_number();
        if let Some(any) = self.0.get(&way.trail.segments) {
            way.trail.segments.clone_from(any);
            // Texts of other keys are other ways.
            way.trail.through.clear();
        }
        way
    }
}

/// Most bytes first.
pub(super) fn groups(blocks: &[Held]) -> Vec<Group> {
    let any_key = AnyKey::of(blocks.iter().flat_map(|block| &block.paths));
    let mut members: HashMap<Key, Vec<&Held>> = HashMap::default();
    for block in blocks {
        let ways = block.paths.iter().map(|way| any_key.way(way)).collect();
        let key = Key { state: block.state, allocated_at: block.allocated_at.clone(), ways };
        members.entry(key).or_default().push(block);
    }
    let mut groups: Vec<Group> = members.into_values().map(|members| group(&members)).collect();
    groups.sort_by(|a, b| {
        let key = |group: &Group| (std::cmp::Reverse(group.sum.size_bytes), group.state, group.held_by.clone());
        key(a).cmp(&key(b))
    });
    groups
}

/// Sums by purpose, most bytes first; `None` for blocks without one.
pub(super) fn purposes(blocks: &[Held]) -> Vec<Purpose> {
    let mut sums: HashMap<Option<HeldAs>, Sum> = HashMap::default();
    for block in blocks.iter().filter(|block| !matches!(block.state, State::Free | State::Waiting)) {
        sums.entry(block.held_as()).or_default().add(block.size_bytes);
    }
    let mut found: Vec<Purpose> = sums.into_iter().map(|(held_as, sum)| Purpose { held_as, sum }).collect();
    found.sort_by_key(|purpose| (std::cmp::Reverse(purpose.sum.size_bytes), purpose.held_as));
    found
}

fn group(members: &[&Held]) -> Group {
    let mut sum = Sum::default();
    for member in members {
        sum.add(member.size_bytes);
    }
    let first = members.first();
    let count = first.map_or(0, |first| first.paths.len());
    let held_by =
        (0..count).filter_map(|at| common(members.iter().filter_map(|member| member.paths.get(at)))).collect();
    let mut addresses: Vec<u64> = members.iter().map(|member| member.address).collect();
    addresses.sort_unstable();
    addresses.truncate(SHOWN_ADDRESSES);
    Group {
        state: first.map_or(State::Nothing, |first| first.state),
        sum,
        allocated_at: first.and_then(|first| first.allocated_at.clone()),
        held_by,
        addresses,
    }
}

/// Holders of blocks of one place, those of the most blocks first, at most `most`; and of each block which hold it, as indexes.
pub(super) fn by_way(blocks: &[&Held], most: usize) -> (Vec<Holder>, Vec<Vec<usize>>) {
    let any_key = AnyKey::of(blocks.iter().flat_map(|block| &block.paths));
    let key = |way: &Way| {
        let Way { trail, is_sure } = any_key.way(way);
        (trail.segments, is_sure)
    };
    let mut members: HashMap<(Vec<Segment>, bool), Vec<&Way>> = HashMap::default();
    for way in blocks.iter().flat_map(|block| &block.paths) {
        members.entry(key(way)).or_default().push(way);
    }
    let mut all: Vec<_> = members.into_iter().collect();
    all.sort_by(|((a, sure), ways), ((b, other_sure), other_ways)| {
        other_sure.cmp(sure).then_with(|| other_ways.len().cmp(&ways.len())).then_with(|| a.cmp(b))
    });
    all.truncate(most);
    let holders = all.iter().filter_map(|(_, ways)| common(ways.iter().copied())).collect();
    let of_block = |block: &&Held| {
        let mut by: Vec<usize> = Vec::new();
        for way in &block.paths {
            let key = key(way);
            by.extend(all.iter().position(|(of, _)| *of == key).filter(|at| !by.contains(at)));
        }
        by
    };
    (holders, blocks.iter().map(of_block).collect())
}

/// The way that stands for all: numbers that differ become `*`.
fn common<'a>(mut ways: impl Iterator<Item = &'a Way>) -> Option<Holder> {
    let mut all = ways.next()?.clone();
    for way in ways {
        for (segment, other) in all.trail.segments.iter_mut().zip(&way.trail.segments) {
            if segment != other {
                *segment = Segment::Index(None);
            }
        }
        for (text, other) in all.trail.through.iter_mut().zip(&way.trail.through) {
            if text != other {
                *text = without_key(text);
            }
        }
    }
    Some(Holder { path: all.trail.to_string(), is_sure: all.is_sure, through: all.trail.through })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(key: &str, numbers: &[u64]) -> Way {
        let mut segments = vec![Segment::Root("__main__".to_owned()), Segment::Attribute("kv".to_owned())];
        segments.push(Segment::Key(key.to_owned()));
        segments.extend(numbers.iter().map(|at| Segment::Index(Some(*at))));
        let through = numbers.iter().rev().map(|at| format!("list[{at}]")).collect();
        Way { trail: Trail { segments, through, held_as: None }, is_sure: true }
    }

    fn held(address: u64, size_bytes: u64, paths: Vec<Way>) -> Held {
        Held { address, size_bytes, allocated_at: None, state: State::Held, paths }
    }

    fn texts(groups: &[Group]) -> Vec<(String, u64, u64)> {
        let text =
            |group: &Group| group.held_by.iter().map(|holder| holder.path.clone()).collect::<Vec<_>>().join(" and ");
        groups.iter().map(|group| (text(group), group.sum.blocks, group.sum.size_bytes)).collect()
    }

    /// The first way with a purpose counts; one by autograd only if there is no other.
    #[test]
    fn purposes_of_a_block() {
        let with = |held_as: &[(Option<HeldAs>, bool)]| {
            let ways = held_as.iter().map(|(held_as, is_sure)| {
                let way = way("'k'", &[]);
                Way { trail: Trail { held_as: *held_as, ..way.trail }, is_sure: *is_sure }
            });
            held(1, 10, ways.collect()).held_as()
        };
        let (weight, gradient, saved) = (Some(HeldAs::Weight), Some(HeldAs::Gradient), Some(HeldAs::Activation));
        assert_eq!(with(&[(None, true), (gradient, true), (weight, true)]), gradient);
        assert_eq!(with(&[(saved, true), (None, true), (weight, true)]), weight);
        assert_eq!(with(&[(saved, true), (weight, false)]), saved);
        assert_eq!(with(&[(saved, true), (None, true)]), None);
        assert_eq!(with(&[(None, false), (saved, true)]), saved);
        assert_eq!(with(&[(None, true)]), None);
    }

    /// Numbers that differ become `*`, equal ones stay, and different keys stay separate.
    #[test]
    fn numbers_that_differ() {
        let blocks = [
            held(1, 10, vec![way("'a'", &[0, 7])]),
            held(2, 20, vec![way("'a'", &[1, 7])]),
            held(3, 100, vec![way("'b'", &[5])]),
            held(4, 1, vec![way("'a'", &[2, 7])]),
        ];
        let found = groups(&blocks);
        let expected = [("__main__.kv['b'][5]".to_owned(), 1, 100), ("__main__.kv['a'][*][7]".to_owned(), 3, 31)];
        assert_eq!(texts(&found), expected);
        assert_eq!(found[1].addresses, [1, 2, 4]);
        assert_eq!(found[1].held_by[0].through, ["list[7]", "list[*]"]);
    }

    /// Keys that hold one block each are one holder; a key with several blocks stays apart, and so does a single one.
    #[test]
    fn keys_of_one_block_each() {
        let mut blocks: Vec<Held> = (0..8).map(|at| held(at, 10, vec![way(&format!("'r{at}'"), &[])])).collect();
        blocks.push(held(8, 10, vec![way("7", &[]), way("'alone'", &[4])]));
        blocks.extend((0..2).map(|at| held(20 + at, 10, vec![way("'a'", &[at])])));
        let (holders, by) = by_way(&blocks.iter().collect::<Vec<_>>(), 8);
        let paths: Vec<&str> = holders.iter().map(|holder| holder.path.as_str()).collect();
        assert_eq!(paths, ["__main__.kv[*]", "__main__.kv['a'][*]", "__main__.kv['alone'][4]"]);
        assert_eq!(by[..9].iter().map(|by| by[0]).collect::<Vec<_>>(), [0; 9]);
        assert_eq!(by[8..], [vec![0, 2], vec![1], vec![1]]);
        // Few keys are shown.
        assert_eq!(groups(&blocks[..8]).len(), 8);
        blocks[8].paths.truncate(1);
        assert_eq!(texts(&groups(&blocks[..9])), [("__main__.kv[*]".to_owned(), 9, 90)]);
    }

    /// Each holder once, with the blocks that it holds; numbers that differ become `*`, one that does not stays.
    #[test]
    fn holders_of_a_place() {
        let blocks = [
            held(1, 10, vec![way("'a'", &[0]), way("'z'", &[4])]),
            held(2, 10, vec![way("'a'", &[1]), way("'a'", &[7])]),
            held(3, 10, Vec::new()),
        ];
        let (holders, by) = by_way(&blocks.iter().collect::<Vec<_>>(), 8);
        let paths: Vec<&str> = holders.iter().map(|holder| holder.path.as_str()).collect();
        assert_eq!(paths, ["__main__.kv['a'][*]", "__main__.kv['z'][4]"]);
        assert_eq!(by, [vec![0, 1], vec![0], vec![]]);
        let (holders, by) = by_way(&blocks.iter().collect::<Vec<_>>(), 1);
        assert_eq!((holders.len(), by), (1, vec![vec![0], vec![0], vec![]]));
    }

    /// Blocks with a second holder are a group of their own, and so are those without any.
    #[test]
    fn other_holders() {
        let nothing = Held { state: State::Nothing, ..held(9, 7, Vec::new()) };
        let blocks =
            [held(1, 10, vec![way("'a'", &[0]), way("'z'", &[0])]), held(2, 20, vec![way("'a'", &[1])]), nothing];
        let found = groups(&blocks);
        let expected = [
            ("__main__.kv['a'][1]".to_owned(), 1, 20),
            ("__main__.kv['a'][0] and __main__.kv['z'][0]".to_owned(), 1, 10),
            (String::new(), 1, 7),
        ];
        assert_eq!(texts(&found), expected);
        assert_eq!(found[2].state, State::Nothing);
    }
}
