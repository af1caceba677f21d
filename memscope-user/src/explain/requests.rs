//! Rules about requests that failed.

use std::collections::BTreeMap;

use super::advice;
use super::card::{About, Level, Rule};
use super::facts::{Facts, Out, Says, at_place, bytes, is_share, least, place};
use crate::analyses::fragmentation::{FreeSpaceMoment, Pinning};
use crate::analyses::ledger::{Entry, Item, Ledger};
use crate::analyses::oom::{Cause, Oom, PoolAtOom};
use crate::model::{Confidence, Device, PlaceSum, PoolOperators, Stack, Stacks};
use crate::text::frame::Frame;
use crate::text::numbers::{counted, rounded};

/// Free memory counts as in pieces from this percentage of it outside of the largest piece on.
const PIECES_PERCENT: u64 = 30;
/// The driver's figures are good for a failed request for so long.
const FIGURES_NS: u64 = 10_000_000_000;
/// Holders and other processes in the evidence.
pub(super) const MAX_LISTED: usize = 3;

/// The last failure of a request at a place, and the number of failures there.
struct Failed<'a> {
    oom: &'a Oom,
    count: u64,
}

/// The failed requests, those of a place together.
fn failed<'a>(facts: &Facts<'a>) -> Vec<Failed<'a>> {
    let mut places: BTreeMap<(Device, Stacks), Failed<'a>> = BTreeMap::new();
    for oom in facts.ooms() {
        let failed = places.entry((oom.device, oom.stacks)).or_insert(Failed { oom, count: 0 });
        failed.count += 1;
        if oom.time_ns >= failed.oom.time_ns {
            failed.oom = oom;
        }
    }
    places.into_values().collect()
}

impl Failed<'_> {
    /// Size, place and number of the requests.
    fn asked(&self) -> String {
        let Self { oom, count } = self;
        let often = if *count > 1 { format!(" ({} here)", counted(*count, "failed request")) } else { String::new() };
        format!("{} asked for{}{often}", rounded(oom.size_bytes.into()), at_place(oom.stacks))
    }

    fn says<'h>(&self, facts: &Facts<'_>, text: String, size_bytes: u64, hints: &'h [advice::Hint]) -> Says<'h> {
        let oom = self.oom;
        let mut evidence = vec![format!("{} of the request", counted(oom.attempts.into(), "attempt"))];
        if oom.late {
            evidence.push("the state at the failed attempt was not kept: figures are of a moment later".to_owned());
        }
        evidence.extend(oom.pools.iter().filter_map(pool_line));
        evidence.extend(holders(oom));
        Says {
            device: oom.device,
            level: Level::Error,
            text,
            size_bytes,
            evidence,
            hints,
            confidence: if oom.late { Confidence::Doubtful } else { facts.confidence() },
            about: About::Request { time_ns: oom.time_ns },
        }
    }
}

/// A pool at the failed request.
fn pool_line(pool: &PoolAtOom) -> Option<String> {
    let (title, size) = (pool.pool.title(), |bytes: u64| rounded(bytes.into()));
    let reserved = pool.reserved_bytes.filter(|_| !pool.pool.is_driver())?;
    let largest = pool.largest_free_bytes.map(|largest| format!(", largest free piece {}", size(largest)));
    Some(format!("{title}: {} in use of {}{}", size(pool.used_bytes), size(reserved), largest.unwrap_or_default()))
}

/// The largest holders.
fn holders(oom: &Oom) -> Vec<String> {
    let places = oom.pools.iter().flat_map(|pool| &pool.groups.places).filter(|sum| !sum.stacks.is_empty());
    let mut places: Vec<_> = places.collect();
    places.sort_by_key(|sum| (std::cmp::Reverse(sum.live.size_bytes), sum.stacks));
    let line = |sum: &&PlaceSum| {
        let held = format!("{} in {}", rounded(sum.live.size_bytes.into()), counted(sum.live.blocks, "block"));
        Some(format!("{held}: {}", place(sum.stacks)?))
    };
    places.iter().take(MAX_LISTED).filter_map(line).collect()
}

/// `graph-capture`, where the request was one of a capture.
pub(super) fn while_captured(out: &mut Out<'_, '_>) {
    for failed in failed(out.facts).iter().filter(|failed| is_capture(failed.oom.stacks)) {
        let missing = match failed.oom.cause {
            Cause::Full { missing_bytes, .. } => format!("; up to {} was missing", rounded(missing_bytes.into())),
            Cause::Limit { .. } => "; the pool has a limit of its own".to_owned(),
            Cause::NotGiven { .. } | Cause::Fragmented { .. } => String::new(),
        };
        let text = format!("{} while graphs were captured{missing}.", failed.asked());
        let says = failed.says(out.facts, text, failed.oom.size_bytes, &[advice::CAPTURE_SIZES, advice::EAGER]);
        out.say(Rule::GraphCapture, says);
    }
}

/// Whether a stack is one of a graph capture.
fn is_capture(stacks: Stacks) -> bool {
    const NAMES: [&str; 4] = ["capture_model", "_capture_model", "capture_begin", "make_graphed_callables"];
    let frames = [stacks.mixed, stacks.python].into_iter().flatten().flat_map(Stack::frames);
    frames.into_iter().any(|text| {
        let frame = Frame::of(&text);
        let last = frame.name.rsplit('.').next().unwrap_or_default();
        frame.python && NAMES.contains(&last) && !frame.file.is_empty()
    })
}

/// `oom-other`.
pub(super) fn of_others(out: &mut Out<'_, '_>) {
    for failed in failed(out.facts) {
        let oom = failed.oom;
        let Some((ledger, others)) = figures_of(out.facts, oom) else { continue };
        let sum: u128 = others.iter().map(|(_, size_bytes)| size_bytes).sum();
        if sum < u128::from(oom.size_bytes) {
            continue;
        }
        let own = rounded(ledger.hal.total.size_bytes);
        let text = format!(
            "{}; {} on the device: {} in use; this one had {own} of the driver's memory.",
            failed.asked(),
            if others.len() == 1 { "1 other process".to_owned() } else { format!("{} other processes", others.len()) },
            rounded(sum)
        );
        let mut says = failed.says(out.facts, text, bytes(sum), &[advice::OTHERS, advice::SMALLER]);
        let age_ns = ledger.used_time_ns.unwrap_or_default().abs_diff(oom.time_ns);
        says.evidence.push(format!("the driver's figures are {:.1} s from the failure", age_ns as f64 / 1e9));
        let line = |(pid, size_bytes): &(u32, u128)| format!("process {pid}: {}", rounded(*size_bytes));
        says.evidence.extend(others.iter().take(MAX_LISTED).map(line));
        says.confidence = least([says.confidence, ledger.confidence]);
        out.say(Rule::OomOther, says);
    }
}

/// The ledger with the driver's figures nearest to the failure, and the other processes, the largest first.
fn figures_of<'a>(facts: &Facts<'a>, oom: &Oom) -> Option<(&'a Ledger, Vec<(u32, u128)>)> {
    let of_device = facts.ledgers().filter(|ledger| ledger.device == oom.device);
    let with_age = of_device.filter_map(|ledger| Some((ledger.used_time_ns?.abs_diff(oom.time_ns), ledger)));
    let (_, ledger) = with_age.filter(|(age_ns, _)| *age_ns <= FIGURES_NS).min_by_key(|(age_ns, _)| *age_ns)?;
    let other = |part: &Entry| match part.item {
        Item::OtherProcess { pid } if part.size_bytes > 0 => Some((pid, part.size_bytes)),
        _ => None,
    };
    let mut others: Vec<(u32, u128)> = ledger.used.as_ref()?.parts.iter().filter_map(other).collect();
    others.sort_by_key(|(pid, size_bytes)| (std::cmp::Reverse(*size_bytes), *pid));
    Some((ledger, others))
}

/// `oom-fragmented` and `oom-apart`.
pub(super) fn in_pieces(out: &mut Out<'_, '_>) {
    for failed in failed(out.facts) {
        match failed.oom.cause {
            Cause::NotGiven { largest_bytes } => {
                let says = failed.apart(out.facts, largest_bytes);
                out.say(Rule::OomApart, says);
            }
            Cause::Fragmented { unused_bytes, largest_bytes: Some(largest_bytes) }
                if is_share(unused_bytes.saturating_sub(largest_bytes), unused_bytes, PIECES_PERCENT) =>
            {
                let says = failed.fragmented(out.facts, unused_bytes, largest_bytes);
                out.say(Rule::OomFragmented, says);
            }
            Cause::Fragmented { .. } | Cause::Limit { .. } | Cause::Full { .. } => {}
        }
    }
}

impl Failed<'_> {
    /// Whether the pool with helpful settings is torch's.
    fn is_of_torch(&self) -> bool {
        self.oom.most_unused().is_some_and(|pool| pool.operators() == Some(PoolOperators::Torch))
    }

    fn apart(&self, facts: &Facts<'_>, largest_bytes: u64) -> Says<'static> {
        let text = format!(
            "{}; a free piece had {}. Pools keep pieces of streams and sizes apart.",
            self.asked(),
            rounded(largest_bytes.into())
        );
        let hints: &[advice::Hint] =
            if self.is_of_torch() { &[advice::ONE_STREAM, advice::EMPTY_CACHE] } else { &[advice::ONE_STREAM] };
        self.says(facts, text, self.oom.size_bytes, hints)
    }

    fn fragmented(&self, facts: &Facts<'_>, unused_bytes: u64, largest_bytes: u64) -> Says<'static> {
        let text = format!(
            "{}; {} was free in pools, the largest piece had {}.",
            self.asked(),
            rounded(unused_bytes.into()),
            rounded(largest_bytes.into())
        );
        let hints: &[advice::Hint] =
            if self.is_of_torch() { &[advice::EXPANDABLE, advice::MAX_SPLIT] } else { &[advice::SMALLER] };
        let mut says = self.says(facts, text, unused_bytes, hints);
        says.evidence.extend(pins(facts, self.oom));
        says
    }
}

/// Blocks that pinned mostly empty segments, if the worst moment of a pool was about that of the failure.
fn pins(facts: &Facts<'_>, oom: &Oom) -> Vec<String> {
    const NEAR_NS: u64 = 1_000_000_000;
    let of_device = facts.pieces().filter(|found| found.device == oom.device);
    let moments = of_device.flat_map(|found| found.worst.iter().chain([&found.end]));
    let Some(near) =
        moments.filter(|moment| moment.time_ns.abs_diff(oom.time_ns) <= NEAR_NS).max_by_key(|it| it.pinned.len())
    else {
        return Vec::new();
    };
    pinning(near)
}

/// The places of blocks that pin mostly empty segments, a line each.
pub(super) fn pinning(moment: &FreeSpaceMoment) -> Vec<String> {
    let line = |pinning: &Pinning| {
        let held = format!("{} ({})", counted(pinning.blocks, "block"), rounded(pinning.size_bytes.into()));
        let kept = match pinning.segments {
            0 => "mostly empty segments are kept, beside larger blocks,".to_owned(),
            _ => format!("{} free in mostly empty segments, kept", rounded(pinning.free_bytes.into())),
        };
        Some(format!("{kept} by {held}: {}", place(pinning.stacks)?))
    };
    moment.pinning().iter().filter_map(line).take(MAX_LISTED).collect()
}

/// `oom-short`.
pub(super) fn too_large(out: &mut Out<'_, '_>) {
    for failed in failed(out.facts) {
        let Cause::Full { missing_bytes, unused_bytes } = failed.oom.cause else { continue };
        let missing = rounded(missing_bytes.into());
        let rest = match unused_bytes {
            0 => format!("no pool had unused memory, up to {missing} was missing"),
            _ => format!("pools had {} unused, up to {missing} was missing", rounded(unused_bytes.into())),
        };
        let text = format!("{}; {rest}.", failed.asked());
        out.say(Rule::OomShort, failed.says(out.facts, text, missing_bytes, &[advice::SMALLER, advice::FREE_HOLDERS]));
    }
}
