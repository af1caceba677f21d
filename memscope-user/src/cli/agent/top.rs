//! `agent top`: who holds the memory of this machine, as a table.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    text::Line,
};
use serde::Serialize;

use super::ask_status;
use crate::{
    agent::control::{LargestPlace, PoolStatus, ProcessStatus, Status},
    cli::{
        args::{AgentTopArgs, By},
        signals::Signals,
        terminal,
        top::terminal::{Key, Terminal, has_keys},
    },
    printable::{self, OneLine},
    session::text::size,
    text::numbers::counted,
    top::Input,
};

/// Keys are looked for.
const ROUND: Duration = Duration::from_millis(250);
/// From one question to the next. Figures are of the agent's last page.
const PAUSE: Duration = Duration::from_secs(1);
const KEYS: &str = " q quit  b by process, pod, device  ↑ ↓ further rows";

/// What one row holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Row {
    device: String,
    pool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    processes: usize,
    /// Those of them that are not traced for a while: the sums of their pools are read.
    left_out_processes: usize,
    /// Those that are traced without their pools for a while: the sums of these are read.
    reduced_processes: usize,
    live_bytes: u64,
    untracked_bytes: u64,
    /// Of those processes that are known for ten minutes.
    growth_bytes_per_second: Option<f64>,
    largest: Option<LargestPlace>,
}

impl Row {
    fn new(process: &ProcessStatus, pool: &PoolStatus, by: By) -> Self {
        let text = |text: &String, shown: bool| shown.then(|| text.clone());
        let (is_process, is_pod) = (by == By::Process, by != By::Device);
        Self {
            device: pool.device.clone(),
            pool: pool.pool.clone(),
            pid: is_process.then_some(process.pid),
            command: text(&process.command, is_process),
            namespace: text(&process.namespace, is_pod),
            pod: text(&process.pod, is_pod),
            container: text(&process.container, is_process),
            ..Self::default()
        }
    }

    fn add(&mut self, process: &ProcessStatus, pool: &PoolStatus) {
        self.processes += 1;
        self.left_out_processes += usize::from(process.left_out);
        self.reduced_processes += usize::from(process.reduced);
        self.live_bytes = self.live_bytes.saturating_add(pool.live_bytes);
        self.untracked_bytes = self.untracked_bytes.saturating_add(pool.untracked_bytes);
        if let Some(growth) = pool.growth_bytes_per_second {
            *self.growth_bytes_per_second.get_or_insert_default() += growth;
        }
        let bytes = |place: &Option<LargestPlace>| place.as_ref().map(|place| place.live_bytes);
        if bytes(&pool.largest) > bytes(&self.largest) {
            self.largest.clone_from(&pool.largest);
        }
    }

    /// Who it is.
    fn who(&self) -> String {
        let place = [&self.namespace, &self.pod, &self.container].into_iter().flatten().map(String::as_str);
        let place = place.filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
        match (self.pid, &self.command) {
            (Some(pid), Some(command)) => format!("{pid} {command} {place}").trim_end().to_owned(),
            _ if !place.is_empty() => place,
            _ if self.pod.is_some() => "(no pod)".to_owned(),
            _ => counted(self.processes as u64, "process"),
        }
    }
}

/// The table, as `--json` has it.
#[derive(Debug, Serialize)]
struct Table {
    schema: &'static str,
    by: &'static str,
    level: u8,
    lost: u64,
    /// The largest first. Pools nest: blocks of a pool lie in blocks of the driver.
    rows: Vec<Row>,
}

impl Table {
    fn new(status: &Status, by: By) -> Self {
        let mut rows: BTreeMap<_, Row> = BTreeMap::new();
        for process in &status.processes {
            for pool in &process.pools {
                let row = Row::new(process, pool, by);
                let key = (
                    row.device.clone(),
                    row.pool.clone(),
                    row.namespace.clone(),
                    row.pod.clone(),
                    row.container.clone(),
                    row.pid,
                );
                rows.entry(key).or_insert(row).add(process, pool);
            }
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.live_bytes));
        let by = match by {
            By::Pod => "pod",
            By::Process => "process",
            By::Device => "device",
        };
        Self { schema: "memscope/agent-top/1", by, level: status.level, lost: status.lost, rows }
    }

    /// Its lines: what it is of, titles, rows.
    fn lines(&self, status: &Status) -> Vec<String> {
        let Status { version, level, lost, processes, .. } = status;
        let (left_out, traced): (Vec<_>, Vec<_>) = processes.iter().partition(|process| process.left_out);
        let traced = counted(traced.len() as u64, "process");
        let also = if left_out.is_empty() { String::new() } else { format!(", {} left out", left_out.len()) };
        let mut lines = vec![format!("agent {version}: level {level}, {lost} lost, {traced} traced{also}")];
        let cells: Vec<[String; 7]> = self.rows.iter().map(cells).collect();
        let titles = ["DEVICE", "POOL", "LIVE", "+/MIN", &self.by.to_uppercase(), "LARGEST", "PLACE"];
        let width = |column: usize| {
            let all = cells.iter().map(|row| row[column].chars().count());
            all.chain([titles[column].len()]).max().unwrap_or_default()
        };
        let widths: [usize; 7] = std::array::from_fn(width);
        let line = |row: [&str; 7]| {
            let mut line = String::new();
            for (column, (cell, width)) in row.into_iter().zip(widths).enumerate() {
                // Memory takes everything.
                let _ = match column {
                    2 | 3 | 5 => write!(line, "{cell:>width$}  "),
                    6 => write!(line, "{cell}"),
                    _ => write!(line, "{cell:width$}  "),
                };
            }
            line.trim_end().to_owned()
        };
        lines.push(line(titles));
        lines.extend(cells.iter().map(|row| line(row.each_ref().map(String::as_str))));
        lines
    }
}

fn cells(row: &Row) -> [String; 7] {
    let growth = row.growth_bytes_per_second.map_or_else(
        || "–".to_owned(),
        |rate| format!("{}{}", if rate < 0.0 { '-' } else { '+' }, size((rate.abs() * 60.0) as u64)),
    );
    let (largest, place) = match &row.largest {
        Some(LargestPlace { place, live_bytes }) => (size(*live_bytes), place.clone()),
        None if row.left_out_processes > 0 => (String::new(), "left out of the trace: its sums are read".to_owned()),
        None if row.reduced_processes > 0 => (String::new(), "traced without its pool: its sums are read".to_owned()),
        None => (String::new(), String::new()),
    };
    let cells = [row.device.clone(), row.pool.clone(), size(row.live_bytes), growth, row.who(), largest, place];
    cells.map(|cell| OneLine(cell).to_string())
}

/// Shows the table: on a terminal until a key or a signal comes, else once.
pub(super) fn run(args: &AgentTopArgs) -> Result<()> {
    if !args.json && !args.once && terminal::shows_output() && has_keys() {
        return show(args);
    }
    let status = ask_status(&args.socket)?;
    let table = Table::new(&status, args.by);
    let (style, text) = if args.json {
        (printable::Style::Json, serde_json::to_string_pretty(&table)? + "\n")
    } else {
        (printable::Style::Text, table.lines(&status).join("\n") + "\n")
    };
    terminal::print_as(style, None, |out| out.write_all(text.as_bytes())).context("cannot print the table")
}

/// What is on the screen.
struct Screen {
    by: By,
    /// Rows above the first one that is shown.
    above: usize,
}

fn show(args: &AgentTopArgs) -> Result<()> {
    // The first answer comes before the screen, so that a refusal stays on the terminal.
    let mut status = ask_status(&args.socket)?;
    let screen = "the screen cannot be shown";
    Signals::block().context(screen)?;
    let signals = Signals::without_runtime().context(screen)?;
    let mut terminal = Terminal::open().context(screen)?;
    let mut view = Screen { by: args.by, above: 0 };
    let mut asked = Instant::now();
    while !matches!(signals.read_signal(), Ok(Some(_))) {
        if asked.elapsed() >= PAUSE {
            status = ask_status(&args.socket)?;
            asked = Instant::now();
        }
        let lines = Table::new(&status, view.by).lines(&status);
        view.above = view.above.min(lines.len().saturating_sub(3));
        terminal.draw_by(|area, buffer| draw(&lines, view.above, area, buffer)).context(screen)?;
        if key(&mut view).context(screen)? {
            break;
        }
    }
    Ok(())
}

/// Waits for a key. Says whether it ends the screen.
fn key(view: &mut Screen) -> io::Result<bool> {
    match Terminal::key(ROUND)? {
        Some(Key::Interrupt | Key::Input(Input::Letter('q'))) => return Ok(true),
        Some(Key::Input(Input::Letter('b'))) => {
            view.by = match view.by {
                By::Process => By::Pod,
                By::Pod => By::Device,
                By::Device => By::Process,
            };
        }
        Some(Key::Input(Input::Down | Input::Letter('j'))) => view.above += 1,
        Some(Key::Input(Input::Up | Input::Letter('k'))) => view.above = view.above.saturating_sub(1),
        _ => {}
    }
    Ok(false)
}

/// Two lines of head, rows, and the keys below.
fn draw(lines: &[String], above: usize, area: Rect, buffer: &mut Buffer) {
    let Some(last) = area.height.checked_sub(1) else { return };
    let (head, rows) = lines.split_at(lines.len().min(2));
    let shown = head.iter().chain(rows.iter().skip(above)).take(usize::from(last));
    for (y, line) in (area.y..).zip(shown) {
        buffer.set_line(area.x, y, &Line::raw(line.as_str()), area.width);
    }
    let keys = Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM));
    buffer.set_line(area.x, area.y + last, &keys, area.width);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(device: &str, pool: &str, live_bytes: u64, growth: Option<f64>, largest: (&str, u64)) -> PoolStatus {
        PoolStatus {
            device: device.into(),
            pool: pool.into(),
            live_bytes,
            growth_bytes_per_second: growth,
            largest: Some(LargestPlace { place: largest.0.into(), live_bytes: largest.1 }),
            ..PoolStatus::default()
        }
    }

    fn process(pid: u32, pod: &str, pools: Vec<PoolStatus>) -> ProcessStatus {
        let (command, container) = ("python".into(), String::new());
        ProcessStatus {
            pid,
            command,
            namespace: "team".into(),
            pod: pod.into(),
            container,
            pools,
            ..Default::default()
        }
    }

    /// Two processes of a pod and one of another: 1 MiB a minute is 17 476.27 bytes a second.
    fn status() -> Status {
        const MIB: u64 = 1 << 20;
        let processes = vec![
            process(
                7,
                "a",
                vec![
                    pool("npu:0", "HAL", 64 * MIB, None, ("serve main", 64 * MIB)),
                    pool("npu:0", "PTA", 30 * MIB, Some(17_476.27), ("kv.py:3 grow", 20 * MIB)),
                ],
            ),
            process(8, "a", vec![pool("npu:0", "PTA", 10 * MIB, Some(-34_952.54), ("a.py:9 f", 10 * MIB))]),
            process(9, "b\nforged", vec![pool("npu:0", "PTA", 50 * MIB, None, ("b.py:1 g", 50 * MIB))]),
        ];
        Status { version: "1".into(), processes, ..Status::default() }
    }

    fn of(by: By) -> Vec<(String, u64, Option<f64>, Option<LargestPlace>)> {
        let rows = Table::new(&status(), by).rows.into_iter();
        rows.map(|row| {
            (format!("{} {}", row.pool, row.who()), row.live_bytes, row.growth_bytes_per_second, row.largest)
        })
        .collect()
    }

    /// The largest first, sums by pod and device; growth of those that have one; the largest place of any of them.
    #[test]
    fn rows_are_by_process_pod_and_device() {
        let mib = |row: &(String, u64, Option<f64>, Option<LargestPlace>)| {
            let largest = row.3.as_ref().expect("a place");
            (row.0.clone(), row.1 >> 20, row.2.map(f64::round), largest.place.clone(), largest.live_bytes >> 20)
        };
        let row = |who: &str, live: u64, growth: Option<f64>, place: &str, bytes: u64| {
            (who.to_owned(), live, growth, place.to_owned(), bytes)
        };
        let by_pod: Vec<_> = of(By::Pod).iter().map(mib).collect();
        let expected = [
            row("HAL team/a", 64, None, "serve main", 64),
            row("PTA team/b\nforged", 50, None, "b.py:1 g", 50),
            row("PTA team/a", 40, Some(-17_476.0), "kv.py:3 grow", 20),
        ];
        assert_eq!(by_pod, expected);
        let by_device: Vec<_> = of(By::Device).iter().map(mib).collect();
        let expected = [
            row("PTA 3 processes", 90, Some(-17_476.0), "b.py:1 g", 50),
            row("HAL 1 process", 64, None, "serve main", 64),
        ];
        assert_eq!(by_device, expected);
        let by_process: Vec<String> = of(By::Process).into_iter().map(|row| row.0).collect();
        let expected =
            ["HAL 7 python team/a", "PTA 9 python team/b\nforged", "PTA 7 python team/a", "PTA 8 python team/a"];
        assert_eq!(by_process, expected);
    }

    /// A name cannot forge a line.
    #[test]
    fn table_as_text() {
        let expected = "\
agent 1: level 0, 0 lost, 3 processes traced
DEVICE  POOL      LIVE     +/MIN  POD              LARGEST  PLACE
npu:0   HAL   64.0 MiB         –  team/a          64.0 MiB  serve main
npu:0   PTA   50.0 MiB         –  team/b\\nforged  50.0 MiB  b.py:1 g
npu:0   PTA   40.0 MiB  -1.0 MiB  team/a          20.0 MiB  kv.py:3 grow";
        assert_eq!(Table::new(&status(), By::Pod).lines(&status()).join("\n"), expected);
    }

    /// A process that is left out for a while has sums and no place.
    #[test]
    fn processes_left_out_are_marked() {
        let mut status = status();
        status.processes.truncate(2);
        let aside = &mut status.processes[1];
        (aside.left_out, aside.pools[0].largest) = (true, None);
        let expected = "\
agent 1: level 0, 0 lost, 1 process traced, 1 left out
DEVICE  POOL      LIVE     +/MIN  PROCESS           LARGEST  PLACE
npu:0   HAL   64.0 MiB         –  7 python team/a  64.0 MiB  serve main
npu:0   PTA   30.0 MiB  +1.0 MiB  7 python team/a  20.0 MiB  kv.py:3 grow
npu:0   PTA   10.0 MiB  -2.0 MiB  8 python team/a            left out of the trace: its sums are read";
        let table = Table::new(&status, By::Process);
        assert_eq!(table.lines(&status).join("\n"), expected);
        assert_eq!(table.rows.iter().map(|row| row.left_out_processes).collect::<Vec<_>>(), [0, 0, 1]);
        let aside = &mut status.processes[1];
        (aside.left_out, aside.reduced) = (false, true);
        let table = Table::new(&status, By::Process);
        let lines = table.lines(&status);
        assert!(lines[0].ends_with(", 2 processes traced"), "{}", lines[0]);
        assert!(lines[4].ends_with("  traced without its pool: its sums are read"), "{}", lines[4]);
        assert_eq!(table.rows.iter().map(|row| row.reduced_processes).collect::<Vec<_>>(), [0, 0, 1]);
    }

    /// Head and keys stay, rows move.
    #[test]
    fn screen_moves_over_rows() {
        let lines: Vec<String> = ["head", "titles", "one", "two", "three"].map(str::to_owned).into();
        let area = Rect::new(0, 0, 10, 4);
        let mut buffer = Buffer::empty(area);
        draw(&lines, 1, area, &mut buffer);
        let row = |y: u16| (0..10).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        assert_eq!([0, 1, 2, 3].map(row), ["head", "titles", "two", " q quit  b"]);
    }
}
