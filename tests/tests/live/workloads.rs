//! Every workload, event for event.

use std::{fs, path::PathBuf};

use memscope_tests::harness::expect::{Expect, Totals, Window, assert_equal, assert_unbroken};
use memscope_tests::harness::journal::Library;
use memscope_tests::harness::rows::dump_files;
use memscope_tests::harness::tracer::{Folder, Tracer, in_vm, simulation, unix_offset_ns, workload_path};

use super::shared::{DEFAULT, assert_nothing_lost, compare, compare_short, finding, libraries_with};

/// Steps of a training loop, in all the shapes that the workload has.
#[test]
fn steps() {
    let variants: [&[&str]; 6] = [
        &[],
        &["--steps", "12", "--leaks", "3", "--first-leak", "4"],
        &["--free-later", "2"],
        &["--nested", "3"],
        &["--domain"],
        &["--hold-last"],
    ];
    for variant in variants {
        let (run, totals) = compare(Tracer::run("steps", variant), DEFAULT);
        assert!(run.status.success(), "{}", run.said());
        // The runtime adds three blocks of its own for the device, which an orderly end frees.
        assert_eq!(totals.allocs, run.counted("allocs") + 3, "{variant:?}");
        let open = u64::from(variant.contains(&"--hold-last"));
        assert_eq!(totals.held, run.counted("leaked") + 3 * open, "{variant:?}");
        assert_eq!(totals.frees + totals.held, totals.allocs, "{variant:?}");
        assert_eq!(totals.marks, 2 * run.counted("ranges") - open, "{variant:?}");
        assert_eq!(totals.systems, 2 - open, "{variant:?}");
    }
}

/// Pairs by the driver and by ACL, on one thread and on several.
#[test]
fn pairs() {
    let (run, totals) = compare(Tracer::run("pairs", &["--pairs", "2000", "--hal"]), DEFAULT);
    assert_eq!((totals.allocs, totals.frees, run.counted("allocs")), (2000, 2000, 2000));
    let arguments = ["--pairs", "1000", "--threads", "4", "--size", "3000000"];
    let (run, totals) = compare(Tracer::run("pairs", &arguments), DEFAULT);
    assert_eq!((totals.allocs, totals.frees, run.counted("allocs")), (4003, 4003, 4000));
}

/// As many threads and libraries as servers have; all threads allocate at the same moment.
#[test]
fn crowd() {
    let (threads, libraries): (u64, u64) = if in_vm() { (200, 20) } else { (3000, 300) };
    let folder = Folder::new();
    for number in 0..libraries {
        let copy = folder.path().join(format!("libmany{number}.so"));
        fs::copy(simulation().join("lib/stacks/libframes_a.so"), copy).expect("a copy");
    }
    let many = folder.path().to_str().expect("a path");
    let arguments = ["--threads", &threads.to_string(), "--libraries", many, "--map-gib", "1"];
    let (run, totals) = compare(Tracer::run("crowd", &arguments), DEFAULT);
    assert!(run.status.success(), "{}", run.said());
    assert_eq!((run.counted("libraries"), run.counted("left")), (libraries, threads / 10));
    assert_eq!((totals.allocs, totals.frees, totals.held), (threads + 3, threads + 3, 0));
}

/// Blocks that other threads free, and addresses that come back at once in others.
#[test]
fn share() {
    let (run, totals) = compare(Tracer::run("share", &["--events", "20000", "--threads", "8"]), DEFAULT);
    assert_eq!((totals.allocs, totals.frees), (run.counted("allocs") + 3, run.counted("frees") + 3));
}

/// A tree of forked processes; and one with a root that becomes another program.
#[test]
fn forktree() {
    let (run, totals) = compare(Tracer::run("forktree", &[]), DEFAULT);
    assert_eq!(run.rows().processes.len(), 7);
    // None of them resets its device, so each ends with the runtime's three blocks.
    assert_eq!((totals.allocs, totals.frees, totals.held), (7 * 13, 7 * 10, 7 * 3));
    let (run, totals) = compare(Tracer::run("forktree", &["--leak", "--children", "3"]), DEFAULT);
    assert_eq!(run.rows().processes.len(), 13);
    assert_eq!((totals.allocs, totals.frees, totals.held), (13 * 13, 0, 13 * 13));
    let devices = workload_path("devices");
    let exec = ["--depth", "0", "--leak", "--exec", devices.to_str().expect("a path")];
    let (run, totals) = compare(Tracer::run("forktree", &exec), DEFAULT);
    assert_eq!(run.rows().processes.len(), 1);
    assert_eq!((totals.allocs, totals.frees, totals.held), (13 + 206, 206, 13));
}

/// Makes sure that children which have smaller numbers than their parents are followed like others: numbers begin again when they are used up.
#[test]
fn forktree_where_ids_begin_again() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    if !std::path::Path::new(LAST).exists() {
        return;
    }
    let program = workload_path("forktree");
    // The root's children get the last numbers and the first ones. Others may take numbers in between.
    let line = format!("echo $(($(cat /proc/sys/kernel/pid_max) - 3)) > {LAST}; exec '{}'", program.display());
    for tries in 0.. {
        assert!(tries < 20, "numbers do not begin again");
        let (run, totals) = compare(Tracer::run_program("bash", &["-c", &line]), DEFAULT);
        assert_eq!((totals.allocs, totals.frees, totals.held), (7 * 13, 7 * 10, 7 * 3));
        let numbers: Vec<u32> = run.rows().processes.into_keys().collect();
        let root = run.journal().entries.first().expect("a call").pid;
        if numbers.iter().any(|number| *number < root) && numbers.iter().any(|number| *number > root) {
            break;
        }
    }
}

/// A child that has the number of another one, of which the kernel reports the end late.
#[test]
fn number_of_a_process_that_has_just_ended() {
    if !std::path::Path::new("/proc/sys/kernel/ns_last_pid").exists() {
        return;
    }
    let run = Tracer::run("samenumber", &[]).succeed();
    assert_nothing_lost(&run);
    assert!(run.counted("reused") > 0, "{}", run.said());
    // Processes of one number have rows of the same numbers, so they are counted as text. 32 bytes are the runtime's.
    let text = |file: &PathBuf| fs::read_to_string(file).expect("a dump");
    let rows: String = dump_files(&run.folder.output_path()).iter().map(text).collect();
    let count = |event: &str| rows.lines().filter(|row| row.contains(event) && row.contains("size:65568,")).count();
    assert_eq!([",MALLOC,HAL,", ",FREE,HAL,"].map(count), [20 * 20; 2]);
}

/// Processes as a shell makes them.
#[test]
fn forktree_of_a_shell() {
    let (run, totals) = compare_short(Tracer::run_program(workload_path("forktree.sh"), &[]), DEFAULT);
    assert!(run.status.success(), "{}", run.said());
    assert_eq!(run.counted("allocs"), 920);
    let openings = run.journal().count(Library::Runtime, "rtSetDevice");
    assert!(openings > 0);
    assert!(totals.allocs > 920, "{totals:?}");
    assert_eq!(totals.allocs, totals.frees + totals.held);
}

/// Libraries that are loaded long after the start, by the program, its child, or its child's child: not even the first
/// allocation is missed.
#[test]
fn late_libraries() {
    for generations in ["0", "1", "2"] {
        let arguments = ["--generations", generations, "--delay-ms", "50", "--leak"];
        let (run, totals) = compare(Tracer::run("latedl", &arguments), DEFAULT);
        assert_eq!((totals.allocs, totals.held, run.counted("allocs")), (13, 13, 10), "{generations}");
    }
}

/// A copy of the libraries that no variable of the tracer names, and a script that runs a program with it.
fn hidden_libraries(arguments: &str) -> (tempfile::TempDir, String) {
    let folder = libraries_with("libascendcl.so");
    let program = workload_path("latedl");
    let script = format!("LD_LIBRARY_PATH={} exec {} {arguments}", folder.path().display(), program.display());
    (folder, script)
}

/// Libraries that cannot be found before they are loaded: the thread that loads them waits, or its process is stopped, until they are probed.
#[test]
fn late_libraries_from_nowhere() {
    for generations in 0..=2 {
        let (_folder, script) = hidden_libraries(&format!("--generations {generations} --delay-ms 50"));
        // In a VM the kernel may be one without holds.
        let hold = if in_vm() { None } else { Some("hold") };
        for how in hold.into_iter().chain(["stop"]) {
            let tracer = Tracer::run_program("/bin/sh", &["-c", &script]).env("LD_LIBRARY_PATH", "");
            let (run, totals) = compare(tracer.options(&["--late-libraries", how]), DEFAULT);
            assert_eq!((totals.allocs, totals.frees, run.counted("allocs")), (13, 10, 10), "{generations} {how}");
        }
    }
}

/// Without stopping, the first calls may be missed, but none after the first that was seen.
#[test]
fn late_libraries_without_stopping() {
    let (_folder, script) = hidden_libraries("--generations 1 --delay-ms 50 --leak");
    let tracer = Tracer::run_program("/bin/sh", &["-c", &script]).env("LD_LIBRARY_PATH", "");
    let run = tracer.option("--late-libraries=notify").succeed();
    let journal = run.journal();
    let pid = *journal.processes().last().expect("a process");
    let window = Window { from_ns: u64::MAX, to_ns: u64::MAX };
    assert_unbroken(&journal, &run.rows(), pid, window, unix_offset_ns());
}

/// Two devices, each with its file; a thread without a device; a default device for it.
#[test]
fn devices() {
    let (run, totals) = compare(Tracer::run("devices", &[]), DEFAULT);
    assert_eq!(run.rows().files.len(), 2);
    assert_eq!((totals.allocs, totals.frees, totals.held), (206, 206, 0));
    let (_, totals) = compare(Tracer::run("devices", &["--leak"]), DEFAULT);
    // `aclFinalize` frees the runtime's blocks.
    assert_eq!((totals.allocs, totals.frees, totals.held), (206, 6, 200));
    let (run, totals) = compare(Tracer::run("devices", &["--default"]), DEFAULT);
    assert_eq!(totals.allocs, run.counted("allocs") + 6);
}

/// Only the devices asked for are written.
#[test]
fn chosen_device() {
    let run = Tracer::run("devices", &[]).option("--device=npu:1").succeed();
    let rows = run.rows();
    assert!(rows.all().all(|row| row.device == "1" || row.device == "N/A"), "{:?}", rows.files);
    assert_eq!((rows.count("MALLOC"), rows.count("FREE")), (103, 103));
}

/// Allocations that fail for the program are counted and are no rows; the runtime's second tries are no failures.
#[test]
fn out_of_memory() {
    let variants: [(&[&str], &str); 3] = [(&[], ""), (&["--rounds", "3"], "128"), (&["--huge-only"], "128")];
    for (arguments, huge) in variants {
        let tracer = Tracer::run("oom", arguments).option("--json");
        let tracer = tracer.env("ASCEND_SIM_CAPACITY_MB", "256").env("ASCEND_SIM_HUGE_MB", huge);
        let (run, totals) = compare(tracer, DEFAULT);
        assert_eq!(totals.allocs, run.counted("allocs") + 3, "{arguments:?}");
        let (pid, _) = run.journal().by_process().pop_first().expect("a process");
        let held = finding(&run, "held", pid, 0);
        // Every fill ends with a failure. Behind each but the last, the program frees blocks and gets that size.
        let (failed, recovered) = (&held["failed"], &held["recovered"]);
        assert_eq!((failed, recovered), (&1.into(), &(run.counted("failed") - 1).into()), "{arguments:?}");
        assert_eq!((&held["blocks"], &held["allocations"]), (&0.into(), &totals.allocs.into()), "{arguments:?}");
    }
}

/// The request that fails for good is reported, with the blocks live then: 64 of 4 MiB fit into 256 MiB at most.
#[test]
fn out_of_memory_is_reported() {
    let tracer = Tracer::run("oom", &["--rounds", "2"]).option("--analysis=oom:3").option("--json");
    let run = tracer.env("ASCEND_SIM_CAPACITY_MB", "256").succeed();
    let rows = run.rows();
    let of = |kind: &str| rows.all().filter(|row| row.event_type == kind).count();
    assert_eq!((of("OOM_TRIGGER"), of("OOM_RECENT_ALLOC"), of("OOM_TOP_ALLOC")), (1, 3, 3));
    let (pid, _) = run.journal().by_process().pop_first().expect("a process");
    let oom = finding(&run, "oom", pid, 0);
    assert_eq!((&oom["size_bytes"], &oom["function"]), (&(4 << 20).into(), &"aclrtMalloc".into()));
    // The driver is asked for a little more than the program wanted.
    let sizes: Vec<u64> =
        oom["top"].as_array().expect("blocks").iter().filter_map(|it| it["size_bytes"].as_u64()).collect();
    assert!(sizes.len() == 3 && sizes.iter().all(|size| (4 << 20..(4 << 20) + 4096).contains(size)), "{sizes:?}");
}

/// Every block of the driver has its module as owner, in its row and in the finding; no block is left out or twice.
#[test]
fn owners_are_reported() {
    let (run, totals) = compare(Tracer::run("steps", &[]).option("--analysis=decompose").option("--json"), DEFAULT);
    let rows = run.rows();
    let owners: std::collections::BTreeSet<&str> =
        rows.all().filter(|row| row.event == "MALLOC").map(|row| row.attr["owner"].as_str()).collect();
    assert!(owners.contains("CANN@APP") && owners.iter().all(|owner| owner.starts_with("CANN@")), "{owners:?}");
    let (pid, _) = run.journal().by_process().pop_first().expect("a process");
    let parts = finding(&run, "decompose", pid, 0)["parts"].clone();
    let parts = parts.as_array().expect("parts");
    let reported: std::collections::BTreeSet<&str> = parts.iter().filter_map(|part| part["owner"].as_str()).collect();
    assert_eq!(reported, owners);
    let blocks: u64 = parts.iter().filter_map(|part| part["blocks"].as_u64()).sum();
    assert_eq!(blocks, totals.allocs);
}

/// All ways to launch a kernel, with names, streams and devices; each launch once, however many libraries it passes.
#[test]
fn launches() {
    let expect = Expect { launches: true, ..DEFAULT };
    let (run, totals) = compare(Tracer::run("launches", &["--rounds", "50"]).option("--level=kernel"), expect);
    assert_eq!(totals.launches, run.counted("acl") + run.counted("rt") + run.counted("failed"));
    assert_eq!(totals.launches, 50 * 20);
    let (_, totals) = compare(Tracer::run("launches", &[]), DEFAULT);
    assert_eq!(totals.launches, 0, "launches belong to the level `kernel`");
}

/// Marks with hostile texts, null ones and ones of 1 MiB arrive unchanged, or cut where they are too long.
#[test]
fn marks() {
    let (run, totals) = compare(Tracer::run("marks", &["--rounds", "3"]), DEFAULT);
    // Half of them are in domains. A range is a start and an end.
    let expected = run.counted("marks") + 2 * run.counted("ranges");
    assert_eq!((totals.marks, expected), (3 * 2 * (38 + 76), 3 * 2 * (38 + 76)));
    let long = format!("{}…", "x".repeat(1016));
    assert_eq!(run.rows().all().filter(|row| row.name.as_deref() == Some(long.as_str())).count(), 3 * 2 * 4);
    assert!(!run.stderr.contains('\u{1b}') && !run.stdout.contains('\u{1b}'), "{}", run.said());
}

/// Physical memory: a handle is a block from its making to its release.
#[test]
fn physical() {
    let variants: [&[&str]; 4] = [&[], &["--hal"], &["--leak"], &["--hal", "--leak"]];
    for variant in variants {
        let (run, totals) = compare(Tracer::run("physical", variant), DEFAULT);
        let opened = if variant.contains(&"--hal") { 0 } else { 3 };
        assert_eq!(totals.allocs, run.counted("physical") + opened, "{variant:?}");
        assert_eq!(totals.frees, run.counted("released") + opened, "{variant:?}");
        assert_eq!(totals.held, totals.allocs - totals.frees, "{variant:?}");
    }
}

/// However a process ends, what it holds is in the files and in the report, and its exit status is passed on.
#[test]
fn ends_of_processes() {
    let ends = [("return", 0), ("exit", 0), ("_exit", 0), ("abort", 134), ("kill9", 137), ("segv", 139), ("thread", 0)];
    for (how, code) in ends {
        let (run, totals) = compare(Tracer::run("exits", &["--how", how]).option("--json"), DEFAULT);
        assert_eq!(run.code(), code, "{how}: {}", run.said());
        let blocks = if how == "thread" { 23 } else { 13 };
        assert_eq!((totals.allocs, totals.frees, totals.held), (blocks, 0, blocks), "{how}");
        let (pid, _) = run.journal().by_process().pop_first().expect("a process");
        assert_eq!(finding(&run, "held", pid, 0)["blocks"], blocks, "{how}");
    }
}

/// Frees that the driver refuses are no rows, and end no block.
#[test]
fn refused_frees() {
    let (run, totals) = compare(Tracer::run("badfree", &["--rounds", "200"]).option("--json"), DEFAULT);
    assert_eq!((totals.allocs, totals.frees, totals.held), (803, 803, 0));
    let (pid, entries) =
        run.journal().by_process().pop_first().map(|(pid, entries)| (pid, entries.len())).expect("one");
    assert!(entries > 0);
    let held = finding(&run, "held", pid, 0);
    assert_eq!((&held["unknown_frees"], &held["older_frees"]), (&0.into(), &0.into()));
}

/// A program that never touches a device leaves no rows, and is run as it is.
#[test]
fn baseline() {
    let (run, totals) = compare(Tracer::run("baseline", &["--pairs", "10"]), DEFAULT);
    assert!(run.status.success(), "{}", run.said());
    assert_eq!(totals, Totals::default());
}

/// Databases hold what CSV files hold.
#[test]
fn databases() {
    let expect = Expect { launches: true, ..DEFAULT };
    let runs: [(&str, &[&str]); 6] = [
        ("steps", &["--steps", "8", "--nested", "2"]),
        ("marks", &[]),
        ("launches", &[]),
        ("devices", &["--leak"]),
        ("physical", &["--leak"]),
        ("share", &["--events", "4000"]),
    ];
    for (workload, arguments) in runs {
        let tracer = Tracer::run(workload, arguments).options(&["--format", "db", "--level=kernel"]);
        if workload == "marks" {
            // The viewer wants a row with a device, and this program has none; the rows are right all the same.
            let run = tracer.finish();
            assert_equal(&run.journal(), &run.rows(), expect);
        } else {
            let (run, _) = compare(tracer, expect);
            assert!(run.rows().files.iter().all(|file| file.extension().is_some_and(|extension| extension == "db")));
        }
    }
}
