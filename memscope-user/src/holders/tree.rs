//! All blocks by holder: the device memory behind each object of the program.

use std::collections::BTreeMap;

use super::{
    answer::{Branch, State, Sum},
    group::Held,
    trail::{Segment, spelt},
};

/// Branches shown below one, ...
const MAX_CHILDREN: usize = 20;
/// ... how deep, ...
const MAX_DEPTH: usize = 12;
/// ... and the smallest part of all bytes shown.
const LEAST_PART: u64 = 200;

#[derive(Debug, Default)]
struct Part {
    held: Sum,
    retained_bytes: u64,
    children: BTreeMap<Segment, Part>,
}

/// The tree of the blocks with a sure holder.
pub(super) fn tree(blocks: &[Held]) -> Vec<Branch> {
    let mut root = Part::default();
    for block in blocks.iter().filter(|block| block.state == State::Held) {
        let sure = || block.paths.iter().filter(|way| way.is_sure);
        let others: Vec<Vec<Segment>> = sure().skip(1).map(|way| generalised(&way.trail.segments)).collect();
        if let Some(best) = sure().next() {
            add(&mut root, &generalised(&best.trail.segments), &others, block.size_bytes);
        }
    }
    let least = root.held.size_bytes / LEAST_PART;
    branches(root.children, least, 0).0
}

/// Items of a list are one branch.
fn generalised(segments: &[Segment]) -> Vec<Segment> {
    let any = |segment: &Segment| match segment {
        Segment::Index(_) => Segment::Index(None),
        other => other.clone(),
    };
    segments.iter().map(any).collect()
}

fn add(root: &mut Part, path: &[Segment], others: &[Vec<Segment>], size_bytes: u64) {
    let mut part = root;
    part.held.add(size_bytes);
    for (at, segment) in path.iter().enumerate() {
        part = part.children.entry(segment.clone()).or_default();
        part.held.add(size_bytes);
        // An object on all paths frees the block when it goes.
        if others.iter().all(|other| other.get(..=at) == path.get(..=at)) {
            part.retained_bytes = part.retained_bytes.saturating_add(size_bytes);
        }
    }
}

/// The largest branches, and the bytes of the other ones.
fn branches(parts: BTreeMap<Segment, Part>, least: u64, depth: usize) -> (Vec<Branch>, u64) {
    let mut all: Vec<(String, Part)> = parts.into_iter().map(|(segment, part)| joined(segment, part)).collect();
    all.sort_by(|(a, left), (b, right)| right.held.size_bytes.cmp(&left.held.size_bytes).then_with(|| a.cmp(b)));
    let mut shown = Vec::new();
    let mut left_out = 0;
    for (name, part) in all {
        if shown.len() >= MAX_CHILDREN || part.held.size_bytes < least || depth >= MAX_DEPTH {
            left_out += part.held.size_bytes;
            continue;
        }
        let (children, left_out_bytes) = branches(part.children, least, depth + 1);
        let Part { held, retained_bytes, .. } = Part { children: BTreeMap::new(), ..part };
        shown.push(Branch { name, held, retained_bytes, children, left_out_bytes });
    }
    (shown, left_out)
}

/// A branch with one part that has all of it is joined with that.
fn joined(segment: Segment, mut part: Part) -> (String, Part) {
    let mut name = vec![segment];
    while part.children.len() == 1 {
        let is_all =
            part.children.values().all(|child| child.held == part.held && child.retained_bytes == part.retained_bytes);
        if !is_all {
            break;
        }
        let Some((segment, child)) = part.children.pop_first() else { break };
        name.push(segment);
        part = child;
    }
    (spelt(&name), part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{group::Way, trail::Trail};

    fn way(names: &[&str]) -> Way {
        let segments = names.iter().enumerate().map(|(at, name)| match name.parse() {
            Ok(number) => Segment::Index(Some(number)),
            Err(_) if at == 0 => Segment::Root((*name).to_owned()),
            Err(_) => Segment::Attribute((*name).to_owned()),
        });
        Way { trail: Trail { segments: segments.collect(), through: Vec::new(), held_as: None }, is_sure: true }
    }

    fn held(size_bytes: u64, paths: Vec<Way>) -> Held {
        Held { address: 0, size_bytes, allocated_at: None, state: State::Held, paths }
    }

    /// By hand: a cache with two lists, and a second path to one of the blocks; and a single weight.
    #[test]
    fn bytes_by_branch() {
        let blocks = [
            held(100, vec![way(&["m", "cache", "k", "0"])]),
            held(300, vec![way(&["m", "cache", "k", "1"]), way(&["m", "other"])]),
            held(50, vec![way(&["m", "cache", "v", "0"])]),
            held(7, vec![way(&["n", "weight"])]),
            Held { state: State::Ring, ..held(1000, Vec::new()) },
        ];
        let tree = tree(&blocks);
        let line =
            |branch: &Branch| (branch.name.clone(), branch.held.blocks, branch.held.size_bytes, branch.retained_bytes);
        assert_eq!(
            tree.iter().map(line).collect::<Vec<_>>(),
            [("m".into(), 3, 450, 450), ("n.weight".into(), 1, 7, 7)]
        );
        let cache = &tree[0].children;
        assert_eq!(cache.iter().map(line).collect::<Vec<_>>(), [(".cache".into(), 3, 450, 150)]);
        let parts: Vec<_> = cache[0].children.iter().map(line).collect();
        assert_eq!(parts, [(".k[*]".into(), 2, 400, 100), (".v[*]".into(), 1, 50, 50)]);
    }

    /// Small branches are left out, and their bytes are not lost.
    #[test]
    fn small_branches() {
        let mut blocks = vec![held(100_000, vec![way(&["m", "large"])])];
        blocks.extend((0..30).map(|at| held(10, vec![way(&["m", &format!("small{at}")])])));
        let tree = tree(&blocks);
        assert_eq!((tree[0].children.len(), tree[0].left_out_bytes), (1, 300));
    }
}
