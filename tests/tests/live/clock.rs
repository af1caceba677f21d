//! Times that answers print can be typed: they choose the moment that was printed.

use std::{collections::BTreeSet, path::Path, process::Command};

use memscope_tests::harness::tracer::{Tracer, tracer_path};

/// A command on files; gives what it prints.
fn answer(arguments: &[&str]) -> String {
    let said = Command::new(tracer_path()).args(arguments).output().expect("runs");
    assert!(said.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).expect("text")
}

/// The times of a line, since the start and by the wall clock: `4.25s (2026-11-21T10:00:04.25+08:00)`.
fn times(line: &str) -> Vec<(String, String)> {
    let parts = line.split(" (").zip(line.split(" (").skip(1));
    let both = parts.filter_map(|(before, behind)| {
        let since = before.rsplit(' ').next()?;
        let wall = behind.split(')').next()?;
        let is_time = since.strip_suffix('s')?.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        (is_time && wall.contains('T')).then(|| (since.to_owned(), wall.to_owned()))
    });
    both.collect()
}

/// `line` up to its first time.
fn figures(line: &str) -> &str {
    times(line).first().and_then(|(since, _)| line.split_once(since.as_str())).map_or(line, |(figures, _)| figures)
}

/// Make sure that the highest moment and the worst one of a run cut there are those of the whole run.
#[test]
fn printed_times_can_be_typed() {
    let arguments = ["--rounds", "6", "--leaks", "2", "--leak-size", "3000000", "--workspaces", "2"];
    let run = Tracer::run("pool", &arguments).options(&["--analysis=none"]).succeed();
    let capture = run.folder.capture();
    let capture = capture.to_str().expect("text");
    for (command, starts) in
        [("peaks", "Peak of "), ("decompose", "Owners of "), ("fragmentation", "  At the worst moment, ")]
    {
        let whole = answer(&[command, capture]);
        let lines: Vec<&str> = whole.lines().filter(|line| line.starts_with(starts)).collect();
        assert!(!lines.is_empty(), "{whole}");
        for line in lines {
            let found = times(line);
            let [(since, wall)] = &found[..] else { panic!("one time: {line}") };
            for time in [since, wall] {
                let cut = answer(&[command, capture, "--until", time]);
                if command == "fragmentation" {
                    let (_, state) = line.split_once("): ").expect("a state");
                    let is_end =
                        |cut: &str| cut.starts_with("  At the end, ") && times(cut) == found && cut.ends_with(state);
                    assert!(cut.lines().any(is_end), "{command} --until {time}: {line}\n{cut}");
                } else {
                    let is_same = |cut: &str| figures(cut) == figures(line) && times(cut) == found;
                    assert!(cut.lines().any(is_same), "{command} --until {time}: {line}\n{cut}");
                }
                assert!(!answer(&[command, capture, "--since", time]).is_empty());
                // The same moment, however it is spelt; all its blocks are live.
                let differences = |to: &str| answer(&["diff", capture, "--from=0", "--to", to, "--json"]);
                let [by_time, by_since] = [differences(time), differences(since)].map(|text| {
                    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                    document["pools"].clone()
                });
                assert!(by_time.as_array().is_some_and(|pools| !pools.is_empty()), "{by_time:#}");
                assert_eq!(by_time, by_since, "{time}");
            }
        }
    }
}

/// Make sure that what each owner holds in a line of the table is what it holds at the end of a run cut there.
#[test]
fn times_of_tables_can_be_typed() {
    let arguments = ["--rounds", "500", "--leaks", "1", "--leak-size", "40000", "--workspaces", "0"];
    let run = Tracer::run("pool", &arguments).options(&["--analysis=none"]).succeed();
    let capture = run.folder.capture();
    let capture = capture.to_str().expect("text");
    // Lines of the tables: a time, then bytes in columns.
    let rows = |text: &str| -> Vec<Vec<String>> {
        let cells =
            |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
        let is_row = |cells: &Vec<String>| {
            cells.first().and_then(|time| time.strip_suffix('s')).is_some_and(|time| time.parse::<f64>().is_ok())
        };
        text.lines().map(cells).filter(is_row).collect()
    };
    let table = rows(&answer(&["decompose", capture]));
    assert!(table.len() >= 4, "{table:?}");
    for row in table.iter().step_by(table.len().div_ceil(4)) {
        let cut = rows(&answer(&["decompose", capture, "--until", &row[0]]));
        // The second column is the highest within the line's interval; owners stand in the order of what they hold at most.
        // An owner that comes later has a column of the whole table only.
        let held = |row: &[String]| row[2..].iter().filter(|held| *held != "0 bytes").cloned().collect::<BTreeSet<_>>();
        assert!(cut.iter().any(|cut| cut[0] == row[0] && held(cut) == held(row)), "{row:?}: {cut:?}");
    }
}

/// The end of what is judged, and a failed request, of runs that end in order.
#[test]
fn times_of_verdicts_can_be_typed() {
    let exit = Tracer::run("steps", &["--steps", "12", "--leaks", "2", "--free-at-exit"]).succeed();
    let oom = Tracer::run("ooms", &[]).option("--analysis=oom").env("ASCEND_SIM_CAPACITY_MB", "256").succeed();
    let leaks = |capture: &Path, until: &[&str]| {
        let text = answer(&[&["leaks", capture.to_str().expect("text")], until].concat());
        text.lines().filter(|line| line.starts_with("Leaks of steps ")).map(str::to_owned).collect::<Vec<_>>()
    };
    for (run, starts, count) in [(&exit, "The run is judged from ", 1), (&oom, "Thread ", 4), (&oom, "  Largest: ", 1)]
    {
        let lines: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with(starts)).collect();
        assert!(lines.len() >= count, "{starts}: {}", run.said());
        let times: BTreeSet<_> = lines.iter().flat_map(|line| times(line)).collect();
        assert!(!times.is_empty(), "{lines:?}");
        for time in times.iter().flat_map(|(since, wall)| [since, wall]) {
            let of_part = leaks(&run.folder.capture(), &["--until", time]);
            if starts.starts_with("Leaks") {
                // The exit is cut off: what was held when it began leaks all the same, as found by the whole run.
                assert_eq!(of_part, leaks(&run.folder.capture(), &[]), "{time}");
                assert_eq!(of_part.len(), 1);
            }
        }
    }
    let refused = Command::new(tracer_path())
        .args(["diff", exit.folder.capture().to_str().expect("text"), "--from=2001-01-01T00:00:00Z"])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("there is no moment 2001-01-01T00:00:00Z in it"), "{text}");
}
