//! Operations of ATB in both C++ ABIs, against what the look-alike says of itself.

use memscope_tests::harness::journal::{Entry, Library};
use memscope_tests::harness::kernel;
use memscope_tests::harness::rows::Row;
use memscope_tests::harness::tracer::{Run, Tracer};

use super::shared::{assert_nothing_lost, assert_sound_with, entries};

/// Most tensors reported of one operation: inputs, outputs.
const MOST: [usize; 2] = [45, 15];

fn text(entry: &Entry) -> String {
    String::from_utf8(entry.text.as_deref().expect("a text").to_vec()).expect("UTF-8")
}

/// What ATB's journal says: operations, workspaces and tensors, as lines. `numbers` are those of the workspaces' blocks.
#[derive(Default)]
struct Truth {
    lines: Vec<String>,
    /// Tensors that are too many for one operation.
    left_out: usize,
    open: Option<(u64, u64)>,
    /// Blocks so far.
    blocks: usize,
    name: String,
    reported: [usize; 2],
}

impl Truth {
    fn of(journal: &[Entry], numbers: &[u64]) -> Self {
        let mut truth = Self::default();
        for entry in journal {
            truth.take(entry, numbers);
        }
        // The program ends.
        truth.leave();
        truth
    }

    fn take(&mut self, entry: &Entry, numbers: &[u64]) {
        let [addr, size, more, _] = entry.args;
        match entry.symbol {
            "Operation" => {
                self.leave();
                if addr != 0 {
                    self.lines.push(format!("MALLOC {addr:#x} {size} used {size} total {size}"));
                    self.open = Some((addr, size));
                    self.blocks += 1;
                }
            }
            "Operation_end" if addr != 0 => {
                assert_eq!(self.open.take(), Some((addr, size)));
                self.lines.push(format!("FREE {addr:#x} {size} used 0 total 0"));
            }
            "Execute" | "Execute_end" => {
                let what = if entry.symbol == "Execute" { "ATB_START" } else { "ATB_END" };
                self.name = text(entry);
                self.lines.push(format!("{what} {} {addr:#x} {}", self.name, size + more));
                self.reported = [0; 2];
            }
            "tensor" => {
                let line = text(entry);
                let reported = &mut self.reported[usize::from(line.starts_with("WRITE"))];
                *reported += 1;
                if *reported > MOST[usize::from(line.starts_with("WRITE"))] {
                    self.left_out += 1;
                } else if addr != 0 {
                    let inside = self.open.is_some_and(|(from, len)| (from..from + len).contains(&addr));
                    let block = if inside { numbers[self.blocks - 1] } else { 0 };
                    let (kind, tensor) = line.split_once(' ').expect("words");
                    self.lines.push(format!("{kind} {} {addr:#x} {size} of {block} {tensor}", self.name));
                }
            }
            _ => {}
        }
    }

    /// What was left by an exception has ended.
    fn leave(&mut self) {
        if let Some((addr, size)) = self.open.take() {
            self.lines.push(format!("FREE {addr:#x} {size} made up"));
        }
    }
}

/// The same of a row; `None` for other rows.
fn line(row: &Row) -> Option<String> {
    let attr = |key: &str| row.attr.get(key).unwrap_or_else(|| panic!("no `{key}` in {row:?}")).as_str();
    let name = row.name.as_deref().unwrap_or("N/A");
    match (row.event.as_str(), row.event_type.as_str()) {
        ("MALLOC" | "FREE", "ATB") => {
            let block = format!("{} {:#x} {}", row.event, row.ptr.expect("an address"), row.number("size"));
            Some(if row.is_made_up() {
                format!("{block} made up")
            } else {
                format!("{block} used {} total {}", row.number("used"), row.number("total"))
            })
        }
        ("OP_LAUNCH", what @ ("ATB_START" | "ATB_END")) => {
            assert_eq!(attr("path"), "N/A", "{row:?}");
            let workspace = u64::from_str_radix(attr("workspace_ptr").trim_start_matches("0x"), 16).expect("hex");
            Some(format!("{what} {name} {workspace:#x} {}", row.number("workspace_size")))
        }
        ("ACCESS", kind) => {
            assert_eq!(attr("type"), "ATB", "{row:?}");
            assert_eq!(row.ptr.map(|ptr| format!("0x{ptr:016x}")).as_deref(), Some(attr("addr")), "{row:?}");
            let [size, block, dtype, format, shape] = ["size", "allocation_id", "dtype", "format", "shape"].map(&attr);
            let addr = row.ptr.expect("an address");
            Some(format!("{kind} {name} {addr:#x} {size} of {block} {dtype} {format} {shape}"))
        }
        _ => None,
    }
}

/// The rows in order, and the numbers of the workspaces' blocks.
fn traced(run: &Run) -> (Vec<String>, Vec<u64>) {
    let rows = run.rows();
    let mut all: Vec<&Row> = rows.all().filter(|row| line(row).is_some()).collect();
    all.sort_by_key(|row| row.id);
    let blocks = all.iter().filter(|row| row.event == "MALLOC").map(|row| row.number("allocation_id"));
    (all.iter().filter_map(|row| line(row)).collect(), blocks.collect())
}

/// The uses of one operation have no order of their own.
fn ordered(mut lines: Vec<String>) -> Vec<String> {
    for group in lines.chunk_by_mut(|one, next| is_access(one) && is_access(next)) {
        group.sort();
    }
    lines
}

fn is_access(line: &str) -> bool {
    line.starts_with("UNKNOWN") || line.starts_with("WRITE")
}

/// Operations with names and workspaces; one that throws has no end, and does no harm. A workspace left so ends when
/// its thread goes on.
#[test]
fn operations_of_atb() {
    for variant in [&["--abi", "0"][..], &["--abi", "1", "--device", "2"], &["--abi", "1", "--throw-every", "0"]] {
        let run = Tracer::run("atb", variant).succeed();
        assert_nothing_lost(&run);
        assert_sound_with(&run, &[]);
        let (rows, numbers) = traced(&run);
        let mut truth = Truth::of(&entries(&run, Library::Atb), &numbers);
        truth.lines.retain(|line| !is_access(line));
        let operations = truth.lines.iter().filter(|line| line.starts_with("ATB_")).count() as u64;
        assert_eq!(operations, run.counted("begun") + run.counted("ended"), "{variant:?}");
        assert_eq!(numbers.len(), 50, "{variant:?}");
        assert_eq!(rows, truth.lines, "{variant:?}");
        let device = if variant.contains(&"2") { "2" } else { "1" };
        let rows = run.rows();
        assert!(rows.all().filter(|row| line(row).is_some()).all(|row| row.device == device), "{variant:?}");
    }
}

const ACCESSES: [&str; 4] = ["--events", "alloc,free,launch,access", "--ops", "npu"];
/// What is said on kernels without attach cookies.
const UNAVAILABLE: &str = "accesses of ATB's operations are not available on this kernel";

/// With a link for each probe everything is reported; without attach cookies all but the tensors is, with a message.
#[test]
fn lesser_kernels_tell_of_atb() {
    for (link, reported) in [("cookie", true), ("slots", false)] {
        let run = Tracer::run("atb", &["--abi", "1"]).options(&ACCESSES).options(&["--link", link]).finish();
        if reported && !kernel::has_cookies() {
            assert!(run.code() == 125 && run.stderr.contains("the kernel refused"), "{}", run.said());
            continue;
        }
        assert_eq!(run.code(), 0, "{}", run.said());
        assert_nothing_lost(&run);
        let (rows, numbers) = traced(&run);
        let mut truth = Truth::of(&entries(&run, Library::Atb), &numbers);
        assert_eq!(run.stderr.contains(UNAVAILABLE), !reported, "{}", run.said());
        truth.lines.retain(|line| reported || !is_access(line));
        assert_eq!(ordered(rows), ordered(truth.lines), "{link}");
    }
}

/// Tensors with types, formats and shapes, in place or behind a pointer; those in host memory are none. Tensors beyond
/// the limit of one operation are counted.
#[test]
fn tensors_of_atb() {
    for (variant, left_out) in [
        (&["--abi", "0"][..], 0),
        (&["--abi", "1", "--throw-every", "0"], 0),
        (&["--abi", "0", "--inputs", "45", "--outputs", "15"], 0),
        (&["--abi", "1", "--inputs", "64", "--outputs", "16"], 50 * 20),
        (&["--abi", "0", "--inputs", "65", "--outputs", "100"], 50 * (20 + 85)),
    ] {
        let run = Tracer::run("atb", variant).options(&ACCESSES).succeed();
        assert_sound_with(&run, &[]);
        let (rows, numbers) = traced(&run);
        let mut truth = Truth::of(&entries(&run, Library::Atb), &numbers);
        if !kernel::has_cookies() {
            assert!(run.stderr.contains(UNAVAILABLE), "{}", run.said());
            assert_nothing_lost(&run);
            truth.lines.retain(|line| !is_access(line));
            assert_eq!(rows, truth.lines, "{variant:?}");
            continue;
        }
        assert_eq!(truth.left_out, left_out, "{variant:?}");
        if left_out == 0 {
            assert_nothing_lost(&run);
        } else {
            assert!(run.stdout.contains(&format!("{left_out} (tensor not readable)")), "{}", run.said());
        }
        assert!(truth.lines.iter().any(|line| is_access(line)), "{variant:?}");
        assert_eq!(ordered(rows), ordered(truth.lines), "{variant:?}");
        // A replay of the capture knows it all by itself.
        let replay = Tracer::replay(&run.folder.capture()).options(&ACCESSES[..2]).succeed();
        assert_eq!(traced(&replay).0, traced(&run).0, "{variant:?}");
    }
}
