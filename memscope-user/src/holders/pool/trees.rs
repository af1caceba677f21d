//! Free blocks: the allocator keeps them in red-black trees (`std::set`), with headers in the device's allocator.
//!
//! ```text
//! header: u32 colour, root, leftmost, rightmost, count        node: u32 colour, parent, left, right, block
//! ```

use crate::{
    hash::HashSet,
    holders::{memory::Memory, source::ADDRESS_END, source::Source},
};

const HEADER_WORDS: usize = 5;
/// The value's word in a node of a set, ...
const VALUE_WORD: usize = 4;
/// ... and in one of a map, with a key of one word.
pub(super) const MAPPED_WORD: usize = 5;
const NODE_WORDS: usize = VALUE_WORD + 1;
/// Most nodes of a tree.
const MAX_NODES: u64 = 1 << 20;
/// Largest distance, in words, of headers from the pool that blocks point at.
const NEAR_WORDS: usize = 12;
/// A tree of this size is not deeper.
const MAX_DEPTH: usize = 48;

fn is_heap(word: u64) -> bool {
    word.is_multiple_of(8) && (1 << 20..ADDRESS_END).contains(&word)
}

/// The blocks in whole trees: with as many nodes as in the header, all of them known blocks.
pub(super) fn free_blocks(
    memory: &Memory<'_>,
    start: u64,
    words: &[u64],
    is_block: impl Fn(u64) -> bool,
) -> HashSet<u64> {
    let mut free = HashSet::default();
    for (at, header) in words.windows(HEADER_WORDS).enumerate() {
        let address = start + at as u64 * 8;
        let [colour, root, left, right, count] = *header else { continue };
        let is_header = colour & 0xffff_ffff <= 1
            && is_heap(root)
            && left != address
            && right != address
            && (1..=MAX_NODES).contains(&count)
            && memory.word(root + 8) == Some(address);
        if is_header && let Some(blocks) = nodes(memory, root, count, &is_block) {
            free.extend(blocks);
        }
    }
    free
}

fn nodes(memory: &Memory<'_>, root: u64, count: u64, is_block: impl Fn(u64) -> bool) -> Option<Vec<u64>> {
    let mut waiting = vec![root];
    let mut blocks = Vec::new();
    while let Some(node) = waiting.pop() {
        let words = memory.words(node, NODE_WORDS)?;
        if blocks.len() as u64 >= count || !is_block(words[4]) {
            return None;
        }
        blocks.push(words[4]);
        waiting.extend([words[2], words[3]].into_iter().filter(|child| *child != 0));
    }
    (blocks.len() as u64 == count).then_some(blocks)
}

/// A tree's header near a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) root: u64,
    pub(super) count: u64,
}

/// The headers of the trees of these pools, in the words of the device's allocator; of an empty tree the root is 0.
pub(super) fn headers(words: &[u64], start: u64, pools: &[u64]) -> Vec<Header> {
    let mut found = Vec::new();
    for pool in pools {
        let Some(base) = pool.checked_sub(start).map(|into| (into / 8) as usize) else { continue };
        let mut near = 0;
        while near < NEAR_WORDS {
            let Some(header) = words.get(base + near..base + near + HEADER_WORDS) else { break };
            match header_at(header, pool + near as u64 * 8) {
                Some(header) => {
                    found.push(header);
                    near += HEADER_WORDS;
                }
                None => near += 1,
            }
        }
    }
    found
}

/// All headers of trees in the words of an object, and where they are.
pub(super) fn all_headers(words: &[u64], start: u64) -> Vec<(u64, Header)> {
    let headers = (start..).step_by(8).zip(words.windows(HEADER_WORDS));
    headers.filter_map(|(at, words)| Some((at, header_at(words, at)?))).collect()
}

fn header_at(words: &[u64], address: u64) -> Option<Header> {
    let [colour, root, left, right, count] = *words else { return None };
    let is_empty = root == 0 && left == address && right == address && count == 0;
    let is_full = colour & 0xffff_ffff <= 1
        && [root, left, right].into_iter().all(|word| is_heap(word) && word != address)
        && (1..=MAX_NODES).contains(&count);
    (is_empty || is_full).then_some(Header { root, count })
}

/// The blocks that the nodes of trees name, read level by level and as close together in time as possible.
pub(super) fn blocks_now(source: &dyn Source, headers: &[Header]) -> Vec<u64> {
    values_now(source, headers, VALUE_WORD)
}

/// The same of trees with the value at another word of their nodes.
pub(super) fn values_now(source: &dyn Source, headers: &[Header], value: usize) -> Vec<u64> {
    let mut level: Vec<u64> = headers.iter().map(|header| header.root).filter(|root| *root != 0).collect();
    let mut blocks = Vec::new();
    for _ in 0..MAX_DEPTH {
        if level.is_empty() || blocks.len() as u64 > MAX_NODES {
            break;
        }
        let node_bytes = (value + 1) * 8;
        let bytes = source.read_pieces(&level, node_bytes);
        let mut next = Vec::new();
        for node in bytes.chunks_exact(node_bytes) {
            let (words, _) = node.as_chunks();
            let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
            blocks.extend(Some(word(value)).filter(|block| is_heap(*block)));
            next.extend([word(2), word(3)].into_iter().filter(|child| is_heap(*child)));
        }
        next.truncate(1 << 16);
        level = next;
    }
    blocks
}
