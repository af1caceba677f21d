//! Lines to cells.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::state::State;
use super::view::View;
use super::{head, lists};

/// Lines of a screen without a terminal.
const TEXT_LINES: u16 = 40;

const HELP: [&str; 18] = [
    " KEYS",
    "   space    pause: the figures stay, the trace goes on",
    "   s        sort places: growth, live, peak, blocks",
    "   p, Tab   next process, then all",
    "   l        next layer: pools (driver blocks where there are none), then each alone",
    "   ↑ ↓      choose a place (also k, j)",
    "   Enter    call stack of the place",
    "   /        show places with a text in their name, stack or layer; Enter keeps it, Esc clears it",
    "   e        explain the place by the last minutes: what grows or fails, and what to try",
    "   f        frames of frameworks, too",
    "   r        write a report of the last minutes, as a page for a browser",
    "   h, ?     this help",
    "   q        quit; the traced program goes on",
    "",
    " LIVE allocated and not freed   CACHED held by the pool and free   +/MIN change in a minute",
    " OLDEST age of the oldest live block   SURE whether it grows: yes, open (evidence too weak),",
    " no, – (not judged before 10 s)",
    " Layers nest: bytes of the driver and of its pools are never added up.",
];

/// Draws everything.
pub(crate) fn draw(state: &State, view: &View, area: Rect, buffer: &mut Buffer) {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let room = height.saturating_sub(1);
    let mut lines = vec![head::first_line(state, view)];
    if view.help {
        lines.extend(HELP.map(Line::raw));
    } else {
        body(state, view, (width, room), &mut lines);
    }
    lines.truncate(room);
    for (y, line) in (area.y..).zip(&lines) {
        buffer.set_line(area.x, y, line, area.width);
    }
    if let Some(y) = area.bottom().checked_sub(1).filter(|y| *y > area.y) {
        buffer.set_line(area.x, y, &last_line(state, view, width), area.width);
    }
}

/// Devices, pools, owners, places: each gets a part of the lines.
fn body(state: &State, view: &View, (width, room): (usize, usize), lines: &mut Vec<Line<'static>>) {
    let pools = (room / 5).max(2);
    lines.extend(head::device_lines(state, (room / 8).max(1), width));
    lines.extend(head::pool_lines(state, view, pools));
    if let Some(explanation) = &view.explanation {
        let wrapped = explanation.iter().flat_map(|line| super::words::wrap(line, width));
        lines.extend(wrapped.map(Line::raw));
        return;
    }
    if view.stack {
        let left = room.saturating_sub(lines.len());
        lines.extend(lists::stack_lines(state, view, left));
        return;
    }
    let left = room.saturating_sub(lines.len());
    lines.extend(lists::owner_lines(state, view, (left / 3).max(1)));
    // Its title is a line, too.
    let left = room.saturating_sub(lines.len() + 1);
    lines.extend(lists::place_lines(state, view, left, width));
}

/// What became of the last key, what the trace says, or the keys.
fn last_line(state: &State, view: &View, width: usize) -> Line<'static> {
    let faint = Style::new().add_modifier(Modifier::DIM);
    if view.searches {
        let text = super::words::clean(&view.search);
        return Line::styled(format!(" /{text}█  Enter keep  Esc clear"), Style::new().fg(Color::Yellow));
    }
    match (&view.note, state.message()) {
        (Some(note), _) => Line::styled(format!(" {}", super::words::clean(note)), Style::new().fg(Color::Yellow)),
        (None, Some(message)) => Line::styled(format!(" {}", super::words::clean(message)), faint),
        (None, None) => Line::styled(keys(view, width), faint),
    }
}

/// The keys, as many as find room.
fn keys(view: &View, width: usize) -> String {
    let clean = super::words::clean;
    let search = if view.search.is_empty() { "search".to_owned() } else { format!("\"{}\"", clean(&view.search)) };
    let layer = clean(view.layer.map_or("auto", |pool| pool.event_type()));
    let first =
        format!(" q quit  space pause  s sort: {}  / {search}  e explain  Enter stack  h help", view.sort.word());
    let more = format!("  r report  p process  l layer: {layer}  f frames");
    if first.chars().count() + more.chars().count() <= width { first + &more } else { first }
}

/// The same as text, for where there is no terminal.
pub(crate) fn text(state: &State, width: u16) -> String {
    let area = Rect::new(0, 0, width, TEXT_LINES);
    let mut buffer = Buffer::empty(area);
    draw_plain(state, area, &mut buffer);
    let mut text: Vec<String> = lines_of(&buffer);
    while text.last().is_some_and(String::is_empty) {
        text.pop();
    }
    text.push(String::new());
    text.join("\n")
}

/// Without the line of keys.
fn draw_plain(state: &State, area: Rect, buffer: &mut Buffer) {
    let view = View::default();
    let mut lines = vec![head::first_line(state, &view)];
    body(state, &view, (usize::from(area.width), usize::from(area.height)), &mut lines);
    for (y, line) in (area.y..area.bottom()).zip(&lines) {
        buffer.set_line(area.x, y, line, area.width);
    }
}

/// The cells of each line, without spaces at its end.
pub(super) fn lines_of(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
    lines.map(|cells| line(cells).trim_end().to_owned()).collect()
}
