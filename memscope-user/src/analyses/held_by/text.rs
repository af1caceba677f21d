//! Holders of live blocks.

use std::io::{self, Write};

use super::{HeldBy, HeldPlace, PlaceKey, place_of};
use crate::model::{HolderPath, LookedAt, PlaceLook};
use crate::printable::OneLine;
use crate::text::{
    DeviceName,
    clock::Clock,
    numbers::{counted, size},
    user_frames::{self, UserFrame},
};

/// Holders listed of a place.
const MAX_HOLDERS: usize = 3;

/// Writes all places, or why there is none.
pub(super) fn write(found: &HeldBy, clock: Clock, most: usize, out: &mut dyn Write) -> io::Result<()> {
    let device = DeviceName(found.device);
    if let Some(why) = &found.not_looked_for {
        // Of a process that has ended the places say so.
        if found.process_end_ns.is_some() {
            return Ok(());
        }
        return writeln!(out, "Holders of the blocks on device {device} were not looked for: {}", OneLine(why));
    }
    let when = match found.looked_at {
        LookedAt::FailedRequest => "Held when the request had failed",
        _ => "Still held",
    };
    let at = clock.since_start(found.time_ns);
    writeln!(out, "{when} on device {device} (looked at {at}{}):", before_end(found))?;
    for place in found.places.iter().take(most) {
        let frame = user_frames::of(place.stacks, 1).into_iter().next();
        let at = match (frame, place.each_bytes) {
            (Some(UserFrame { at, function }), _) => format!(", allocated at {at} {function}"),
            (None, Some(each)) => format!(", of {each} bytes each"),
            (None, None) => String::new(),
        };
        let blocks = counted(place.live.blocks, "block");
        writeln!(out, "  {}: {} in {blocks}{}", place.pool.display_name(), size(place.live.size_bytes), OneLine(at))?;
        for line in lines_of(place, &Counts::of(place, "")) {
            writeln!(out, "    {line}")?;
        }
    }
    let more = found.places.len().saturating_sub(most) as u64;
    if more > 0 { writeln!(out, "  … and {} (see --json)", counted(more, "more place")) } else { Ok(()) }
}

/// `still held by: …`, one line for each holder, as text that a terminal does not obey. Nothing where looking was not asked for, or the
/// place was not among those that were looked at.
pub(crate) fn lines<'a>(
    found: impl Iterator<Item = &'a HeldBy> + Clone,
    key: PlaceKey,
    at_failure: bool,
) -> Vec<String> {
    match place_of(found, key, at_failure) {
        Some((found, Some(place))) => lines_of(place, &Counts::of(place, &before_end(found))),
        Some((HeldBy { not_looked_for: Some(why), .. }, None)) => {
            vec![format!("still held by: not looked for: {}", OneLine(why))]
        }
        _ => Vec::new(),
    }
}

/// The same for a narrow screen: `(38 of 40)`, and nothing where [`why_not`] has an answer.
pub(crate) fn short_lines<'a>(
    found: impl Iterator<Item = &'a HeldBy> + Clone,
    key: PlaceKey,
    at_failure: bool,
) -> Vec<String> {
    match place_of(found, key, at_failure) {
        Some((_, Some(place))) => lines_of(place, &Counts::short(place)),
        _ => Vec::new(),
    }
}

/// The same of one look, for a screen.
pub(crate) fn lines_of_look(look: &PlaceLook) -> Vec<String> {
    let place = HeldPlace::of(look);
    lines_of(&place, &Counts::short(&place))
}

/// Why holders of a place were not looked for, if that was wanted.
pub(crate) fn why_not<'a>(
    found: impl Iterator<Item = &'a HeldBy> + Clone,
    key: PlaceKey,
    at_failure: bool,
) -> Option<&'a str> {
    match place_of(found, key, at_failure) {
        Some((HeldBy { not_looked_for: Some(why), .. }, None)) => Some(why),
        _ => None,
    }
}

/// Writes them below a place.
pub(crate) fn write_lines(found: &[&HeldBy], key: PlaceKey, out: &mut dyn Write) -> io::Result<()> {
    lines(found.iter().copied(), key, false).iter().try_for_each(|line| writeln!(out, "    {line}"))
}

/// How long before its end a process was looked at that has ended.
fn before_end(found: &HeldBy) -> String {
    let before =
        |end_ns: u64| format!(", {:.1} s before the process ended", end_ns.saturating_sub(found.time_ns) as f64 / 1e9);
    found.process_end_ns.map(before).unwrap_or_default()
}

/// How blocks are counted: behind a holder, and behind the absence of one.
struct Counts {
    all: String,
    none: String,
    /// Behind the first holder.
    when: String,
}

impl Counts {
    fn of(place: &HeldPlace, when: &str) -> Self {
        let blocks = counted(place.looked_at_blocks, "block");
        let when = when.to_owned();
        if place.looked_at_blocks < place.live.blocks {
            let all = format!("the {blocks} looked at");
            Self { none: format!("of {all}"), all, when }
        } else {
            Self { none: blocks.clone(), all: blocks, when }
        }
    }

    fn short(place: &HeldPlace) -> Self {
        let all = place.looked_at_blocks.to_string();
        Self { none: counted(place.looked_at_blocks, "block"), all, when: String::new() }
    }
}

/// What held them, and why more may have where that is not known of all.
fn lines_of(place: &HeldPlace, counts: &Counts) -> Vec<String> {
    let mut lines = holders_of(place, counts);
    let is_known = place.holders.iter().any(|holder| holder.is_sure) && place.unknown_blocks == 0;
    if let Some(left_out) = place.left_out.as_ref().filter(|_| !is_known) {
        lines.push(format!("holders may be missing: {}", OneLine(left_out)));
    }
    lines
}

fn holders_of(place: &HeldPlace, Counts { all, none, when }: &Counts) -> Vec<String> {
    let HeldPlace { holders, garbage_blocks, unknown_blocks, .. } = place;
    let Some(best) = holders.first() else {
        return vec![match unknown_blocks {
            0 => format!("still held by: garbage that is not collected yet: `gc.collect()` frees it  ({none}{when})"),
            _ => format!("still held by: not found  ({none}{when})"),
        }];
    };
    let mut lines = Vec::new();
    for (at, HolderPath { path, is_sure, blocks }) in holders.iter().take(MAX_HOLDERS).enumerate() {
        let what = match (is_sure, at) {
            (false, _) => "perhaps held by",
            (true, 0) => "still held by",
            (true, _) => "and by",
        };
        let when = if at == 0 { when } else { "" };
        lines.push(format!("{what}: {}  ({blocks} of {all}{when})", OneLine(path)));
    }
    let more = holders.len().saturating_sub(MAX_HOLDERS) as u64;
    if more > 0 {
        lines.push(format!("and by {} (see --json)", counted(more, "more holder")));
    }
    if *garbage_blocks > 0 && (best.is_sure || *garbage_blocks > best.blocks) {
        lines.push(format!("garbage that is not collected yet: {garbage_blocks} of {all}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Device, LiveSum, Stack, StackEnd, Stacks};

    const NPU0: Device = Device::Npu(0);

    fn stacks() -> Stacks {
        Stacks { python: Some(Stack::keep(["/srv/serve.py(31): handle"], StackEnd::Root)), ..Stacks::default() }
    }

    fn place(live: u64, looked_at_blocks: u64, holders: &[(&str, bool, u64)]) -> HeldPlace {
        let path = |(path, is_sure, blocks): &(&str, bool, u64)| HolderPath {
            path: (*path).to_owned(),
            is_sure: *is_sure,
            blocks: *blocks,
        };
        HeldPlace {
            pool: pools::PTA,
            each_bytes: None,
            stacks: stacks(),
            live: LiveSum { blocks: live, size_bytes: live << 20 },
            looked_at_blocks,
            holders: holders.iter().map(path).collect(),
            garbage_blocks: 0,
            unknown_blocks: 0,
            left_out: None,
        }
    }

    fn found(places: Vec<HeldPlace>) -> HeldBy {
        HeldBy { places, ..HeldBy::new(7, NPU0, LookedAt::End, 5_500_000_000) }
    }

    fn said(found: &HeldBy) -> Vec<String> {
        lines([found].into_iter(), (NPU0, pools::PTA, stacks(), None), false)
    }

    /// One line for each holder; with all blocks looked at, or some; keys are escaped.
    #[test]
    fn holders_of_a_place() {
        let history = "__main__.engine._cache['history'][*]";
        assert_eq!(
            said(&found(vec![place(40, 40, &[(history, true, 38)])])),
            ["still held by: __main__.engine._cache['history'][*]  (38 of 40 blocks)"]
        );
        assert_eq!(
            said(&found(vec![place(
                512,
                40,
                &[("m.a", true, 40), ("m.b['\u{1b}[31m']", true, 1), ("stack", false, 1)]
            )])),
            [
                "still held by: m.a  (40 of the 40 blocks looked at)",
                "and by: m.b['\\x1b[31m']  (1 of the 40 blocks looked at)",
                "perhaps held by: stack  (1 of the 40 blocks looked at)"
            ]
        );
        let many: Vec<(&str, bool, u64)> = ["m.a", "m.b", "m.c", "m.d", "m.e"].map(|path| (path, true, 1)).to_vec();
        assert_eq!(said(&found(vec![place(1, 1, &many)]))[3], "and by 2 more holders (see --json)");
    }

    /// A narrow screen has the numbers alone.
    #[test]
    fn on_a_narrow_screen() {
        let key = (NPU0, pools::PTA, stacks(), None);
        let of = |found: &HeldBy| short_lines([found].into_iter(), key, false);
        assert_eq!(of(&found(vec![place(512, 40, &[("m.a[*]", true, 38)])])), ["still held by: m.a[*]  (38 of 40)"]);
        let none = HeldPlace { unknown_blocks: 40, ..place(512, 40, &[]) };
        assert_eq!(of(&found(vec![none])), ["still held by: not found  (40 blocks)"]);
        let unseen = HeldBy { not_looked_for: Some("not CPython".to_owned()), ..found(Vec::new()) };
        assert_eq!((of(&unseen), why_not([&unseen].into_iter(), key, false)), (Vec::new(), Some("not CPython")));
    }

    /// Without a holder the line says which case it is.
    #[test]
    fn no_holder() {
        let none = HeldPlace { unknown_blocks: 40, ..place(40, 40, &[]) };
        assert_eq!(said(&found(vec![none])), ["still held by: not found  (40 blocks)"]);
        let garbage = HeldPlace { garbage_blocks: 1, ..place(1, 1, &[]) };
        let text = "still held by: garbage that is not collected yet: `gc.collect()` frees it  (1 block)";
        assert_eq!(said(&found(vec![garbage])), [text]);
        let why = "the process has ended".to_owned();
        let unseen = HeldBy { not_looked_for: Some(why), ..found(Vec::new()) };
        assert_eq!(said(&unseen), ["still held by: not looked for: the process has ended"]);
        // Of a place that was not chosen nothing is said.
        assert_eq!(said(&found(Vec::new())), [""; 0]);
        let ended = HeldBy { process_end_ns: Some(7_000_000_000), ..found(vec![place(3, 3, &[("m.a", true, 3)])]) };
        assert_eq!(said(&ended), ["still held by: m.a  (3 of 3 blocks, 1.5 s before the process ended)"]);
    }

    /// Memory that was not read is named where a holder is missing or unsure, and nowhere else.
    #[test]
    fn memory_left_out() {
        let left_out = Some("3 MiB of its host memory are swapped out".to_owned());
        let last = |place: HeldPlace| said(&found(vec![HeldPlace { left_out: left_out.clone(), ..place }])).pop();
        let line = Some("holders may be missing: 3 MiB of its host memory are swapped out".to_owned());
        assert_eq!(last(HeldPlace { unknown_blocks: 2, ..place(2, 2, &[]) }), line);
        assert_eq!(last(HeldPlace { unknown_blocks: 1, ..place(2, 2, &[("m.a", true, 1)]) }), line);
        assert_eq!(last(place(2, 2, &[("m.a", false, 2)])), line);
        assert_eq!(last(place(2, 2, &[("m.a", true, 2)])), Some("still held by: m.a  (2 of 2 blocks)".to_owned()));
    }

    /// At a failed request its own look is preferred, else the other one.
    #[test]
    fn the_look_of_the_moment() {
        let at_failure =
            HeldBy { looked_at: LookedAt::FailedRequest, ..found(vec![place(1, 1, &[("m.then", true, 1)])]) };
        let at_end = found(vec![place(1, 1, &[("m.now", true, 1)])]);
        let key = (NPU0, pools::PTA, stacks(), None);
        let of = |failed| lines([&at_failure, &at_end].into_iter(), key, failed).concat();
        assert!(of(true).contains("m.then") && of(false).contains("m.now"));
        assert!(lines([&at_end].into_iter(), key, true).concat().contains("m.now"));
    }

    #[test]
    fn the_section() {
        let found = found(vec![place(512, 40, &[("m.a", true, 40)]), place(1, 1, &[("m.b", true, 1)])]);
        let mut out = Vec::new();
        write(&found, Clock::since(5_000_000_000), 1, &mut out).expect("memory takes everything");
        let expected = "\
Still held on device 0 (looked at 0.5s):
  Pytorch Caching memory pool: 512.00 MiB (536870912 bytes) in 512 blocks, allocated at serve.py:31 handle
    still held by: m.a  (40 of the 40 blocks looked at)
  … and 1 more place (see --json)
";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }
}
