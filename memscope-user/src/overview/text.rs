//! The first screen as text: 24 lines, as wide as the terminal.

use super::checks::REQUESTS_FAILED;
use super::{
    Advised, Check, Checked, Detail, FailedRequest, MemoryRow, MemoryTable, Overview, OwnersTable, Place,
    ProcessOverview, Role, Topic, Verdict, When,
};
use crate::analyses::ledger::Moment;
use crate::analyses::oom::Cause;
use crate::model::{Confidence, Device, LiveSum, RunEnd, StackEnd};
use crate::printable::OneLine;
use crate::text::numbers::{counted, rounded};
use crate::text::user_frames::{self, UserFrame};

/// Lines of the screen.
const LINES: usize = 24;
/// Places at most.
const MAX_PLACES: usize = 5;
/// Frames of the first place, and of the others.
const FRAMES: [usize; 2] = [3, 1];
/// Lines of holders of the first place, and of the others.
const HOLDERS: [usize; 2] = [2, 1];
/// Lines for places, of the worst verdict at least.
const LEAST_ROOM: usize = 5;
/// Further processes at most.
const MAX_OTHERS: usize = 3;
const BAR: usize = 18;
/// Columns of labels in tables.
const LABELS: usize = 34;

/// How the screen looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Columns.
    pub width: usize,
    /// Bars and marks are drawn in Unicode, otherwise in ASCII.
    pub unicode: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { width: 80, unicode: true }
    }
}

/// How a piece of text stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It does not.
    Plain,
    /// Bad news.
    Alarm,
    /// Undecided.
    Doubt,
    /// Good news.
    Good,
    /// A title.
    Title,
    /// Of less interest.
    Faint,
}

/// A piece of a line, or an end of line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its emphasis.
    pub tone: Tone,
    /// The text, without characters that a terminal obeys.
    pub text: String,
}

/// Lines in the making.
struct Page {
    look: Look,
    lines: Vec<Vec<Piece>>,
}

impl Page {
    /// Adds a line, cut at the width.
    fn line(&mut self, pieces: Vec<(Tone, String)>) {
        let mut left = self.look.width;
        let mut line = Vec::new();
        for (tone, text) in pieces {
            let text = OneLine(text).to_string();
            let count = text.chars().count();
            let text =
                if count > left { text.chars().take(left.saturating_sub(1)).chain(['…']).collect() } else { text };
            left = left.saturating_sub(count);
            line.push(Piece { tone, text });
            if left == 0 {
                break;
            }
        }
        self.lines.push(line);
    }

    /// A line that is copied: the terminal may break it, and nothing is cut.
    fn whole(&mut self, pieces: Vec<(Tone, String)>) {
        let piece = |(tone, text): (Tone, String)| Piece { tone, text: OneLine(text).to_string() };
        self.lines.push(pieces.into_iter().map(piece).collect());
    }

    fn plain(&mut self, text: String) {
        self.line(vec![(Tone::Plain, text)]);
    }

    fn blank(&mut self) {
        self.lines.push(Vec::new());
    }

    /// A bar of this many parts of the whole.
    fn bar(&self, share: f64) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few columns")]
        let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let full = if share > 0.0 { full.max(1) } else { 0 };
        if self.look.unicode { "█".repeat(full) } else { "#".repeat(full) }
    }

    /// Numbers as a line of bars.
    fn spark(&self, numbers: &[u64]) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = numbers.iter().max().copied().unwrap_or(0).max(1);
        if !self.look.unicode {
            return numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        }
        numbers.iter().map(|number| BARS[(u128::from(*number) * 7 / u128::from(most)) as usize]).collect()
    }
}

/// Writes the screen. `title` names the traced program; `next` are commands to type.
#[must_use]
pub fn write(overview: &Overview, end: &RunEnd, title: &str, next: &[String], look: Look) -> Vec<Vec<Piece>> {
    let mut page = Page { look, lines: Vec::new() };
    let Some((first, others)) = overview.processes.split_first() else {
        page.line(vec![(Tone::Title, header(title, None, end))]);
        let why = if end.nothing_selected { NOTHING_SELECTED } else { "no device memory was seen" };
        page.line(vec![(Tone::Doubt, "NOT JUDGED".to_owned()), (Tone::Plain, format!("  {why}"))]);
        return page.lines;
    };
    page.line(vec![(Tone::Title, header(title, Some(first), end))]);
    page.blank();
    verdict_line(&mut page, first, end);
    if end.without_stack() > 0 {
        let calls = counted(end.without_stack(), "call");
        page.line(vec![(Tone::Faint, format!("     no whole call stack of {calls}: places may miss blocks"))]);
    }
    let failed = first.failed_request.as_ref().filter(|_| first.verdict == Verdict::OutOfMemory);
    if let Some(failed) = failed {
        write_cause(&mut page, failed, first.advice.as_ref());
    }
    if let Some(owners) = first.owners.as_ref().filter(|_| is_quiet(first.verdict)) {
        write_owners(&mut page, owners, end);
    }
    let mut rest = below_places(first, others, end, next, look, MAX_OTHERS);
    let least = if is_quiet(first.verdict) { 0 } else { LEAST_ROOM };
    if page.lines.len() + rows(&rest, look) + least > LINES {
        rest = below_places(first, others, end, next, look, 0);
    }
    let room = LINES.saturating_sub(page.lines.len() + rows(&rest, look));
    let is_shown = write_places(&mut page, first, room);
    if let Some(why) = &first.holders_not_looked_for
        && is_shown
        && page.lines.len() + rows(&rest, look) < LINES
    {
        page.line(vec![(Tone::Faint, format!("     holders not looked for: {why}"))]);
    }
    let is_written = |advice: &&Advised| failed.is_some() && advice.is_setting;
    if let Some(advice) = first.advice.as_ref().filter(|advice| !is_written(advice))
        && page.lines.len() + rows(&rest, look) < LINES
    {
        page.line(vec![(Tone::Title, " TRY  ".to_owned()), (Tone::Plain, advice.text.clone())]);
    }
    page.lines.extend(rest);
    page.lines
}

/// Whether no place is found to be at fault.
const fn is_quiet(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Undecided | Verdict::NothingFound | Verdict::NotJudged)
}

/// Lines of the terminal that these take.
fn rows(lines: &[Vec<Piece>], look: Look) -> usize {
    let width = |line: &Vec<Piece>| line.iter().map(|piece| piece.text.chars().count()).sum::<usize>();
    lines.iter().map(|line| width(line).div_ceil(look.width.max(1)).max(1)).sum()
}

/// Writes the lines below the places.
fn below_places(
    first: &ProcessOverview,
    others: &[ProcessOverview],
    end: &RunEnd,
    next: &[String],
    look: Look,
    most_others: usize,
) -> Vec<Vec<Piece>> {
    let mut page = Page { look, lines: Vec::new() };
    if let Some(table) = shown_table(first) {
        write_memory(&mut page, table, end);
        write_other_devices(&mut page, table.device, &first.memory);
    }
    write_checks(&mut page, &first.checks);
    write_others(&mut page, others, most_others);
    if !next.is_empty() {
        page.blank();
        for (number, command) in next.iter().enumerate() {
            let head = if number == 0 { " next:  " } else { "        " };
            page.whole(vec![(Tone::Faint, head.to_owned()), (Tone::Plain, command.clone())]);
        }
    }
    page.lines
}

fn header(title: &str, process: Option<&ProcessOverview>, end: &RunEnd) -> String {
    let mut parts = vec![title.to_owned()];
    if let Some(process) = process {
        parts.push(format!("pid {}", process.pid));
        parts.push(process.devices.iter().map(|device| device_word(*device)).collect::<Vec<_>>().join(","));
    }
    let took_ns = end.time_ns.saturating_sub(end.start_ns);
    parts.push(if process.is_some_and(|process| process.attached) {
        format!("attached for {}", seconds(took_ns))
    } else {
        seconds(took_ns)
    });
    if let Some(exit_ns) = process.and_then(|process| process.exit_ns) {
        parts.push(format!("exit at {}", seconds(exit_ns.saturating_sub(end.start_ns))));
    }
    parts.push(loss(end));
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

fn loss(end: &RunEnd) -> String {
    if end.fault.is_some() {
        return "the tracer failed: figures may be off".to_owned();
    }
    if !end.unopened.is_empty() {
        return "not all files could be opened: figures may be off".to_owned();
    }
    match end.lost_of_memory() {
        0 if end.losses.is_empty() => "nothing lost".to_owned(),
        0 => "no memory event lost".to_owned(),
        count => format!("{} lost: figures may be off", counted(count, "event")),
    }
}

fn seconds(time_ns: u64) -> String {
    if time_ns < 1_000_000_000 {
        return format!("{} ms", time_ns / 1_000_000);
    }
    format!("{:.1} s", time_ns as f64 / 1e9)
}

fn device_word(device: Device) -> String {
    device.name_or("no device")
}

fn verdict_line(page: &mut Page, process: &ProcessOverview, end: &RunEnd) {
    let (tone, mark, word) = match process.verdict {
        Verdict::OutOfMemory => (Tone::Alarm, ["✗", "x"], "OUT OF MEMORY"),
        Verdict::Leak => (Tone::Alarm, ["✗", "x"], "LEAK"),
        Verdict::Growing => (Tone::Alarm, ["✗", "x"], "GROWING"),
        Verdict::Undecided => (Tone::Doubt, ["?", "?"], "UNDECIDED"),
        Verdict::NothingFound => (Tone::Good, ["✓", "+"], "NOTHING FOUND"),
        Verdict::NotJudged => (Tone::Doubt, ["?", "?"], "NOT JUDGED"),
    };
    let doubt = if process.confidence == Confidence::Doubtful { "  (doubtful: events were lost)" } else { "" };
    page.line(vec![
        (tone, format!(" {} {word}", mark[usize::from(!page.look.unicode)])),
        (Tone::Plain, format!("  {}{doubt}", sentence(process, end))),
    ]);
}

/// A part of the run was asked for, and no block is in it.
pub const NOTHING_SELECTED: &str = "no blocks match --filter, --since and --until";

/// The verdict in a sentence.
fn sentence(process: &ProcessOverview, end: &RunEnd) -> String {
    let of = |role: Role| process.places.iter().filter(move |place| place.role == role);
    let bytes = |role: Role| of(role).map(|place| u128::from(place.live.size_bytes)).sum::<u128>();
    let places = |role: Role| counted(of(role).count() as u64, "place");
    match process.verdict {
        Verdict::OutOfMemory => {
            process.failed_request.as_ref().map(|failed| asked(failed, end.start_ns)).unwrap_or_default()
        }
        Verdict::Leak => {
            let blocks = of(Role::Leaks).map(|place| place.live.blocks).sum();
            format!("{} in {} stay, at {}", rounded(bytes(Role::Leaks)), counted(blocks, "block"), places(Role::Leaks))
        }
        Verdict::Growing => {
            let rate: f64 = of(Role::Grows).map(|place| rate_of(place).unwrap_or_default()).sum();
            format!("{} more an hour, at {}", hourly(rate), places(Role::Grows))
        }
        Verdict::Undecided => format!("{} increased, too little to call it a leak", places(Role::Undecided)),
        Verdict::NothingFound => match process.undetectable_bytes_per_hour {
            Some(bytes) => format!("growth below {} an hour cannot be excluded", rounded(bytes.into())),
            None => nothing_found(&process.checks).to_owned(),
        },
        Verdict::NotJudged if has(&process.checks, Topic::OutOfMemory, REQUESTS_FAILED) => {
            "requests failed: `memscope-bpf explain` says why".to_owned()
        }
        Verdict::NotJudged if end.nothing_selected => NOTHING_SELECTED.to_owned(),
        Verdict::NotJudged => "steps or 10 s of work are needed to judge leaks".to_owned(),
    }
}

fn has(checks: &[Check], topic: Topic, checked: Checked) -> bool {
    checks.contains(&Check { topic, checked })
}

/// What was judged, and nothing else.
fn nothing_found(checks: &[Check]) -> &'static str {
    let is_judged = |topic| has(checks, topic, Checked::NotFound);
    match (is_judged(Topic::Leaks), is_judged(Topic::Growth)) {
        (true, false) => "no leak by steps; growth was not judged",
        (false, true) => "no growth; leaks by steps were not judged",
        _ => "no leak and no growth",
    }
}

/// The request that failed.
fn asked(failed: &FailedRequest, start_ns: u64) -> String {
    let at = seconds(failed.time_ns.saturating_sub(start_ns));
    let attempts = counted(failed.attempts.into(), "attempt");
    let more = match failed.failed {
        0 | 1 => String::new(),
        failed => format!("; {failed} requests failed"),
    };
    format!("{} asked for at {at}, {attempts}{more}", rounded(failed.size_bytes.into()))
}

/// Why, from where, and what helps.
fn write_cause(page: &mut Page, failed: &FailedRequest, advice: Option<&Advised>) {
    let size = |bytes: u64| rounded(bytes.into());
    let cause = match failed.cause {
        Cause::NotGiven { largest_bytes } => {
            format!("a free piece of {} was not given: pools keep pieces apart", size(largest_bytes))
        }
        Cause::Fragmented { unused_bytes, largest_bytes } => {
            let largest = largest_bytes.map(|largest| format!(", largest {}", size(largest))).unwrap_or_default();
            format!("fragmentation: {} is cached in pieces{largest}", size(unused_bytes))
        }
        Cause::Limit { unused_bytes } => {
            format!("the pool's own limit (memory fraction); {} is cached", size(unused_bytes))
        }
        Cause::Full { missing_bytes, unused_bytes: 0 } => {
            format!("no pool has unused memory; up to {} is missing", size(missing_bytes))
        }
        Cause::Full { missing_bytes, unused_bytes } => {
            format!("up to {} is missing, even without the cache ({})", size(missing_bytes), size(unused_bytes))
        }
    };
    page.line(vec![(Tone::Title, "   CAUSE    ".to_owned()), (Tone::Plain, cause)]);
    // A helper that allocates is called from everywhere.
    let frames: Vec<String> = user_frames::of(failed.stacks, 2).iter().map(frame_text).collect();
    if !frames.is_empty() {
        let asked = frames.join(if page.look.unicode { "  ←  " } else { "  <-  " });
        page.line(vec![(Tone::Title, "   ASKED    ".to_owned()), (Tone::Plain, asked)]);
    }
    if let Some(Advised { text, .. }) = advice.filter(|advice| advice.is_setting) {
        page.line(vec![(Tone::Title, "   ADVICE   ".to_owned()), (Tone::Plain, text.clone())]);
    }
}

fn rate_of(place: &Place) -> Option<f64> {
    if let Detail::Rate(bytes_per_second, _) = place.detail { Some(bytes_per_second) } else { None }
}

fn hourly(bytes_per_second: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, rounded")]
    rounded((bytes_per_second * 3600.0) as u128)
}

/// Lines below the head of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lines {
    frames: usize,
    holders: usize,
}

/// User frames of a place: as many as a screen has, and as many helpers before them.
fn frames_of(place: &Place) -> Vec<UserFrame> {
    user_frames::of(place.stacks, 2 * FRAMES[0])
}

/// Innermost frames that another place has, too.
fn helpers(own: &[UserFrame], places: &[Vec<UserFrame>]) -> usize {
    let in_common = |other: &Vec<UserFrame>| own.iter().zip(other).take_while(|(one, other)| one == other).count();
    let most = places.iter().filter(|other| other.as_slice() != own).map(in_common).max().unwrap_or(0);
    if most < own.len() { most } else { 0 }
}

fn frame_text(UserFrame { at, function }: &UserFrame) -> String {
    if function.is_empty() { at.clone() } else { format!("{at}  {function}") }
}

/// Of `count` places those that are shown in `left` lines, and how much of what each of them `has`. Another place says more than another frame
/// of the first, and a holder more than the second frame.
fn plan(has: &[Lines], count: usize, left: usize) -> Vec<Lines> {
    let mut left = left;
    let mut plan: Vec<Lines> = Vec::new();
    for number in 0..has.len() {
        let is_last = number + 1 == count;
        // One line says that there are more.
        if left.saturating_sub(usize::from(!is_last)) < 2 {
            break;
        }
        left -= 2;
        plan.push(Lines { frames: 1, holders: 0 });
    }
    if plan.len() < count {
        left = left.saturating_sub(1);
    }
    for round in 1..=FRAMES[0].max(HOLDERS[0]) {
        for (lines, has) in plan.iter_mut().zip(has) {
            if left > 0 && lines.holders < has.holders.min(round) {
                (lines.holders, left) = (lines.holders + 1, left - 1);
            }
            if left > 0 && lines.frames < has.frames.min(1 + round) {
                (lines.frames, left) = (lines.frames + 1, left - 1);
            }
        }
    }
    plan
}

/// Writes places, in no more than `room` lines. Whether there was room for one.
fn write_places(page: &mut Page, process: &ProcessOverview, room: usize) -> bool {
    let holds = process.places.first().is_some_and(|place| place.role == Role::Holds);
    let title = if holds && process.verdict != Verdict::OutOfMemory { Some(" HELD THE MOST") } else { None };
    let left = room.saturating_sub(1 + usize::from(title.is_some()));
    if process.places.is_empty() || left < 2 {
        return false;
    }
    page.blank();
    if let Some(title) = title {
        page.line(vec![(Tone::Title, title.to_owned())]);
    }
    let mut shown: Vec<Vec<UserFrame>> = process.places.iter().take(MAX_PLACES).map(frames_of).collect();
    let has = process.places.iter().zip(&shown).enumerate().map(|(number, (place, own))| Lines {
        frames: own.len().min(FRAMES[number.min(1)]),
        holders: place.held_by.len().min(HOLDERS[number.min(1)]),
    });
    let plan = plan(&has.collect::<Vec<_>>(), process.places.len(), left);
    shown.truncate(plan.len());
    for (number, (place, Lines { frames, holders })) in process.places.iter().zip(&plan).enumerate() {
        let own = &shown[number];
        // With one line each, frames that several places have do not name one.
        let first = if *frames == 1 { helpers(own, &shown) } else { 0 };
        write_place(page, process, number, own.get(first..).unwrap_or(own).get(..*frames).unwrap_or(own));
        place.held_by.iter().take(*holders).for_each(|line| page.plain(format!("     {line}")));
    }
    let written = plan.len();
    let more = process.places.len() - written;
    if more > 0 {
        page.line(vec![(Tone::Faint, format!("   … {} (-v)", counted(more as u64, "more place")))]);
    }
    true
}

/// Writes the place of this number from 0.
fn write_place(page: &mut Page, process: &ProcessOverview, number: usize, frames: &[UserFrame]) {
    let place = &process.places[number];
    let live = format!("{} in {}", rounded(place.live.size_bytes.into()), counted(place.live.blocks, "block"));
    let share = format!("{:3.0} %", place.share * 100.0);
    let device = if process.devices.len() > 1 { format!("  {}", device_word(place.device)) } else { String::new() };
    let text = match place.detail {
        Detail::Steps(steps, [first, last]) => {
            format!("{live} of {} ({first} to {last})  {share}{device}", counted(steps.into(), "step"))
        }
        Detail::Rate(rate, lows) => format!("{} an hour  {share}  {live}{device}  {}", hourly(rate), page.spark(&lows)),
        Detail::Increase(LiveSum { blocks: 0, size_bytes }) => {
            let live = counted(place.live.blocks, "block");
            format!("+{}, {live} at a time, ever larger{device}", rounded(size_bytes.into()))
        }
        Detail::Increase(more) => {
            let (bytes, blocks) = (rounded(more.size_bytes.into()), counted(more.blocks, "block"));
            format!("+{bytes} in {blocks}, {} live{device}", place.live.blocks)
        }
        Detail::None => format!("{live}  {share}{device}  {}", page.bar(place.share)),
    };
    page.line(vec![(Tone::Title, format!(" #{}  ", number + 1)), (Tone::Plain, text)]);
    for frame in frames {
        page.plain(format!("     {}", frame_text(frame)));
    }
    if frames.is_empty() && !place.found.is_empty() {
        page.plain(format!("     {}", found_text(place)));
    } else if frames.is_empty() {
        let what = match place.each_bytes {
            Some(each) => format!("blocks of {}", rounded(each.into())),
            None => "blocks".to_owned(),
        };
        page.plain(format!("     {what} of {}; no call stack{}", place.pool.title(), why_no_stack(process, place)));
    }
}

/// What blocks from before the attach are for: the two largest purposes, and the rest of the place.
fn found_text(place: &Place) -> String {
    let known = place.found.iter().filter_map(|sum| Some((sum.held_as?.component(), sum.live.size_bytes)));
    let mut parts: Vec<(&str, u64)> = known.map(|(name, size_bytes)| (name.as_str(), size_bytes)).take(2).collect();
    let shown: u64 = parts.iter().map(|(_, size_bytes)| *size_bytes).fold(0, u64::saturating_add);
    let rest = place.live.size_bytes.saturating_sub(shown);
    if parts.is_empty() {
        return "from before the attach: no purpose is known".to_owned();
    }
    if rest > 0 {
        parts.push(("others", rest));
    }
    let parts: Vec<String> =
        parts.iter().map(|(name, size_bytes)| format!("{name} {}", rounded((*size_bytes).into()))).collect();
    format!("from before: {}", parts.join(", "))
}

/// Stacks at other places show that they were asked for.
fn why_no_stack(process: &ProcessOverview, place: &Place) -> &'static str {
    let is_of_other_thread = place.stacks.python.is_some_and(|stack| stack.end() == StackEnd::NotPython);
    match (process.has_stacks, process.attached) {
        (false, _) => ": add --call-stack=python",
        (true, _) if is_of_other_thread => ": no Python; try --call-stack=c",
        (true, true) => ": perhaps from before the attach",
        (true, false) => "",
    }
}

/// Writes who owned the blocks of a pool at its peak.
fn write_owners(page: &mut Page, table: &OwnersTable, end: &RunEnd) {
    /// Rows at most, the rest in one.
    const ROWS: usize = 6;
    page.blank();
    let at = seconds(table.time_ns.saturating_sub(end.start_ns));
    let title = format!(" OWNERS AT THE PEAK OF THE {} ({at}), {}", table.pool.title(), device_word(table.device));
    page.line(vec![(Tone::Title, title)]);
    let shown = if table.rows.len() > ROWS { ROWS - 1 } else { ROWS };
    table.rows.iter().take(shown).for_each(|row| write_row(page, row, table.total_bytes));
    let rest = &table.rows[shown.min(table.rows.len())..];
    if !rest.is_empty() {
        let size_bytes = rest.iter().map(|row| row.size_bytes).sum();
        let label = format!("{} more owners (-v)", rest.len());
        write_row(page, &MemoryRow { label, size_bytes, is_part: false }, table.total_bytes);
    }
    page.plain(format!("{:<LABELS$}{:>11}", "   = all", rounded(table.total_bytes)));
}

/// Writes a row, with its share of the whole.
fn write_row(page: &mut Page, row: &MemoryRow, total_bytes: u128) {
    let label = format!("{}{}", if row.is_part { "     " } else { "   " }, row.label);
    let share = row.size_bytes as f64 / total_bytes.max(1) as f64;
    let (size, percent) = (rounded(row.size_bytes), share * 100.0);
    page.plain(format!("{label:<LABELS$}{size:>11} {percent:5.1} %  {}", page.bar(share)));
}

fn write_memory(page: &mut Page, table: &MemoryTable, end: &RunEnd) {
    page.blank();
    let at = seconds(table.time_ns.saturating_sub(end.start_ns));
    let title = match table.when {
        When::FailedRequest => format!(" MEMORY AT THE FAILED REQUEST ({at})"),
        When::At(Moment::Peak) => format!(" MEMORY AT THE PEAK ({at})"),
        When::At(Moment::End) => " MEMORY AT THE END".to_owned(),
        When::At(Moment::Now) => " MEMORY NOW".to_owned(),
    };
    page.line(vec![(Tone::Title, format!("{title}, {}", device_word(table.device)))]);
    for row in &table.rows {
        write_row(page, row, table.total_bytes);
    }
    if table.rows.iter().filter(|row| !row.is_part).count() > 1 {
        page.plain(format!("{:<LABELS$}{:>11}", "   = all", rounded(table.total_bytes)));
    }
    if let Some((used, capacity)) = table.device_bytes {
        page.plain(format!("   device: {} of {} in use", rounded(used), rounded(capacity.into())));
    }
}

/// The table of the device that the verdict is about; without one, of the fullest.
fn shown_table(process: &ProcessOverview) -> Option<&MemoryTable> {
    let at_fault = process.places.first().filter(|_| !is_quiet(process.verdict)).map(|place| place.device);
    let tables = || process.memory.iter().rev();
    tables().find(|table| Some(table.device) == at_fault).or_else(|| tables().max_by_key(|table| table.total_bytes))
}

/// A line with the sums of the other devices.
fn write_other_devices(page: &mut Page, shown: Device, tables: &[MemoryTable]) {
    let others = tables.iter().filter(|table| table.device != shown);
    let sums: Vec<String> =
        others.map(|table| format!("{} {}", device_word(table.device), rounded(table.total_bytes))).collect();
    if !sums.is_empty() {
        page.plain(format!("   other devices: {}", sums.join(", ")));
    }
}

fn write_checks(page: &mut Page, checks: &[Check]) {
    page.blank();
    let mut pieces = vec![(Tone::Title, " CHECKS  ".to_owned())];
    let mut used = 9;
    for (number, Check { topic, checked }) in checks.iter().enumerate() {
        let (tone, answer) = match checked {
            Checked::Found => (Tone::Alarm, "found".to_owned()),
            Checked::Undecided => (Tone::Doubt, "undecided".to_owned()),
            Checked::NotFound => (Tone::Good, "none".to_owned()),
            Checked::NotJudged(why) => (Tone::Doubt, format!("not judged ({why})")),
        };
        let between = if number + 1 < checks.len() { ", " } else { "" };
        let text = format!("{}: {answer}{between}", topic.word());
        let count = text.chars().count();
        if used + count > page.look.width {
            trim_end(&mut pieces);
            page.line(std::mem::take(&mut pieces));
            pieces.push((Tone::Plain, " ".repeat(9)));
            used = 9;
        }
        used += count;
        pieces.push((tone, text));
    }
    page.line(pieces);
}

/// Takes blanks off the end of a line.
fn trim_end(pieces: &mut [(Tone, String)]) {
    if let Some((_, last)) = pieces.last_mut() {
        last.truncate(last.trim_end().len());
    }
}

/// A line for each further process.
fn write_others(page: &mut Page, others: &[ProcessOverview], most: usize) {
    for process in others.iter().take(most) {
        let word = match process.verdict {
            Verdict::OutOfMemory => "out of memory",
            Verdict::Leak => "leak",
            Verdict::Growing => "growing",
            Verdict::Undecided => "undecided",
            Verdict::NothingFound => "nothing found",
            Verdict::NotJudged => "not judged",
        };
        page.plain(format!(" pid {}: {word}{}", process.pid, figure(process)));
    }
    if let Some(more) = others.len().checked_sub(most).filter(|more| *more > 0) {
        page.line(vec![(
            Tone::Faint,
            format!(
                " … {} (-v)",
                if more == 1 { "1 more process".to_owned() } else { format!("{more} more processes") }
            ),
        )]);
    }
}

/// The bytes behind the verdict of a process, or else its memory, where that was counted.
fn figure(process: &ProcessOverview) -> String {
    let behind = process.places.iter().filter(|place| place.role != Role::Holds);
    let (places, bytes) =
        behind.fold((0_u64, 0_u128), |(places, bytes), place| (places + 1, bytes + u128::from(behind_bytes(place))));
    if places > 0 {
        format!(", {} at {}", rounded(bytes), counted(places, "place"))
    } else if process.memory.is_empty() {
        String::new()
    } else {
        format!(", {}", rounded(process.memory.iter().map(|table| table.total_bytes).sum::<u128>()))
    }
}

/// The bytes of a place that its process's verdict is about.
fn behind_bytes(place: &Place) -> u64 {
    match place.detail {
        Detail::Increase(more) => more.size_bytes,
        _ => place.live.size_bytes,
    }
}

#[cfg(test)]
mod tests;
