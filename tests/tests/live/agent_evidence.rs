//! Evidence of the node agent against the journal of the simulated libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memscope_tests::harness::agent::{Agent, own_name, waiting};
use memscope_tests::harness::clock::WallClock;
use memscope_tests::harness::expect::truth;
use memscope_tests::harness::tracer::{Folder, monotonic_ns, unix_offset_ns};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;

use super::shared::pool_blocks;

/// A row, by column.
type Cells = BTreeMap<String, Field>;

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn rows(directory: &Path, table: &str) -> Vec<Cells> {
    let of_file = |path: PathBuf| -> Vec<Cells> {
        let file = SerializedFileReader::new(File::open(&path).expect("a file")).expect("a Parquet file");
        let rows = file.get_row_iter(None).expect("rows");
        rows.map(|row| row.expect("a row").into_columns().into_iter().collect()).collect()
    };
    files(&directory.join("v1").join(table)).into_iter().flat_map(of_file).collect()
}

fn number(cells: &Cells, name: &str) -> i64 {
    match &cells[name] {
        Field::Int(number) => i64::from(*number),
        Field::Long(number) => *number,
        other => panic!("{name} is no number: {other:?}"),
    }
}

fn text<'a>(cells: &'a Cells, name: &str) -> &'a str {
    match &cells[name] {
        Field::Str(text) => text,
        other => panic!("{name} is no text: {other:?}"),
    }
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a Cells>, name: &str) -> u64 {
    rows.into_iter().map(|row| number(row, name)).sum::<i64>().try_into().expect("not below 0")
}

/// Rows of a process in one layer.
fn of_layer<'a>(all: &'a [Cells], pid: u32, layer: &str) -> Vec<&'a Cells> {
    all.iter().filter(|row| number(row, "pid") == i64::from(pid) && text(row, "layer") == layer).collect()
}

/// Those of them in the last minute.
fn of_last_minute<'a>(rows: &[&'a Cells]) -> Vec<&'a Cells> {
    let last = rows.iter().map(|row| number(row, "epoch_minute")).max().expect("rows");
    rows.iter().copied().filter(|row| number(row, "epoch_minute") == last).collect()
}

/// The process ends under the agent's eyes: rows of its last minute have what it held then, by pool and by place; sums over all minutes
/// have each call. Each place is described, and no hidden file is left.
#[test]
fn last_minute_agrees_with_the_journal() {
    let name = own_name("evid");
    let evidence = Folder::new();
    let directory = evidence.path();
    let agent = Agent::start_with(&name, &format!("[evidence]\ndirectory = \"{}\"\n", directory.display()));
    let arguments = ["--rounds", "4", "--blocks", "3", "--size", "30000000", "--leaks", "2", "--leak-size", "200000"];
    let mut target = waiting(&name, "pool", &arguments);
    let pid = target.pid();
    let _ = agent.wait_for_processes(1);
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    assert!(target.wait().success());
    let page = agent.wait_for_processes(0);
    assert_eq!(page.count("memscope_agent_evidence_dropped_rows_total", &[]), Some(0));
    assert_eq!(page.count("memscope_events_lost_total", &[]), Some(0));
    agent.end();

    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let truth = truth(entries, false);
    let (places, pools) = (rows(directory, "place_minute"), rows(directory, "device_minute"));
    let driver = (of_layer(&places, pid, "hal"), of_layer(&pools, pid, "hal"));
    let held: u64 = truth.held.iter().map(|block| block.size).sum();
    assert!(held > 0, "nothing to compare");
    assert_eq!(sum(of_last_minute(&driver.0), "live_bytes"), held);
    assert_eq!(sum(of_last_minute(&driver.1), "live_bytes"), held);
    let allocations = truth.calls.iter().filter(|call| call.is_alloc).count() as u64;
    for of_table in [&driver.0, &driver.1] {
        assert_eq!(sum(of_table.iter().copied(), "allocations"), allocations);
        assert_eq!(sum(of_table.iter().copied(), "frees"), truth.calls.len() as u64 - allocations);
    }

    let pool = (of_layer(&places, pid, "pool"), of_layer(&pools, pid, "pool"));
    let live: u64 = pool_blocks(entries).values().sum();
    assert_eq!(sum(of_last_minute(&pool.0), "live_bytes"), live);
    assert_eq!(sum(of_last_minute(&pool.1), "live_bytes"), live);
    assert_eq!(sum(of_last_minute(&pool.1), "untracked_bytes"), 0);

    let described: BTreeSet<i64> = rows(directory, "places").iter().map(|row| number(row, "place_key")).collect();
    assert!(places.iter().all(|row| described.contains(&number(row, "place_key"))));
    let names: Vec<String> =
        files(directory).iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    assert!(names.iter().all(|name| name.ends_with(".parquet") && !name.starts_with('.')), "{names:?}");
}

/// Killed without a warning: whatever files there are can be read whole, and a later agent leaves no hidden one behind.
#[test]
fn killed_agent_leaves_whole_files() {
    let name = own_name("evik");
    let evidence = Folder::new();
    let directory = evidence.path();
    let settings = format!("[evidence]\ndirectory = \"{}\"\n", directory.display());
    let mut agent = Agent::start_with(&name, &settings);
    let go = |agent: &Agent| {
        let arguments = ["--rounds", "1", "--blocks", "3", "--size", "30000000"];
        let mut target = waiting(&name, "pool", &arguments);
        let _ = agent.wait_for_processes(1);
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        assert!(target.wait().success());
        let _ = agent.wait_for_processes(0);
        target.pid()
    };
    let _ = go(&agent);
    agent.kill();
    // Rows of its memory are lost with it: no part of an hour was over.
    assert!(rows(directory, "place_minute").is_empty());
    let agent = Agent::start_with(&name, &settings);
    let pid = go(&agent);
    agent.end();
    let pids: BTreeSet<i64> = rows(directory, "place_minute").iter().map(|row| number(row, "pid")).collect();
    assert_eq!(pids, [i64::from(pid)].into());
}

/// A machine that boots with its clock a day ahead gets the right time later: rows from then on are of that time. No call is missing in either.
#[test]
fn a_clock_that_is_set_back() {
    const DAY_MINUTES: i64 = 1440;
    let name = own_name("evic");
    let (evidence, folder) = (Folder::new(), Folder::new());
    let directory = evidence.path();
    let clock = WallClock::new(folder.path());
    clock.set(DAY_MINUTES * 60_000_000_000);
    let settings = format!("[evidence]\ndirectory = \"{}\"\n", directory.display());
    let variables = clock.variables();
    let agent = Agent::start_in(&name, &settings, &variables.each_ref().map(|(key, value)| (*key, value.as_str())));
    let run = || {
        let arguments = ["--rounds", "2", "--blocks", "3", "--size", "30000000"];
        let mut target = waiting(&name, "pool", &arguments);
        let _ = agent.wait_for_processes(1);
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        assert!(target.wait().success());
        let _ = agent.wait_for_processes(0);
        target
    };
    let ahead = run();
    clock.set(0);
    // The tracer compares the clocks every five seconds.
    std::thread::sleep(Duration::from_secs(6));
    let right = run();
    agent.end();

    let now_minute = ((monotonic_ns() + unix_offset_ns()) / 60_000_000_000).cast_signed();
    let pools = rows(directory, "device_minute");
    for (target, minute) in [(ahead, now_minute + DAY_MINUTES), (right, now_minute)] {
        let truth = truth(&target.folder.journal().by_process()[&target.pid()], false);
        let of_process = of_layer(&pools, target.pid(), "hal");
        let allocations = truth.calls.iter().filter(|call| call.is_alloc).count() as u64;
        assert!(allocations > 0, "nothing to compare");
        assert_eq!(sum(of_process.iter().copied(), "allocations"), allocations);
        for row in of_process {
            let of_row = number(row, "epoch_minute");
            assert!((minute - 5..=minute).contains(&of_row), "{of_row}, not {minute}");
        }
    }
}

/// 64 processes on two devices each, at once: each has its own rows, and all sums are those of the 64 journals.
#[test]
fn many_processes_on_two_devices() {
    const PROCESSES: u64 = 64;
    let name = own_name("many");
    let evidence = Folder::new();
    let directory = evidence.path();
    let agent = Agent::start_with(&name, &format!("[evidence]\ndirectory = \"{}\"\n", directory.display()));
    // A different number of blocks, and another size, for each.
    let start = |number: u64| {
        let (blocks, size) = ((5 + number % 7).to_string(), (65_536 + 4096 * number).to_string());
        let arguments: &[&str] = if number.is_multiple_of(2) { &["--leak"] } else { &[] };
        waiting(&name, "devices", &[&["--blocks", &blocks, "--size", &size], arguments].concat())
    };
    let mut targets: Vec<_> = (0..PROCESSES).map(start).collect();
    let _ = agent.wait_for_processes(PROCESSES);
    for target in &targets {
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    }
    assert!(targets.iter_mut().all(|target| target.wait().success()));
    let page = agent.wait_for_processes(0);
    assert_eq!(page.count("memscope_events_lost_total", &[]), Some(0));
    assert_eq!(page.count("memscope_agent_evidence_dropped_rows_total", &[]), Some(0));
    agent.end();

    let (places, pools) = (rows(directory, "place_minute"), rows(directory, "device_minute"));
    // Of a device: allocations, their bytes, frees, their bytes.
    let mut all = BTreeMap::from([(0_i64, [0_u64; 4]), (1, [0; 4])]);
    for target in &targets {
        let journal = target.folder.journal();
        let truth = truth(&journal.by_process()[&target.pid()], false);
        for (device, sums) in &mut all {
            let is_of = |row: &&&Cells| number(row, "device_id") == *device;
            let device = device.to_string();
            let (of_places, of_pools) = (of_layer(&places, target.pid(), "hal"), of_layer(&pools, target.pid(), "hal"));
            let of_places: Vec<&Cells> = of_places.iter().filter(is_of).copied().collect();
            let of_pools: Vec<&Cells> = of_pools.iter().filter(is_of).copied().collect();
            let calls = |is_alloc| {
                let calls = truth.calls.iter().filter(move |call| call.is_alloc == is_alloc);
                calls.filter(|call| call.block.device == device).map(|call| call.block.size).collect::<Vec<u64>>()
            };
            let (allocated, freed) = (calls(true), calls(false));
            assert!(allocated.len() > 5, "the device was used: {allocated:?}");
            let expected =
                [allocated.len() as u64, allocated.iter().sum(), freed.len() as u64, freed.iter().sum::<u64>()];
            let columns = ["allocations", "allocated_bytes", "frees", "freed_bytes"];
            assert_eq!(columns.map(|name| sum(of_places.iter().copied(), name)), expected);
            assert_eq!(sum(of_pools.iter().copied(), "allocations"), expected[0]);
            let held: u64 = truth.held.iter().filter(|block| block.device == device).map(|block| block.size).sum();
            assert_eq!(sum(of_last_minute(&of_pools), "live_bytes"), held);
            sums.iter_mut().zip(expected).for_each(|(sum, of_process)| *sum += of_process);
        }
    }
    for (device, sums) in all {
        let names = ["allocations", "allocated_bytes", "frees", "freed_bytes"];
        let on_page = names.map(|name| {
            page.count(&format!("memscope_{name}_total"), &[("layer", "hal"), ("id", &device.to_string())]).unwrap_or(0)
        });
        assert_eq!(on_page, sums, "device {device}");
    }
}
