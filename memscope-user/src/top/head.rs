//! The first lines: how full, how fast, what each pool has.

use jiff::{Timestamp, tz::TimeZone};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::lists::title;
use super::state::{Full, State};
use super::view::View;
use super::words::{bar, bytes, clean, count, curve, cut, per_minute, rate, time};
use crate::analyses::live_use::Moment;
use crate::analyses::sample::PoolSample;

/// Forecasts beyond this say nothing.
const LONGEST_SECONDS: f64 = 7.0 * 86_400.0;
/// From this share on a device is shown as nearly full.
const NEARLY_FULL: f64 = 0.95;

/// Program, process, time, loss.
pub(super) fn first_line(state: &State, view: &View) -> Line<'static> {
    let mut spans = vec![Span::styled(" memscope-bpf top", Style::new().add_modifier(Modifier::BOLD))];
    let Some(moment) = state.moment() else {
        spans.push(Span::raw("  waiting for the first sample"));
        return Line::from(spans);
    };
    spans.push(Span::raw(format!("  {}", processes(moment, view))));
    spans.push(Span::raw(format!("  {}", wall(moment.sample.time_ns))));
    spans.push(match moment.sample.lost {
        0 => Span::raw("  lost 0"),
        lost => Span::styled(format!("  LOST {lost}: figures may be off"), Style::new().fg(Color::Red)),
    });
    if view.paused {
        spans.push(Span::styled("  PAUSED", Style::new().fg(Color::Yellow)));
    } else if state.has_ended() {
        spans.push(Span::styled("  ENDED", Style::new().fg(Color::Yellow)));
    }
    Line::from(spans)
}

fn processes(moment: &Moment, view: &View) -> String {
    let all: Vec<u32> = match view.pid {
        Some(pid) => vec![pid],
        None => moment.sample.processes.iter().map(|process| process.pid).collect(),
    };
    let name = |pid: u32| moment.names.iter().find(|name| name.pid == pid).map_or("?", |name| name.command.as_str());
    match all[..] {
        [] => "no process".to_owned(),
        [pid] => format!("{} (pid {pid})", cut(&clean(name(pid)), 16)),
        [pid, ..] => format!("{} (pid {pid}) and {} more", cut(&clean(name(pid)), 16), all.len() - 1),
    }
}

/// The wall clock of this machine's zone.
fn wall(time_ns: u64) -> String {
    let wall = Timestamp::from_nanosecond(time_ns.into()).unwrap_or_default().to_zoned(TimeZone::system());
    wall.strftime("%T").to_string()
}

/// How full each device is: two lines each, at most `most` devices.
pub(super) fn device_lines(state: &State, most: usize, width: usize) -> Vec<Line<'static>> {
    let all = state.full();
    let mut lines = Vec::new();
    for full in all.iter().take(most) {
        lines.push(full_line(full, width));
        let figures = state.curve(full.device);
        // One point says nothing.
        if figures.len() > 1 {
            let shown = width.saturating_sub(30).min(120);
            lines.push(Line::raw(format!("         {}  last 10 min", curve(&figures, shown))));
        }
    }
    if all.len() > most {
        lines.push(Line::raw(format!(" … and {} more devices", all.len() - most)));
    }
    lines
}

fn full_line(full: &Full, width: usize) -> Line<'static> {
    let device = full.device.name_or("unknown");
    let Some(total) = full.total_bytes.filter(|total| *total > 0) else {
        let rate = rate(full.per_minute);
        let used = bytes(full.used_bytes);
        return Line::raw(format!(
            " {device:<7} {used} of the driver in use, {rate}/min; total unknown (doctor says why)"
        ));
    };
    let share = full.used_bytes as f64 / total as f64;
    let columns = width.saturating_sub(70).clamp(10, 40);
    let colour = if share >= NEARLY_FULL { Style::new().fg(Color::Red) } else { Style::new().fg(Color::Green) };
    let soon = full.seconds_left.filter(|seconds| *seconds < LONGEST_SECONDS);
    let forecast = soon.map(|seconds| format!("  full in {}", time(seconds))).unwrap_or_default();
    Line::from(vec![
        Span::raw(format!(" {device:<7} {} of {} ", bytes(full.used_bytes), bytes(total))),
        Span::styled(bar(share, columns), colour),
        Span::raw(format!(" {:.0} %  {}/min{forecast}", 100.0 * share, rate(full.per_minute))),
    ])
}

/// A line for each pool, at most `most`, and a title.
pub(super) fn pool_lines(state: &State, view: &View, most: usize) -> Vec<Line<'static>> {
    let Some(moment) = state.moment() else { return Vec::new() };
    let mut lines = vec![title(format!(
        " {:<22} {:>9} {:>9} {:>10} {:>9} {:>7} {:>7}",
        "POOL", "LIVE", "PEAK", "+/MIN", "CACHED", "ALLOC/S", "FREE/S"
    ))];
    let shown = moment.sample.processes.iter().filter(|process| view.pid.is_none_or(|pid| pid == process.pid));
    let pools: Vec<(u32, &PoolSample)> =
        shown.flat_map(|process| process.pools.iter().map(|pool| (process.pid, pool))).collect();
    let many = moment.sample.processes.len() > 1;
    for &(pid, pool) in pools.iter().take(most) {
        lines.push(pool_line(pid, pool, many));
    }
    if pools.len() > most {
        lines.push(Line::raw(format!(" … and {} more pools", pools.len() - most)));
    }
    lines
}

fn pool_line(pid: u32, pool: &PoolSample, many: bool) -> Line<'static> {
    let device = pool.device.name_or("?");
    let process = if many { format!(" {pid}") } else { String::new() };
    let name = format!("{} {device}{process}", clean(pool.pool.event_type()));
    let cached = pool.space.map_or_else(|| "–".to_owned(), |space| bytes(space.free_bytes));
    let per_second = |rate: Option<f64>| rate.map_or_else(|| "–".to_owned(), count);
    let text = format!(
        " {:<22} {:>9} {:>9} {:>10} {cached:>9} {:>7} {:>7}",
        cut(&name, 22),
        bytes(pool.live_bytes.saturating_add(pool.unseen_bytes)),
        bytes(pool.peak_bytes),
        rate(per_minute(pool.recent)),
        per_second(pool.allocations_per_second),
        per_second(pool.frees_per_second),
    );
    if pool.failed == 0 {
        return Line::raw(text);
    }
    Line::from(vec![Span::raw(text), Span::styled(format!("  FAILED {}", pool.failed), Style::new().fg(Color::Red))])
}
