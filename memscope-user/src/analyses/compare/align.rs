//! Alignment of two sequences: Myers' greedy algorithm with the reference's choice between equals (contract §8.4).
//!
//! Up to [`EXACT_EDITS`] differences the alignment is a shortest one, the same as the reference's. Time and memory grow
//! with the square of the differences, so beyond that the sequences are aligned piece by piece: each piece starts at
//! the end of the last one, takes the path that gets furthest with [`PIECE_EDITS`] differences, and keeps its first
//! half. A piece is bounded and shortens the rest by a bounded part, so time is linear in the differences.

/// Most differences of an exact alignment: about 70 MiB.
const EXACT_EDITS: usize = 6000;
/// Differences looked ahead in a piece.
const PIECE_EDITS: usize = 1024;

/// A step along both sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// The next entries of both are equal.
    Keep,
    /// The next entry of the first is in the first alone.
    Delete,
    /// The next entry of the second is in the second alone.
    Insert,
}

/// How two sequences correspond.
#[derive(Debug)]
pub(super) struct Alignment {
    pub(super) edits: Vec<Edit>,
    /// There is no shorter one.
    pub(super) shortest: bool,
}

/// Aligns by `key`. `watch` gets the number of aligned entries of both, now and then.
pub(super) fn align<T, K: PartialEq>(
    from: &[T],
    to: &[T],
    key: impl Fn(&T) -> K,
    watch: &mut dyn FnMut(usize),
) -> Alignment {
    align_within(from, to, key, (EXACT_EDITS, PIECE_EDITS), watch)
}

fn align_within<T, K: PartialEq>(
    from: &[T],
    to: &[T],
    key: impl Fn(&T) -> K,
    (exact, piece): (usize, usize),
    watch: &mut dyn FnMut(usize),
) -> Alignment {
    let [from, to] = [from, to].map(|entries| entries.iter().map(&key).collect::<Vec<K>>());
    let mut edits = Vec::with_capacity(from.len().max(to.len()));
    let (mut x, mut y) = (0, 0);
    let mut shortest = true;
    let mut reach = Vec::new();
    while x < from.len() || y < to.len() {
        let limit = if shortest { exact } else { piece };
        let end = walk(&from[x..], &to[y..], limit, &mut reach);
        let mut way = way_to(&end, &reach);
        if !end.complete {
            shortest = false;
            keep_half(&mut way, limit);
        }
        x += way.iter().filter(|edit| **edit != Edit::Insert).count();
        y += way.iter().filter(|edit| **edit != Edit::Delete).count();
        edits.append(&mut way);
        watch(x + y);
    }
    Alignment { edits, shortest }
}

/// Where a walk has come to.
#[derive(Debug)]
struct End {
    depth: usize,
    diagonal: isize,
    complete: bool,
}

/// Walks both sequences with as few differences as possible; `reach` gets the end of each diagonal for each number of
/// differences.
fn walk<K: PartialEq>(from: &[K], to: &[K], limit: usize, reach: &mut Vec<u32>) -> End {
    reach.clear();
    let mut best = (0, 0);
    for depth in 0..=limit {
        let mut furthest = 0;
        // The row of `depth - 1` differences; diagonal `-depth + 2 * place` lies between its places `place - 1` and `place`.
        let before = reach.len() - depth;
        for place in 0..=depth {
            let diagonal = 2 * place as isize - depth as isize;
            let mut x = if depth == 0 {
                0
            } else if place == 0 || (place != depth && reach[before + place - 1] < reach[before + place]) {
                reach[before + place] as usize
            } else {
                reach[before + place - 1] as usize + 1
            };
            let mut y = (x as isize - diagonal) as usize;
            while let (Some(one), Some(other)) = (from.get(x), to.get(y))
                && one == other
            {
                x += 1;
                y += 1;
            }
            reach.push(x as u32);
            if x >= from.len() && y >= to.len() {
                return End { depth, diagonal, complete: true };
            }
            if x <= from.len() && y <= to.len() && x + y >= furthest {
                furthest = x + y;
                best = (depth, diagonal);
            }
        }
    }
    End { depth: best.0, diagonal: best.1, complete: false }
}

/// End of `diagonal` with `depth` differences.
fn reached(reach: &[u32], depth: usize, diagonal: isize) -> u32 {
    reach[depth * (depth + 1) / 2 + isize::midpoint(diagonal, depth as isize) as usize]
}

/// Whether the last difference before `diagonal` is an insertion.
fn is_insertion(reach: &[u32], depth: usize, diagonal: isize) -> bool {
    let wide = depth as isize;
    diagonal == -wide
        || (diagonal != wide && reached(reach, depth - 1, diagonal - 1) < reached(reach, depth - 1, diagonal + 1))
}

/// Where `diagonal` is entered with `depth` differences.
fn start(reach: &[u32], depth: usize, diagonal: isize) -> u32 {
    match depth {
        0 => 0,
        _ if is_insertion(reach, depth, diagonal) => reached(reach, depth - 1, diagonal + 1),
        _ => reached(reach, depth - 1, diagonal - 1) + 1,
    }
}

fn way_to(end: &End, reach: &[u32]) -> Vec<Edit> {
    let mut way = Vec::new();
    let (mut depth, mut diagonal) = (end.depth, end.diagonal);
    loop {
        let kept = reached(reach, depth, diagonal) - start(reach, depth, diagonal);
        way.extend(std::iter::repeat_n(Edit::Keep, kept as usize));
        if depth == 0 {
            break;
        }
        if is_insertion(reach, depth, diagonal) {
            way.push(Edit::Insert);
            diagonal += 1;
        } else {
            way.push(Edit::Delete);
            diagonal -= 1;
        }
        depth -= 1;
    }
    way.reverse();
    way
}

/// Cuts a way off behind the first half of its differences.
fn keep_half(way: &mut Vec<Edit>, limit: usize) {
    let mut left = (limit / 2).max(1);
    let end = way.iter().position(|edit| {
        left -= usize::from(*edit != Edit::Keep && left > 0);
        left == 0
    });
    way.truncate(end.map_or(way.len(), |end| end + 1));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Random;

    fn edits(from: &str, to: &str) -> String {
        let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
        let letter = |edit: &Edit| match edit {
            Edit::Keep => '=',
            Edit::Delete => '-',
            Edit::Insert => '+',
        };
        align(&from, &to, |letter| *letter, &mut |_| {}).edits.iter().map(letter).collect()
    }

    /// Ways worked out by hand; the first is the example of Myers' paper.
    #[test]
    fn ways_of_the_greedy_algorithm() {
        assert_eq!(edits("abcabba", "cbabac"), "--=+==-=+");
        assert_eq!(edits("", ""), "");
        assert_eq!(edits("ab", ""), "--");
        assert_eq!(edits("", "ab"), "++");
        assert_eq!(edits("a", "b"), "-+");
        assert_eq!(edits("a", "aa"), "=+");
        assert_eq!(edits("mlsafcg", "mmlsalfcsg"), "=+===+==+=");
    }

    /// Length of the longest common subsequence, by the table.
    fn common(from: &[u8], to: &[u8]) -> usize {
        let mut row = vec![0; to.len() + 1];
        for one in from {
            let mut before = 0;
            for (at, other) in to.iter().enumerate() {
                let above = row[at + 1];
                row[at + 1] = if one == other { before + 1 } else { above.max(row[at]) };
                before = above;
            }
        }
        row[to.len()]
    }

    /// Whether the edits lead from one to the other.
    fn leads(from: &[u8], to: &[u8], edits: &[Edit]) -> bool {
        let (mut from, mut to) = (from.iter(), to.iter());
        let sound = edits.iter().all(|edit| match edit {
            Edit::Keep => from.next().zip(to.next()).is_some_and(|(one, other)| one == other),
            Edit::Delete => from.next().is_some(),
            Edit::Insert => to.next().is_some(),
        });
        sound && from.next().is_none() && to.next().is_none()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The alignment is one, and there is no shorter one; piece by piece it still is one.
        #[test]
        fn shortest_and_sound(
            from in prop::collection::vec(0..4_u8, 0..40),
            to in prop::collection::vec(0..4_u8, 0..40),
            piece in 1..6_usize,
        ) {
            let exact = align(&from, &to, |it| *it, &mut |_| {});
            let kept = exact.edits.iter().filter(|edit| **edit == Edit::Keep).count();
            prop_assert!(exact.shortest && leads(&from, &to, &exact.edits));
            prop_assert_eq!(kept, common(&from, &to));
            let pieces = align_within(&from, &to, |it| *it, (piece, piece), &mut |_| {});
            prop_assert!(leads(&from, &to, &pieces.edits));
        }
    }

    /// With a third of 20 000 different, pieces keep as many as the shortest path, but for 1 %.
    #[test]
    fn pieces_are_nearly_as_short() {
        let mut random = Random(11);
        let from: Vec<u8> = (0..6000).map(|_| random.below(20) as u8).collect();
        let to: Vec<u8> =
            from.iter().map(|it| if random.below(3) == 0 { 20 + random.below(9) as u8 } else { *it }).collect();
        let kept = |alignment: &Alignment| alignment.edits.iter().filter(|edit| **edit == Edit::Keep).count();
        let exact = align_within(&from, &to, |it| *it, (100_000, 1), &mut |_| {});
        let mut reported = Vec::new();
        let pieces = align_within(&from, &to, |it| *it, (1024, 1024), &mut |aligned| reported.push(aligned));
        // Reports come often, forward only, and up to the end.
        assert!(
            reported.len() > 2 && reported.is_sorted() && reported.last() == Some(&(from.len() + to.len())),
            "{reported:?}"
        );
        assert!(exact.shortest && !pieces.shortest);
        assert!(kept(&pieces) * 100 >= kept(&exact) * 99, "{} of {}", kept(&pieces), kept(&exact));
    }
}
