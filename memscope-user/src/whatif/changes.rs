//! Requests that the program would make if it were changed: with emptied caches, or with another batch size.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::requests::{Iter, Lane, MarkOf, Op, Requests, Slots, Words};

/// Moments at which the program empties the cache of each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmptyAt {
    /// Where a step begins with a number that this divides.
    Steps(u32),
    /// At marks of this text.
    Mark(Arc<str>),
}

impl EmptyAt {
    /// Reads `steps`, `steps:10` or `mark:TEXT`.
    ///
    /// # Errors
    ///
    /// Says what the text should be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let every = |number: &str| number.parse().ok().filter(|every| *every > 0).map(Self::Steps);
        let found = match text.split_once(':') {
            None if text == "steps" => Some(Self::Steps(1)),
            Some(("steps", number)) => every(number),
            Some(("mark", mark)) if !mark.is_empty() => Some(Self::Mark(mark.into())),
            _ => None,
        };
        found.ok_or_else(|| format!("`{text}` is not `steps`, `steps:NUMBER` or `mark:TEXT`"))
    }

    fn holds(&self, mark: &MarkOf) -> bool {
        match (self, mark) {
            (Self::Steps(every), MarkOf::Step(step)) => step % every == 0,
            (Self::Mark(wanted), MarkOf::Text(text)) => wanted == text,
            _ => false,
        }
    }
}

/// The requests with emptied caches, and how often they are emptied.
#[must_use]
pub fn with_empty_caches(requests: &Requests, at: &EmptyAt) -> (Requests, u64) {
    let (mut words, mut times) = (Words::default(), 0);
    for op in requests.words.iter() {
        words.push(op);
        if let Op::Mark { index } = op
            && requests.marks.get(index as usize).is_some_and(|mark| at.holds(&mark.what))
        {
            times += 1;
            for device in 0..requests.devices.len() {
                words.push(Op::EmptyCache { device: device as u8 });
            }
        }
    }
    (requests.with_words(words), times)
}

/// Batch sizes: of two recordings, and the one asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Batches {
    /// Of the first recording.
    pub first: u64,
    /// Of the second one.
    pub second: u64,
    /// The one asked about.
    pub wanted: u64,
}

impl Batches {
    /// Reads `A,B,N`.
    ///
    /// # Errors
    ///
    /// Says what the text should be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> =
            text.split(',').map(|number| number.trim().parse().ok().filter(|number| *number > 0)).collect();
        match numbers.as_deref() {
            Some(&[first, second, wanted]) if first != second => Ok(Self { first, second, wanted }),
            _ => Err(format!("`{text}` is not three batch sizes, the first two different, like 16,32,48")),
        }
    }

    /// Bytes of a request at the wanted batch size, by a line through both; whether it passes through a whole number. `None`: below 0.
    fn bytes(self, first: u64, second: u64) -> Option<(u64, bool)> {
        let [own, other, wanted] = [self.first, self.second, self.wanted].map(i128::from);
        let change = (i128::from(second) - i128::from(first)).checked_mul(wanted - own)?;
        // Rounded up: too much memory is the safe error.
        let (whole, rest) = (change.div_euclid(other - own), change.rem_euclid(other - own));
        let bytes = i128::from(first) + whole + i128::from(rest != 0);
        u64::try_from(bytes).ok().map(|bytes| (bytes, rest == 0))
    }
}

/// How requests of another batch size were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Scaled {
    /// The batch sizes.
    pub batches: Batches,
    /// Requests with another size in the second recording.
    pub growing: u64,
    /// Those of them with no whole number of bytes at the wanted batch size: not in proportion to it.
    pub uneven: u64,
}

/// An action of the program, without those of the driver and of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Alloc { lane: Lane, asked: u64 },
    Free { number: u64 },
    Failed,
}

/// The program's actions, with the numbers of requests in place of slots.
struct Acts<'a> {
    requests: &'a Requests,
    ops: Iter<'a>,
    slots: Slots,
    numbers: Vec<u64>,
    count: u64,
}

impl<'a> Acts<'a> {
    fn of(requests: &'a Requests) -> Self {
        Self { requests, ops: requests.words.iter(), slots: Slots::default(), numbers: Vec::new(), count: 0 }
    }
}

impl Iterator for Acts<'_> {
    type Item = Act;

    fn next(&mut self) -> Option<Act> {
        loop {
            match self.ops.next()? {
                Op::Alloc { lane, asked } => {
                    let slot = self.slots.take() as usize;
                    if slot >= self.numbers.len() {
                        self.numbers.resize(slot + 1, 0);
                    }
                    self.numbers[slot] = self.count;
                    self.count += 1;
                    return Some(Act::Alloc { lane: *self.requests.lanes.get(usize::from(lane))?, asked });
                }
                Op::Free { slot } => {
                    self.slots.give_back(slot);
                    return Some(Act::Free { number: *self.numbers.get(slot as usize)? });
                }
                Op::FreeInUse { slot } => return Some(Act::Free { number: *self.numbers.get(slot as usize)? }),
                Op::Returned { slot } => self.slots.give_back(slot),
                Op::Failed { .. } => return Some(Act::Failed),
                Op::EmptyCache { .. }
                | Op::Others { .. }
                | Op::Reserved { .. }
                | Op::Mark { .. }
                | Op::PoolReleased { .. }
                | Op::PoolEmptied { .. }
                | Op::Limit { .. }
                | Op::Settings { .. }
                | Op::Fraction { .. }
                | Op::Nothing { .. } => {}
            }
        }
    }
}

/// The requests at another batch size, from recordings of the same program at two: each request has `a + b · batch` bytes.
///
/// # Errors
///
/// When the recordings have other sequences of requests: says the first difference. When a request would have less than no bytes.
pub fn scaled(first: &Requests, second: &Requests, batches: Batches) -> Result<(Requests, Scaled), String> {
    let (mut acts, mut others) = (Acts::of(first), Acts::of(second));
    let mut found = Scaled { batches, growing: 0, uneven: 0 };
    let mut sizes = Vec::new();
    // Other programs have such requests, too: a difference is the better reason.
    let mut below = None;
    loop {
        let at = acts.count + 1;
        match (acts.next(), others.next()) {
            (None, None) => break,
            (Some(Act::Alloc { lane, asked }), Some(Act::Alloc { lane: other_lane, asked: other })) => {
                // Streams are pointers, which differ between runs.
                if (lane.device, lane.private) != (other_lane.device, other_lane.private) {
                    return Err(format!("request {at} is of another device or pool in the second recording"));
                }
                let (bytes, whole) = batches.bytes(asked, other).unwrap_or_else(|| {
                    below.get_or_insert(at);
                    (0, true)
                });
                found.growing += u64::from(asked != other);
                found.uneven += u64::from(!whole);
                sizes.push(bytes);
            }
            (Some(Act::Failed), _) | (_, Some(Act::Failed)) => {
                return Err(format!("request {at} failed in a recording: record both where they fit"));
            }
            (own, other) if own == other => {}
            (own, other) => return Err(parted(at, own, other)),
        }
    }
    if let Some(at) = below {
        return Err(format!("request {at} would have less than no bytes: ask for a larger batch"));
    }
    let (mut words, mut sizes) = (Words::default(), sizes.into_iter());
    for op in first.words.iter() {
        words.push(match op {
            Op::Alloc { lane, asked } => Op::Alloc { lane, asked: sizes.next().unwrap_or(asked) },
            op => op,
        });
    }
    Ok((first.with_words(words), found))
}

/// The first difference between two sequences.
fn parted(at: u64, own: Option<Act>, other: Option<Act>) -> String {
    let words = |act: Option<Act>| match act {
        Some(Act::Alloc { asked, .. }) => format!("a request of {asked} bytes"),
        Some(Act::Free { number }) => format!("the free of request {}", number + 1),
        Some(Act::Failed) => "a request that fails".to_owned(),
        None => "its end".to_owned(),
    };
    let (own, other) = (words(own), words(other));
    format!(
        "the recordings differ behind {} requests: {own} in the first one, {other} in the second: record the same steps of the same \
         program, with another batch size alone",
        at - 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::Mark;

    fn requests(ops: &[Op]) -> Requests {
        let mut requests = Requests::default();
        requests.device(0);
        requests.lanes = vec![Lane { device: 0, stream: 7, private: 0 }];
        for op in ops {
            requests.words.push(*op);
        }
        requests
    }

    fn marked(texts: &[MarkOf]) -> Requests {
        let ops: Vec<Op> = (0..texts.len() as u32).map(|index| Op::Mark { index }).collect();
        let mut requests = requests(&ops);
        requests.marks = texts.iter().map(|what| Mark { time_ns: 0, what: what.clone() }).collect();
        requests
    }

    #[test]
    fn moments_are_read() {
        assert_eq!(EmptyAt::parse("steps"), Ok(EmptyAt::Steps(1)));
        assert_eq!(EmptyAt::parse("steps:10"), Ok(EmptyAt::Steps(10)));
        assert_eq!(EmptyAt::parse("mark:a:b"), Ok(EmptyAt::Mark("a:b".into())));
        for bad in ["", "step", "steps:0", "steps:x", "mark:", "mark", "steps:"] {
            assert!(EmptyAt::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Batches::parse("16, 32,48"), Ok(Batches { first: 16, second: 32, wanted: 48 }));
        for bad in ["", "16", "16,32", "16,16,32", "0,1,2", "1,2,3,4", "a,b,c", "1,2,-3"] {
            assert!(Batches::parse(bad).is_err(), "{bad}");
        }
    }

    /// Steps 0 to 12 and two marks: 13 of each step, 0 and 10 of each tenth, one of a mark.
    #[test]
    fn caches_are_emptied_at_moments() {
        let mut texts: Vec<MarkOf> = (0..13).map(MarkOf::Step).collect();
        texts.extend(["eval", "evaluation"].map(|text| MarkOf::Text(text.into())));
        let requests = marked(&texts);
        let places = |at: &str| {
            let (changed, times) = with_empty_caches(&requests, &EmptyAt::parse(at).expect("a moment"));
            let mut last = None;
            let mut places = Vec::new();
            for op in changed.words.iter() {
                match op {
                    Op::Mark { index } => last = Some(index),
                    Op::EmptyCache { device: 0 } => places.extend(last),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(places.len() as u64, times);
            places
        };
        assert_eq!(places("steps"), (0..13).collect::<Vec<_>>());
        assert_eq!((places("steps:10"), places("mark:eval"), places("mark:none")), (vec![0, 10], vec![13], vec![]));
    }

    const BATCHES: Batches = Batches { first: 2, second: 4, wanted: 10 };

    fn sizes(requests: &Requests) -> Vec<u64> {
        let asked =
            requests.words.iter().filter_map(|op| if let Op::Alloc { asked, .. } = op { Some(asked) } else { None });
        asked.collect()
    }

    /// 1000 bytes at any batch; 10 for each; 100 and 20 for each; 7 and 8, which no line through whole numbers has at batch 3 (7.5).
    #[test]
    fn sizes_lie_on_lines() {
        let of = |sizes: [u64; 4]| requests(&sizes.map(|asked| Op::Alloc { lane: 0, asked }));
        let (first, second) = (of([1000, 20, 140, 7]), of([1000, 40, 180, 8]));
        let (at_ten, found) = scaled(&first, &second, BATCHES).expect("alike");
        assert_eq!(
            (sizes(&at_ten), found),
            (vec![1000, 100, 300, 11], Scaled { batches: BATCHES, growing: 3, uneven: 0 })
        );
        let (at_three, found) = scaled(&first, &second, Batches { wanted: 3, ..BATCHES }).expect("alike");
        assert_eq!((sizes(&at_three), found.uneven), (vec![1000, 30, 160, 8], 1));
        // The same line from its other end.
        let back = Batches { first: 4, second: 2, wanted: 10 };
        assert_eq!(sizes(&scaled(&second, &first, back).expect("alike").0), [1000, 100, 300, 11]);
        // 20 at 2, 100 at 4: -20 at 1.
        let error = scaled(&of([20; 4]), &of([100; 4]), Batches { wanted: 1, ..BATCHES }).expect_err("below 0");
        assert!(error.contains("request 1 would have less than no bytes"), "{error}");
    }

    /// Blocks of streams come back at other times, which changes slots and no sequence; marks and memory of others do not count.
    #[test]
    fn times_of_streams_are_no_difference() {
        let alloc = |asked| Op::Alloc { lane: 0, asked };
        let first =
            requests(&[alloc(2), Op::FreeInUse { slot: 0 }, Op::Returned { slot: 0 }, alloc(20), Op::Free { slot: 0 }]);
        let second = requests(&[
            alloc(4),
            Op::Others { device: 0, bytes: 5 },
            Op::FreeInUse { slot: 0 },
            alloc(40),
            Op::Free { slot: 1 },
            Op::Returned { slot: 0 },
        ]);
        let (found, _) = scaled(&first, &second, BATCHES).expect("alike");
        assert_eq!(sizes(&found), [10, 100]);
        assert_eq!(found.words.iter().count(), first.words.iter().count());
    }

    #[test]
    fn other_programs_are_refused() {
        let alloc = |asked| Op::Alloc { lane: 0, asked };
        let first = requests(&[alloc(2), alloc(3), Op::Free { slot: 0 }]);
        let refusal = |ops: &[Op]| scaled(&first, &requests(ops), BATCHES).expect_err("refused");
        let other = refusal(&[alloc(4), alloc(6), Op::Free { slot: 1 }]);
        assert!(
            other.contains("behind 2 requests: the free of request 1 in the first one, the free of request 2"),
            "{other}"
        );
        let shorter = refusal(&[alloc(4), alloc(6)]);
        assert!(shorter.contains("the free of request 1 in the first one, its end in the second"), "{shorter}");
        let longer = refusal(&[alloc(4), alloc(6), Op::Free { slot: 0 }, alloc(9)]);
        assert!(longer.contains("its end in the first one, a request of 9 bytes in the second"), "{longer}");
        let failed = refusal(&[alloc(4), Op::Failed { lane: 0, asked: 6 }]);
        assert!(failed.starts_with("request 2 failed in a recording"), "{failed}");
    }
}
