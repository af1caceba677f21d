//! Real `MindSpore`, traced, against its own figures and its own list of blocks.
//!
//! A group of its own: `./x mindspore` prepares a version's wheel, and says where it is in `MEMSCOPE_MINDSPORE`.

use std::collections::BTreeMap;

use memscope_tests::harness::holders::{ask, blocks as asked, cases, said, take_absent, wrong};
use memscope_tests::harness::rows::Row;
use memscope_tests::harness::tracer::{Run, Tracer};
use memscope_tests::mindspore::{Mark, Program, blocks, marks};
use memscope_tests::torch::bench::go_on;
use serde_json::json;

const POOL: &str = "MINDSPORE";
/// Settings of the pool: none, plain blocks of the driver in place of virtual memory, and the class that lists each block.
const SETTINGS: [&str; 3] = ["", "enable_vmm:False", "memory_tracker:True"];
/// What `MindSpore` asks the runtime for beyond the block that it takes (`enable_vmm:False`).
const EXTRA_BYTES: u64 = 32;
/// Frees of the driver's blocks come with the process's end.
const CALLS_OF_BLOCKS: [&str; 2] = ["MALLOC", "FREE"];

/// What the rows hold at a moment.
#[derive(Debug, Default)]
struct Books {
    live: BTreeMap<u64, u64>,
    allocated_bytes: u64,
    max_allocated_bytes: u64,
    /// Blocks of the driver.
    driver: BTreeMap<u64, (u64, String)>,
}

impl Books {
    fn take(&mut self, row: &Row) {
        let addr = row.ptr.expect("an address");
        match (row.event_type.as_str(), row.event.as_str()) {
            (POOL, "MALLOC") => {
                let size_bytes = row.number("size");
                assert!(!row.is_made_up() && self.live.insert(addr, size_bytes).is_none(), "{row:?}");
                self.allocated_bytes += size_bytes;
                self.max_allocated_bytes = self.max_allocated_bytes.max(self.allocated_bytes);
            }
            (POOL, _) => {
                assert!(!row.is_made_up(), "a free that was not seen: {row:?}");
                self.allocated_bytes -= self.live.remove(&addr).unwrap_or_else(|| panic!("no such block: {row:?}"));
            }
            ("HAL", "MALLOC") => {
                let kind = row.attr.get("alloc_type").cloned().unwrap_or_default();
                self.driver.insert(addr, (row.number("size"), kind));
            }
            ("HAL", _) => {
                self.driver.remove(&addr);
            }
            _ => {}
        }
    }

    /// What the pool holds from the runtime. With virtual memory these are all pieces of physical memory; else it is one block.
    fn reserved_bytes(&self, settings: &str, wanted: u64) -> u64 {
        if settings == "enable_vmm:False" {
            let is_it = |size_bytes: u64| size_bytes == wanted + EXTRA_BYTES;
            return if self.driver.values().any(|(size_bytes, _)| is_it(*size_bytes)) { wanted } else { 0 };
        }
        self.driver.values().filter(|(_, kind)| kind == "create").map(|(size_bytes, _)| size_bytes).sum()
    }
}

/// Rows of the program, with the marks among them.
fn rows_of(run: &Run, pid: u32) -> Vec<Row> {
    run.rows().processes.remove(&pid).expect("rows of the process")
}

fn mark_of(row: &Row) -> Option<&str> {
    row.name.as_deref().filter(|_| row.event_type == "Mark")?.strip_prefix("truth ")
}

/// Make sure that at each mark the pool's rows sum up to `MindSpore`'s own figures, the driver's to what the pool holds, and that the report
/// has the same peak and as many frees as allocations.
#[test]
fn figures_of_the_pool() {
    for settings in SETTINGS {
        for seed in ["1", "2"] {
            let (run, marks) = Program { line: &["pool.py", seed], settings }.traced(&[]);
            let pid = marks[0].pid;
            let rows = rows_of(&run, pid);
            let mut books = Books::default();
            let mut left = marks.iter();
            for row in &rows {
                if CALLS_OF_BLOCKS.contains(&row.event.as_str()) {
                    books.take(row);
                }
                let Some(name) = mark_of(row) else { continue };
                let Mark { name: wanted, allocated_bytes, reserved_bytes, max_allocated_bytes, .. } =
                    left.next().expect("a mark of the program");
                assert_eq!(name, wanted);
                let found = (books.allocated_bytes, books.max_allocated_bytes);
                assert_eq!(found, (*allocated_bytes, *max_allocated_bytes), "{settings} {seed} at {name}");
                assert_eq!(
                    books.reserved_bytes(settings, *reserved_bytes),
                    *reserved_bytes,
                    "{settings} {seed} at {name}: {:?}",
                    books.driver
                );
            }
            assert!(left.next().is_none() && books.live.is_empty(), "{:?}", books.live);
            reported(&run, &rows, marks.last().expect("a mark").max_allocated_bytes);
        }
    }
}

/// The report has the figures of the rows.
fn reported(run: &Run, rows: &[Row], peak_bytes: u64) {
    let json = run.json();
    let findings = json["findings"].as_array().expect("findings");
    let held: Vec<_> =
        findings.iter().filter(|found| found["finding"] == "held" && found["pool"] == "MINDSPORE").collect();
    assert_eq!(held.len(), 1, "{json}");
    let count = rows.iter().filter(|row| row.event_type == POOL && row.event == "MALLOC").count() as u64;
    let [allocs, frees, peak] = ["allocations", "frees", "peak_bytes"].map(|key| held[0][key].as_u64());
    assert_eq!((allocs, frees, peak), (Some(count), Some(count), Some(peak_bytes)), "{}", held[0]);
    assert_eq!(json["end"]["losses"].as_array().map(Vec::len), Some(0), "{json}");
}

/// Make sure that the rows hold the same blocks as `MindSpore`'s own list: at each address the same sizes, in the same order.
#[test]
fn blocks_of_the_tracker() {
    let (run, marks) = Program { line: &["pool.py", "3"], settings: "memory_tracker:True" }.traced(&[]);
    let mut wanted: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let listed = blocks(&run);
    for block in &listed {
        wanted.entry(block.addr).or_default().push(block.size_bytes);
    }
    assert!(listed.len() > 200 && listed.iter().any(|block| block.ended), "{}", listed.len());
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for row in rows_of(&run, marks[0].pid).iter().filter(|row| row.event_type == POOL && row.event == "MALLOC") {
        found.entry(row.ptr.expect("an address")).or_default().push(row.number("size"));
    }
    assert_eq!(found, wanted);
}

/// What was found when the tracer attached, and what came behind it.
#[derive(Debug, Default)]
struct Late {
    live: BTreeMap<u64, u64>,
    found: usize,
}

impl Late {
    fn take(&mut self, row: &Row) {
        if row.event_type != POOL || !CALLS_OF_BLOCKS.contains(&row.event.as_str()) {
            return;
        }
        // The program has set this one.
        assert_eq!(row.device, "1", "{row:?}");
        let addr = row.ptr.expect("an address");
        if row.event == "MALLOC" {
            let is_found = row.attr.get("found").is_some_and(|found| found == "true");
            self.found += usize::from(is_found);
            assert_eq!(self.live.insert(addr, row.number("size")), None, "{row:?}");
            // Rows of what was found have the sum with all of it.
            assert!(is_found || row.number("used") == self.live_bytes(), "{} live: {row:?}", self.live_bytes());
        } else {
            assert!(self.live.remove(&addr).is_some(), "a free of no known block: {row:?}");
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.values().sum()
    }
}

/// Attaches half-way, and compares at each mark behind. Gives the number of blocks found, or the message that says that they were not.
fn attached(program: Program<'_>, still: bool) -> Result<usize, String> {
    const READ: &str = "read the pool of process";
    const REFUSED: &str = "held at the attach was not found";
    let (mut target, truth) = program.waiting();
    let running = Tracer::attach(&[&target]).options(&["--verbose", "--json", "--events=alloc,free"]).start();
    running.wait_for_message(if still { READ } else { "libmindspore_memory_pool.so: " }, 1);
    go_on(&truth);
    assert!(target.wait().success());
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    if let Some(line) = run.said().lines().find(|line| line.contains(REFUSED)) {
        return Err(line.to_owned());
    }
    let marks = marks(&truth);
    let mut late = Late::default();
    let mut left = marks.iter();
    for row in rows_of(&run, marks[0].pid) {
        late.take(&row);
        let Some(name) = mark_of(&row) else { continue };
        let mark = left.next().expect("a mark of the program");
        assert_eq!((name, late.live_bytes()), (mark.name.as_str(), mark.allocated_bytes), "{program:?}");
    }
    assert!(left.next().is_none() && late.live.is_empty(), "{:?}", late.live);
    let json = run.json();
    let of_pool = |found: &&serde_json::Value| found["finding"] == "held" && found["pool"] == POOL;
    let held: Vec<_> = json["findings"].as_array().expect("findings").iter().filter(of_pool).collect();
    assert_eq!(held.len(), 1, "{json}");
    assert_eq!((&held[0]["unseen_bytes"], &held[0]["unknown_frees"]), (&json!(0), &json!(0)), "{}", held[0]);
    Ok(late.found)
}

/// What the pool held at the attach is found, on the program's device, and its frees are frees of these blocks.
#[test]
fn found_at_the_attach() {
    for settings in SETTINGS {
        for seed in ["1", "2"] {
            let found = attached(Program { line: &["late.py", seed], settings }, true);
            assert!(found.as_ref().is_ok_and(|found| *found > 10), "{settings} {seed}: {found:?}");
        }
    }
}

/// The same while a thread allocates at full speed: exact, or said to be unknown.
#[test]
fn found_at_the_attach_to_a_busy_program() {
    let seeds: Vec<String> = (1..=8).map(|seed: u32| seed.to_string()).collect();
    let found: Vec<_> =
        seeds.iter().map(|seed| attached(Program { line: &["late.py", seed, "busy"], settings: "" }, false)).collect();
    println!("{found:?}");
    assert!(found.iter().any(Result::is_ok), "{found:?}");
}

/// Each holder of a tensor is named as the program names it, and the pool's sums are its own figures.
#[test]
fn holders_of_tensors() {
    for (by, settings) in [("set_device", ""), ("set_context", "enable_vmm:False")] {
        let (target, _) = Program { line: &["holders.py", by], settings }.waiting();
        let stdout = target.stdout();
        let cases = cases(&stdout);
        let found = ask(target.pid(), &[&asked(&cases)]);
        let mut wrong = wrong(&cases, &said(&found));
        let absent = take_absent(&mut wrong);
        assert!(absent.iter().all(|text| text.starts_with("ring: ")), "{}", absent.join("\n"));
        assert!(wrong.is_empty(), "{by}: {}", wrong.join("\n"));
        assert!(cases.len() > 30, "{cases:?}");
        let figures = stdout.lines().find_map(|line| line.strip_prefix("POOL ")).expect("the pool's figures");
        let [allocated, reserved, _]: [u64; 3] = serde_json::from_str(figures).expect("figures");
        let pool = &found["pool"];
        assert_eq!((&pool["live"]["size_bytes"], &pool["unsure_devices"]), (&json!(allocated), &json!([])), "{pool}");
        // With virtual memory the runtime has whole pages of it.
        if settings == "enable_vmm:False" {
            assert_eq!(pool["size_bytes"], json!(reserved), "{pool}");
        }
        let whole = ask(target.pid(), &[]);
        assert_eq!(whole["asked"]["size_bytes"], json!(allocated), "{whole}");
        let weights = whole["purposes"].as_array().expect("purposes");
        let weight = weights.iter().find(|purpose| purpose["held_as"] == "weight").expect("weights");
        assert_eq!(weight["blocks"], json!(4), "{weight}");
    }
}

/// A server that keeps its answers: the growth is found, with the container that keeps them, in a trace of 15 s of a program that was running before; and
/// nothing else is accused.
#[test]
fn growth_with_its_holder() {
    let (mut target, truth) = Program { line: &["server.py"], settings: "" }.waiting();
    let run = Tracer::attach(&[&target]).options(&["--json", "-d", "15s"]).start().finish();
    go_on(&truth);
    assert!(target.wait().success());
    let json = run.json();
    let of = |kind: &str| -> Vec<&serde_json::Value> {
        json["findings"].as_array().expect("findings").iter().filter(|found| found["finding"] == kind).collect()
    };
    let growth = of("growth");
    assert_eq!(growth.len(), 1, "{json}");
    let sites = growth[0]["sites"].as_array().expect("sites");
    assert!(sites.len() == 1 && sites[0]["pool"] == POOL, "{growth:?}");
    let held = of("held_by");
    let held = held.iter().find(|held| held["looked_at"] == "end").unwrap_or_else(|| panic!("{json}"));
    let holder = &held["places"][0]["holders"][0];
    assert!(holder["path"] == "__main__.engine.history[*]" && holder["is_sure"] == true, "{held}");
    assert_eq!(json["end"]["losses"].as_array().map(Vec::len), Some(0), "{json}");
    assert_eq!(of("leaks").len(), 0, "{json}");
}
