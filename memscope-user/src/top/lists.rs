//! Owners and places, as lists.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

use super::state::State;
use super::view::{Sort, View};
use super::words::{bytes, clean, curve, cut, per_minute, rate, time};
use crate::analyses::growth::Trend;
use crate::analyses::live_use::{Moment, OwnerUse, PlaceUse};
use crate::analyses::sample::PoolSample;
use crate::model::{Device, Pool, Stack};
use crate::text::user_frames;

/// Columns of an owner.
const OWNER_COLUMNS: usize = 30;

/// Places that are shown, in their order.
pub(super) fn places<'a>(state: &'a State, view: &View) -> Vec<&'a PlaceUse> {
    let Some(moment) = state.moment() else { return Vec::new() };
    let shown = Shown::new(moment, view);
    let mut places: Vec<&PlaceUse> =
        moment.places.iter().filter(|it| shown.has(it.pid, it.device, it.site.pool)).collect();
    if !view.search.is_empty() {
        let text = view.search.to_lowercase();
        places.retain(|place| has_text(place, view, &text));
    }
    match view.sort {
        // Those that grow, then those with the most bytes.
        Sort::Growth => places.sort_by_key(|it| Reverse((per_minute(it.change).unwrap_or(0).max(0), it.live_bytes))),
        Sort::Live => places.sort_by_key(|it| Reverse(it.live_bytes)),
        Sort::Peak => places.sort_by_key(|it| Reverse(it.peak_bytes)),
        Sort::Blocks => places.sort_by_key(|it| Reverse(it.blocks)),
    }
    places
}

/// Which layers are shown: pools, and the driver where there are none, so that no byte is listed twice.
struct Shown<'a> {
    view: &'a View,
    pooled: BTreeSet<(u32, Device)>,
}

impl<'a> Shown<'a> {
    fn new(moment: &Moment, view: &'a View) -> Self {
        let pooled = moment.owners.iter().filter(|it| !it.pool.is_base()).map(|it| (it.pid, it.device));
        Self { view, pooled: pooled.collect() }
    }

    fn has(&self, pid: u32, device: Device, pool: Pool) -> bool {
        let layer = match self.view.layer {
            Some(layer) => layer == pool,
            None => !pool.is_driver() || !self.pooled.contains(&(pid, device)),
        };
        layer && self.view.pid.is_none_or(|chosen| chosen == pid)
    }
}

/// Lines of owners, at most `most` and a title.
pub(super) fn owner_lines(state: &State, view: &View, most: usize) -> Vec<Line<'static>> {
    let Some(moment) = state.moment() else { return Vec::new() };
    let shown = Shown::new(moment, view);
    let owners: Vec<&OwnerUse> = moment.owners.iter().filter(|it| shown.has(it.pid, it.device, it.pool)).collect();
    let mut lines = vec![title(format!(
        " {:<OWNER_COLUMNS$} {:>10} {:>10} {:>11} {:>8}",
        "OWNER", "LIVE", "PEAK", "+/MIN", "BLOCKS"
    ))];
    let before = before_attach(moment, &shown);
    for owner in owners.iter().take(most.saturating_sub(before.len())) {
        // What no rule names is no owner of that name.
        let name =
            owner.owner.map_or_else(|| format!("not named ({})", owner.pool.event_type()), |it| clean(it.as_str()));
        lines.push(Line::raw(format!(
            " {:<OWNER_COLUMNS$} {:>10} {:>10} {:>11} {:>8}",
            cut(&name, OWNER_COLUMNS),
            bytes(owner.live_bytes),
            bytes(owner.peak_bytes),
            rate(per_minute(owner.change)),
            owner.blocks
        )));
    }
    lines.extend(before);
    lines
}

/// Bytes that pools have handed out before the trace: no place is known of them.
fn before_attach(moment: &Moment, shown: &Shown<'_>) -> Vec<Line<'static>> {
    let mut bytes_before = 0_u64;
    for process in &moment.sample.processes {
        let unseen = |pool: &&PoolSample| shown.has(process.pid, pool.device, pool.pool);
        bytes_before += process.pools.iter().filter(unseen).map(|pool| pool.unseen_bytes).sum::<u64>();
    }
    let line = || Line::raw(format!(" {:<OWNER_COLUMNS$} {:>10}", "before attach", bytes(bytes_before)));
    (bytes_before > 0).then(line).into_iter().collect()
}

/// Lines of places, at most `most` and a title; the chosen one is among them.
pub(super) fn place_lines(state: &State, view: &View, most: usize, width: usize) -> Vec<Line<'static>> {
    const FIGURES: usize = 43;
    const CURVE: usize = 15;
    let all = places(state, view);
    let has_curve = width >= 100;
    let columns = width.saturating_sub(FIGURES + if has_curve { CURVE } else { 0 }).max(16);
    let curve_of = |text: String| if has_curve { format!(" {text}") } else { String::new() };
    let head = format!(
        " {:<columns$} {:>9} {:>10} {:>7} {:>7} {:>4}{}",
        "PLACE",
        "LIVE",
        "+/MIN",
        "BLOCKS",
        "OLDEST",
        "SURE",
        curve_of("LAST MINUTE".to_owned())
    );
    let mut lines = vec![title(head)];
    let below: Vec<Vec<String>> =
        all.iter().enumerate().map(|(at, place)| holder_lines(place, at == view.chosen, width)).collect();
    let room = most + 1;
    for (at, place) in all.iter().enumerate().skip(first_shown(&below, view.chosen, most)) {
        if lines.len() >= room {
            break;
        }
        let growth = per_minute(place.change);
        let text = format!(
            " {:<columns$} {:>9} {:>10} {:>7} {:>7} {:>4}{}",
            cut(&place_name(place, view), columns),
            bytes(place.live_bytes),
            rate(growth),
            place.blocks,
            age(place),
            sure(place.trend),
            curve_of(curve(&place.recent, CURVE - 1))
        );
        let chosen = if at == view.chosen { Modifier::REVERSED } else { Modifier::empty() };
        lines.push(Line::styled(text, Style::new().add_modifier(chosen)));
        lines.extend(below[at].iter().take(room - lines.len()).map(|line| Line::raw(line.clone())));
    }
    lines
}

/// The first place of a list that has room for `most` lines, so that the chosen one is in it: each has a line, and those below it.
pub(super) fn first_shown(below: &[Vec<String>], chosen: usize, most: usize) -> usize {
    let mut room = most;
    let of = |at: &usize| 1 + below.get(*at).map_or(0, Vec::len);
    let fits = |at: &usize| {
        let fits = *at == chosen || of(at) <= room;
        room = room.saturating_sub(of(at));
        fits
    };
    (0..=chosen).rev().take_while(fits).last().unwrap_or(chosen)
}

/// What holds the blocks of a place: of one that grows the first line, of the chosen one all.
fn holder_lines(place: &PlaceUse, is_chosen: bool, width: usize) -> Vec<String> {
    let most = match (is_chosen, place.trend) {
        (true, _) => usize::MAX,
        (false, Trend::Grows) => 1,
        (false, _) => 0,
    };
    let lines = place.held_by.iter().flat_map(|held| &held.lines).take(most);
    lines.map(|line| cut(&format!("   {}", clean(line)), width)).collect()
}

/// Age of the oldest block.
fn age(place: &PlaceUse) -> String {
    time(place.oldest_ns as f64 / 1e9)
}

/// Whether it grows, in a word.
const fn sure(trend: Trend) -> &'static str {
    match trend {
        Trend::Grows => "yes",
        Trend::Undecided => "open",
        Trend::Steady => "no",
        Trend::NotJudged => "–",
    }
}

/// Whether a place has the text in its name, its call stack or its layer; capitals do not matter.
fn has_text(place: &PlaceUse, view: &View, text: &str) -> bool {
    let has = |part: &str| part.to_lowercase().contains(text);
    let stack = || place.site.stacks.best().into_iter().flat_map(Stack::frames).any(|frame| has(&frame));
    has(place.site.pool.event_type()) || has(&place_name(place, view)) || stack()
}

/// The chosen place, in a few lines.
pub(super) fn chosen(state: &State, view: &View) -> Option<(u32, String, Vec<String>)> {
    let places = places(state, view);
    let place = places.get(view.chosen)?;
    let name = frames(place, &View::default(), 1).pop().unwrap_or_else(|| place_name(place, view));
    let lines = vec![
        format!("{name} ({}, pid {})", clean(place.site.pool.event_type()), place.pid),
        format!(
            "{} in {} blocks, peak {}, {}/min, the oldest {}",
            bytes(place.live_bytes),
            place.blocks,
            bytes(place.peak_bytes),
            rate(per_minute(place.change)),
            age(place)
        ),
        match place.trend {
            Trend::Grows => "Grows: live blocks rise in every part of the time watched, and stay.",
            Trend::Undecided => {
                "Undecided: there are more blocks than before, but few, young, or in place of older ones."
            }
            Trend::Steady => "No growth: there are no more blocks than early in the time watched.",
            Trend::NotJudged => "Not judged yet: that takes 10 s of work.",
        }
        .to_owned(),
    ];
    Some((place.pid, name, lines))
}

/// The innermost frame of the user's code, then its caller.
fn place_name(place: &PlaceUse, view: &View) -> String {
    let frames = frames(place, view, 2);
    if frames.is_empty() {
        let pool = place.site.pool.event_type();
        return match place.site.size_bytes {
            Some(size) => format!("{pool}: blocks of {}", bytes(size)),
            None => format!("{pool}: other places"),
        };
    }
    frames.join(" ← ")
}

/// At most this many frames of a place, innermost first: the user's, or all.
fn frames(place: &PlaceUse, view: &View, most: usize) -> Vec<String> {
    if view.all_frames {
        return place
            .site
            .stacks
            .best()
            .into_iter()
            .flat_map(Stack::frames)
            .take(most)
            .map(|frame| clean(&frame))
            .collect();
    }
    let frames = user_frames::of(place.site.stacks, most);
    frames.iter().map(|frame| clean(&format!("{} {}", frame.at, frame.function))).collect()
}

/// The whole stack of the chosen place.
pub(super) fn stack_lines(state: &State, view: &View, most: usize) -> Vec<Line<'static>> {
    let places = places(state, view);
    let Some(place) = places.get(view.chosen) else { return vec![Line::raw(" no place is chosen")] };
    let layer = clean(place.site.pool.event_type());
    let mut lines = vec![title(format!(" CALL STACK, innermost first ({layer}, pid {})", place.pid))];
    let frames = frames(place, view, usize::MAX);
    if frames.is_empty() {
        lines.push(Line::raw("   no call stack is known"));
    }
    let held: Vec<String> = place.held_by.iter().flat_map(|held| &held.lines).map(|line| clean(line)).collect();
    let room = most.saturating_sub(2 + held.len());
    lines.extend(frames.iter().take(room).map(|frame| Line::raw(format!("   {frame}"))));
    let more = frames.len().saturating_sub(room);
    if more > 0 {
        lines.push(Line::raw(format!("   … and {more} more")));
    }
    lines.extend(held.into_iter().map(|line| Line::raw(format!(" {line}"))));
    lines
}

/// The head of a list.
pub(super) fn title(text: String) -> Line<'static> {
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}
