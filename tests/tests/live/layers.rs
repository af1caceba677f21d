//! Allocation layers above the driver: pools of mstx users, of `MindSpore`, and of functions that the user defined.

use std::collections::BTreeMap;
use std::process::Command;

use memscope_tests::harness::expect::cell_of;
use memscope_tests::harness::journal::{Entry, Library};
use memscope_tests::harness::rows::Row;
use memscope_tests::harness::tracer::{Run, Tracer, simulation, tracer_path};
use serde_json::Value;

use super::shared::{assert_nothing_lost, assert_sound_with, entries};

/// A row of a pool: thread, event, pool, device, address, and the pool's bytes after it. Allocations also have a size.
type Reported = (u32, &'static str, String, String, u64, Option<u64>, u64);

/// Rows of the named pools that stand for calls, in order.
fn written(run: &Run, pools: &[&str]) -> Vec<Reported> {
    let reported = |row: &Row| {
        let alloc = row.event == "MALLOC";
        let event = if alloc { "MALLOC" } else { "FREE" };
        let size = alloc.then(|| row.number("size"));
        let addr = row.ptr.expect("an address");
        (row.tid, event, row.event_type.clone(), row.device.clone(), addr, size, row.number("used"))
    };
    let rows = run.rows();
    let mut found: Vec<&Row> =
        rows.all().filter(|row| pools.contains(&row.event_type.as_str()) && !row.is_made_up()).collect();
    found.sort_by_key(|row| row.id);
    found.into_iter().map(reported).collect()
}

/// Pools by a journal, in the order of its times, summed up by hand.
#[derive(Default)]
struct Truth {
    reported: Vec<Reported>,
    live: BTreeMap<(String, u64), (String, u64)>,
    used: BTreeMap<(String, String), u64>,
}

impl Truth {
    fn alloc(&mut self, tid: u32, pool: &str, device: &str, addr: u64, size: u64) {
        let used = self.used.entry((pool.to_owned(), device.to_owned())).or_default();
        *used += size;
        let reported = (tid, "MALLOC", pool.to_owned(), device.to_owned(), addr, Some(size), *used);
        self.reported.push(reported);
        self.live.insert((pool.to_owned(), addr), (device.to_owned(), size));
    }

    fn free(&mut self, tid: u32, pool: &str, addr: u64) {
        let (device, size) = self.live.remove(&(pool.to_owned(), addr)).expect("a live block");
        let used = self.used.get_mut(&(pool.to_owned(), device.clone())).expect("a pool");
        *used -= size;
        self.reported.push((tid, "FREE", pool.to_owned(), device, addr, None, *used));
    }
}

/// Pools of threads: order between threads is only known where they wait for each other.
fn by_thread(reported: &[Reported]) -> BTreeMap<u32, Vec<Reported>> {
    let mut threads: BTreeMap<u32, Vec<Reported>> = BTreeMap::new();
    for one in reported {
        threads.entry(one.0).or_default().push(one.clone());
    }
    threads
}

/// A program that reports its pools by mstx: each is a pool of its own, on the devices that it names, with the size of
/// its heap.
#[test]
fn pools_of_mstx_users() {
    const POOLS: [&str; 2] = ["alpha", "my_pool___quoted_"];
    let plain = [&["--rounds", "8"][..], &["--batch", "16", "--leaks", "3"], &["--batch", "1", "--leaks", "0"]];
    let plain = plain.into_iter().map(|variant| ("mstxpool", variant, &[][..]));
    // Users of the headers alone, and with handles.
    let copies = [
        ("mstxpool-copy", &["--rounds", "8"][..], &[][..]),
        ("mstxpool", &["--rounds", "8"], &["--mstx-injection"]),
        ("mstxpool-hidden", &["--batch", "16", "--leaks", "3"], &["--mstx-injection"]),
    ];
    for (program, variant, options) in plain.chain(copies) {
        let run = Tracer::run(program, variant).options(options).succeed();
        assert_nothing_lost(&run);
        assert_sound_with(&run, &POOLS);
        let mut truth = Truth::default();
        let mut domains: BTreeMap<u32, String> = BTreeMap::new();
        for Entry { tid, symbol, args, text, .. } in &entries(&run, Library::Mstx) {
            match *symbol {
                "mstxDomainCreateA" => drop(domains.insert(*tid, cell_of(text.as_deref().expect("a name")))),
                "region" => truth.alloc(*tid, &domains[tid], &args[1].to_string(), args[2], args[3]),
                "region_end" => truth.free(*tid, &domains[tid], args[2]),
                _ => {}
            }
        }
        let (allocs, frees) = (run.counted("regions"), run.counted("back"));
        assert_eq!(truth.reported.len() as u64, allocs + frees, "{variant:?}");
        assert_eq!(by_thread(&written(&run, &POOLS)), by_thread(&truth.reported), "{variant:?}");
        let rows = run.rows();
        let of_pool = |row: &&Row| POOLS.contains(&row.event_type.as_str()) && !row.is_made_up();
        assert!(rows.all().filter(of_pool).all(|row| row.number("total") == 64 << 20), "{variant:?}");
        // What stays is in the report under the pool's own name.
        for pool in POOLS {
            let held = format!("{pool} held at the end");
            let line = run.stdout.lines().find(|line| line.starts_with(&held)).expect("a line of the pool");
            assert_eq!(line.contains(": nothing"), allocs == frees, "{variant:?}: {line}");
        }
    }
}

/// More regions in one call than are looked at are counted, not passed over.
#[test]
fn long_batches_are_cut_and_counted() {
    let run = Tracer::run("mstxpool", &["--rounds", "2", "--batch", "20", "--leaks", "20"]).succeed();
    let allocs = written(&run, &["alpha", "my_pool___quoted_"]).len();
    assert_eq!(allocs, 2 * 2 * 16);
    let line = "mstxMemRegionsRegister";
    let reported = run.stdout.lines().any(|text| text.contains(line) && text.contains("list longer than is looked at"));
    assert!(reported, "{}", run.said());
}

const MYPOOL: [&str; 7] = [
    "--probe=libmypool.so:my_alloc=alloc(size=0,ret=ptr)",
    "--probe=libmypool.so:my_free=free(ptr=0)",
    "--probe=libmypool.so:my_take=alloc(size=2,count=1,device=3,out=0,pool=taken)",
    "--probe=libmypool.so:my_give=free(ptr=*1,pool=taken)",
    "--probe=libmypool.so:_ZN2my4Pool4takeEm=alloc(size=1,ret=ptr,pool=object)",
    "--probe=libmypool.so:_ZN2my4Pool4giveEPv=free(ptr=1,pool=object)",
    "--probe=libmypool.so:my_note=mark(text=1)",
];
const MYPOOLS: [&str; 3] = ["mypool", "taken", "object"];

fn truth_of_mypool(run: &Run, device: &str) -> Truth {
    let mut truth = Truth::default();
    for Entry { tid, symbol, args, out, .. } in &entries(run, Library::MyPool) {
        match *symbol {
            "my_alloc" => truth.alloc(*tid, "mypool", device, *out, args[0]),
            "my_free" => truth.free(*tid, "mypool", args[0]),
            "my_take" => truth.alloc(*tid, "taken", &args[2].to_string(), *out, args[0] * args[1]),
            "my_give" => truth.free(*tid, "taken", args[0]),
            "Pool_take" => truth.alloc(*tid, "object", device, *out, args[0]),
            "Pool_give" => truth.free(*tid, "object", args[0]),
            _ => {}
        }
    }
    truth
}

/// Functions that the user defined are traced like ours: by option, and the same by a file.
#[test]
fn pools_of_the_user() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("probes.json");
    let json = r#"[
        {"library": "libmypool.so", "function": "my_alloc", "kind": "alloc", "size": 0, "ret": "ptr"},
        {"library": "libmypool.so", "function": "my_free", "kind": "free", "ptr": 0},
        {"library": "libmypool.so", "function": "my_take", "kind": "alloc",
         "size": 2, "count": 1, "device": 3, "out": 0, "pool": "taken"},
        {"library": "libmypool.so", "function": "my_give", "kind": "free", "ptr": "*1", "pool": "taken"},
        {"library": "libmypool.so", "function": "_ZN2my4Pool4takeEm", "kind": "alloc", "size": 1, "ret": "ptr",
         "pool": "object"},
        {"library": "libmypool.so", "function": "_ZN2my4Pool4giveEPv", "kind": "free", "ptr": 1, "pool": "object"},
        {"library": "libmypool.so", "function": "my_note", "kind": "mark", "text": 1}
    ]"#;
    std::fs::write(&file, json).expect("written");
    let by_file = [format!("--probes={}", file.display())];
    let by_file: Vec<&str> = by_file.iter().map(String::as_str).collect();
    for options in [&MYPOOL[..], &by_file] {
        let run = Tracer::run("mypool", &["--throw-every", "0"]).options(options).succeed();
        assert_nothing_lost(&run);
        assert_sound_with(&run, &MYPOOLS);
        let truth = truth_of_mypool(&run, "1");
        assert_eq!(truth.reported.len() as u64, run.counted("allocs") + run.counted("frees"));
        assert_eq!(written(&run, &MYPOOLS), truth.reported);
        let rows = run.rows();
        let notes = rows.all().filter(|row| row.event_type == "Mark" && row.name.as_deref() == Some("a round"));
        assert_eq!(notes.count(), 100);
        for pool in MYPOOLS {
            assert!(run.stdout.contains(&format!("{pool} held at the end")), "{}", run.said());
        }
        // A capture explains itself: the probes need not be defined again.
        let again = Tracer::replay(&run.folder.capture()).succeed();
        assert_eq!(written(&again, &MYPOOLS), truth.reported);
    }
}

/// Arguments that a prologue moves away, to a register and into the frame, before an instruction that the kernel emulates: values, texts
/// and the pairing of entry and return are those of the calls, and no entry is single-stepped.
#[test]
fn arguments_are_followed_to_later_sites() {
    const ROUNDS: u64 = 20;
    const PROBES: [&str; 3] = [
        "--probe=libmypool.so:_ZN2my5movedEm=alloc(size=0,ret=ptr,pool=moved)",
        "--probe=libmypool.so:my_moved_free=free(ptr=0,pool=moved)",
        "--probe=libmypool.so:my_moved_note=mark(text=1)",
    ];
    let library = simulation().join("lib/libmypool.so");
    let said = Command::new(tracer_path()).args(["doctor", "--json", "--library"]).arg(library).args(PROBES).output();
    let said: Value = serde_json::from_slice(&said.expect("the tracer runs").stdout).expect("JSON");
    let probes = said["libraries"][0]["probes"].as_array().expect("probes");
    assert_eq!(probes.len(), PROBES.len());
    for probe in probes {
        assert!(probe["site_offset"].as_u64().expect("an offset") > 0, "{probe}");
        // The alloc's own return instruction is, on x86-64.
        assert!(probe["own_returns"] == 1 || probe["single_stepped"] == false, "{probe}");
    }
    let rounds = ROUNDS.to_string();
    for options in [&[][..], &["--link=cookie"], &["--transport=perf"], &["--call-stack=c:10"]] {
        let run = Tracer::run("moved", &["--rounds", &rounds]).options(&PROBES).options(options).succeed();
        assert_nothing_lost(&run);
        let reported: Vec<_> = written(&run, &["moved"])
            .into_iter()
            .map(|reported| (reported.1, reported.4, reported.5, reported.6))
            .collect();
        let expected = (1..=ROUNDS).flat_map(|size| {
            let block = size << 12;
            [("MALLOC", block, Some(size), size), ("FREE", block, None, 0)]
        });
        assert_eq!(reported, expected.collect::<Vec<_>>(), "{options:?}");
        let rows = run.rows();
        let notes = rows.all().filter(|row| row.event_type == "Mark" && row.name.as_deref() == Some("moved"));
        assert_eq!(notes.count() as u64, ROUNDS, "{options:?}");
    }
}

/// A C++ function that throws out of a probed call: the program goes on, and every block that it did get is there.
#[test]
fn functions_that_throw_are_traced_unharmed() {
    let run = Tracer::run("mypool", &["--throw-every", "1"]).options(&MYPOOL).succeed();
    assert_eq!(run.counted("thrown"), 100);
    assert_nothing_lost(&run);
    assert_sound_with(&run, &MYPOOLS);
    assert_eq!(written(&run, &MYPOOLS), truth_of_mypool(&run, "1").reported);
}

/// A C function that catches what a C++ function throws inside of it, both probed: each block is in both pools.
#[test]
fn exceptions_are_caught_inside_of_probed_calls() {
    const POOLS: [&str; 2] = ["outer", "object"];
    let run = Tracer::run("mypool", &["--throw-every", "1"])
        .option("--probe=libmypool.so:simpool_take=alloc(size=0,out=1,pool=outer)")
        .option("--probe=libmypool.so:simpool_give=free(ptr=0,pool=outer)")
        .options(&MYPOOL[4..6])
        .succeed();
    assert_nothing_lost(&run);
    assert_sound_with(&run, &POOLS);
    let mut truth = Truth::default();
    for Entry { tid, symbol, args, out, .. } in &entries(&run, Library::MyPool) {
        match *symbol {
            "Pool_take" => {
                truth.alloc(*tid, "object", "1", *out, args[0]);
                truth.alloc(*tid, "outer", "1", *out, args[0]);
            }
            "Pool_give" => {
                truth.free(*tid, "outer", args[0]);
                truth.free(*tid, "object", args[0]);
            }
            _ => {}
        }
    }
    assert_eq!((run.counted("thrown"), truth.reported.len()), (100, 2 * (100 + 98)));
    assert_eq!(written(&run, &POOLS), truth.reported);
}

/// All pools of `MindSpore`, on two threads; they throw now and then, and give nothing for nothing.
#[test]
fn pools_of_mindspore() {
    for variant in [&["--throw-every", "0"][..], &["--throw-every", "1"], &["--threads", "4", "--device", "5"]] {
        let run = Tracer::run("mindspore", variant).succeed();
        assert_nothing_lost(&run);
        assert_sound_with(&run, &[]);
        let device = if variant.contains(&"5") { "5" } else { "2" };
        let mut truth = Truth::default();
        for Entry { tid, symbol, args, out, .. } in &entries(&run, Library::MindSpore) {
            match *symbol {
                "AllocTensorMem" => truth.alloc(*tid, "MINDSPORE", device, *out, args[0]),
                "FreeTensorMem" => truth.free(*tid, "MINDSPORE", args[0]),
                _ => {}
            }
        }
        assert_eq!(truth.reported.len() as u64, run.counted("allocs") + run.counted("frees"), "{variant:?}");
        // The pool's sum after an event depends on what other threads do at that moment.
        let without_sum = |mut reported: Vec<Reported>| {
            for one in &mut reported {
                one.6 = 0;
            }
            reported
        };
        let (written, reported) = (written(&run, &["MINDSPORE"]), truth.reported);
        assert_eq!(written.last().map(|last| last.6), reported.last().map(|last| last.6), "{variant:?}");
        assert_eq!(by_thread(&without_sum(written)), by_thread(&without_sum(reported)), "{variant:?}");
        assert!(run.stdout.contains("Mindspore memory pool held at the end"), "{}", run.said());
    }
}

/// A pool with unseen frees is reported, during the trace and in the report: the named function of this one does not
/// run when a block is freed.
#[test]
fn pool_without_frees_is_reported() {
    let run = Tracer::run("mypool", &["--throw-every", "0"]).options(&MYPOOL[..1]).succeed();
    assert_eq!(run.stderr.matches("frees of pool mypool are not seen").count(), 1, "{}", run.said());
    assert!(run.stdout.contains("Frees of this pool are not seen: "), "{}", run.said());
    let run = Tracer::run("mypool", &["--throw-every", "0"]).options(&MYPOOL[..2]).succeed();
    assert!(!run.said().contains("not seen"), "{}", run.said());
}

/// What `doctor` says of calls that are not seen, with these probes of the user.
fn unseen(library: &str, probes: &[&str]) -> Vec<String> {
    let mut command = Command::new(tracer_path());
    command.args(["doctor", "--json", "--library"]).arg(simulation().join("lib").join(library)).args(probes);
    let output = command.output().expect("the tracer runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = found["checks"].as_array().expect("a list").iter();
    let degraded = checks.filter(|check| check["state"] == "degraded");
    degraded.map(|check| check["found"].as_str().expect("a text").to_owned()).collect()
}

/// `doctor` notices an allocator with unseen frees: none has a probe, or the probed one is copied into a thunk and
/// bypassed, as `FreeTensorMem` of `MindSpore`. For functions with a probe of their own it has no message, and for
/// thunks that jump neither.
#[test]
fn doctor_notices_frees_that_are_not_seen() {
    const POOL: &str = "libmindspore_memory_pool.so";
    const BOTH: [&str; 2] = [
        "--probe=libmindspore_memory_pool.so:_ZN9mindspore6device22AbstractDynamicMemPool13FreeTensorMemERKPv=free(ptr=*1)",
        "--probe=libmindspore_memory_pool.so:_ZN9mindspore6device21DynamicMemPoolBestFit13FreeTensorMemERKPv=free(ptr=*1)",
    ];
    assert_eq!(unseen(POOL, &[]), Vec::<String>::new());
    let said = unseen(POOL, &BOTH);
    let [passed] = &said[..] else { panic!("{said:?}") };
    let function = "_ZN9mindspore6device22AbstractDynamicMemPool13FreeTensorMemERKPv";
    assert!(passed.contains(&format!("calls of `{function}` that come by `_ZTv0_n")), "{passed}");
    assert!(
        passed.contains("_N9mindspore6device22AbstractDynamicMemPool13FreeTensorMemERKPv` are not seen"),
        "{passed}"
    );
    let said = unseen("libmypool.so", &MYPOOL[..1]);
    assert!(said.len() == 1 && said[0].starts_with("frees of pool mypool are not seen"), "{said:?}");
    assert_eq!(unseen("libmypool.so", &MYPOOL[..2]), Vec::<String>::new());
}

/// What the user got wrong is said before anything is traced, in a sentence.
#[test]
fn wrong_definitions_are_refused() {
    let run = Tracer::run("baseline", &[]).option("--probe=libmypool.so:my_alloc=alloc(size=9,ret=ptr)").finish();
    assert_eq!(run.code(), 2, "{}", run.said());
    assert!(run.stderr.contains("`size=9` names no argument; write a number from 0 to 5"), "{}", run.said());
    let run = Tracer::run("baseline", &[]).option("--probes=/nonexistent.json").finish();
    assert_eq!(run.code(), 2, "{}", run.said());
    assert!(run.stderr.contains("cannot read the probes in `/nonexistent.json`"), "{}", run.said());
}

/// vLLM's allocator: its blocks are there while the server sleeps, the memory behind them is not. The truth is what the
/// program printed.
#[test]
fn blocks_of_vllm() {
    const POOLS: [&str; 1] = ["vllm"];
    let run = Tracer::run("vllm", &["--blocks", "11", "--size", "3000000"]).succeed();
    assert_nothing_lost(&run);
    assert_sound_with(&run, &POOLS);
    let mut truth = Truth::default();
    let rows = run.rows();
    let tid = rows.all().find(|row| row.event_type == "vllm").expect("a row").tid;
    for line in run.stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let addr = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("an address");
        match words[..] {
            ["alloc", ptr, size] => truth.alloc(tid, "vllm", "1", addr(ptr), size.parse().expect("a size")),
            ["free", ptr] => truth.free(tid, "vllm", addr(ptr)),
            _ => {}
        }
    }
    assert_eq!(truth.reported.len(), 11 + 6);
    assert_eq!(written(&run, &POOLS), truth.reported);
    // Made, and made again after the sleep; 4 MiB each, as nothing else is. The six that were freed gave theirs back.
    let ids = |event: &'static str| rows.all().filter(move |row| row.event == event && !row.is_made_up());
    let of_vllm: Vec<u64> = ids("MALLOC")
        .filter(|row| row.event_type == "HAL" && row.number("size") == 4 << 20)
        .map(|row| row.number("allocation_id"))
        .collect();
    assert_eq!(of_vllm.len(), 22);
    let freed = ids("FREE").filter(|row| row.event_type == "HAL" && of_vllm.contains(&row.number("allocation_id")));
    assert_eq!(freed.count(), 11 + 6);
}
