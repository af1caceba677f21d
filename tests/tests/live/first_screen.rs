//! The first screen of a report: 24 lines with the right verdict, place, bytes and share, by the programs' own books.

use memscope_tests::harness::tracer::{Run, Tracer};

/// ACL asks for this much more than its caller.
const MORE: u64 = 32;
const MIB: u64 = 1 << 20;

fn scene(name: &str) -> Tracer {
    Tracer::run("scenes", &[name]).options(&["--call-stack=c", "--report=summary"]).env("LC_ALL", "C.UTF-8")
}

/// The screen alone: within 24 lines of 80 columns, without a character that a terminal obeys. Commands to copy are whole: a terminal breaks
/// longer ones.
fn screen(run: &Run) -> Vec<String> {
    let begin = run.stdout.find("memscope-bpf · ").unwrap_or_else(|| panic!("no screen: {}", run.said()));
    let lines: Vec<String> = run.stdout[begin..].lines().map(str::to_owned).collect();
    let width = |line: &String| line.chars().count();
    let rows = |line: &String| width(line).div_ceil(80).max(1);
    assert!(lines.iter().map(rows).sum::<usize>() <= 24, "{}", run.said());
    let commands = lines.iter().position(|line| line.starts_with(" next:")).unwrap_or(lines.len());
    assert!(lines[..commands].iter().all(|line| width(line) <= 80), "{}", run.said());
    assert!(!run.stdout.contains('\u{1b}'), "{}", run.said());
    lines
}

/// Bytes with two decimals, worked out here.
fn spelt(bytes: u64) -> String {
    match bytes {
        0..MIB => format!("{:.2} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Each step leaves a block at one place, and the process is killed: the last step has not ended, and none judges the one before it.
#[test]
fn a_leak_is_the_first_verdict() {
    let run = scene("killed").finish();
    let lines = screen(&run);
    let leaked = run.counted("kept") - 2;
    let expected = format!(" ✗ LEAK  {} in {leaked} blocks stay, at 1 place", spelt(leaked * (MIB + MORE)));
    assert_eq!(lines[2], expected, "{}", run.said());
    assert!(lines[4].ends_with("100 %") && lines[5] == "     scenes  keep_here", "{}", run.said());
    assert!(lines[0].contains(" · npu:0 · ") && lines[0].ends_with(" · nothing lost"), "{}", run.said());
    assert!(lines.iter().any(|line| line.contains("leaks: found")), "{}", run.said());
    // The tracer ran in the folder of the outputs.
    let capture = run.folder.capture();
    let name = capture.file_name().and_then(|name| name.to_str()).expect("a name");
    let next = format!(" next:  memscope-bpf report output/{name} --open");
    assert!(lines.contains(&next), "{next}: {}", run.said());
}

/// The request that failed, and the holders of that moment: one place kept a block in each step.
#[test]
fn an_out_of_memory_is_the_first_verdict() {
    let run = scene("retries").option("--analysis=leaks,oom").env("ASCEND_SIM_CAPACITY_MB", "256").finish();
    says_what_failed(&run);
}

/// The same where no analysis was asked for: the capture has what is needed. Findings as JSON are those that were asked for.
#[test]
fn an_out_of_memory_is_found_unasked() {
    let run = scene("retries").option("--fail-on=oom").env("ASCEND_SIM_CAPACITY_MB", "256").finish();
    says_what_failed(&run);
    assert_ne!(run.code(), 0, "{}", run.said());
    let replayed = Tracer::replay(&run.folder.capture()).option("--report=summary").env("LC_ALL", "C.UTF-8").finish();
    assert_eq!(screen(&replayed)[..8], screen(&run)[..8]);
    let run = scene("retries").option("--json").env("ASCEND_SIM_CAPACITY_MB", "256").finish();
    let (found, text) = (run.json(), run.said());
    let mut kinds = found["findings"].as_array().expect("a list").iter().map(|it| it["finding"].as_str());
    assert!(!kinds.any(|kind| kind == Some("oom")), "{text}");
}

fn says_what_failed(run: &Run) {
    let lines = screen(run);
    let asked = |mib: u64| lines[2].starts_with(&format!(" ✗ OUT OF MEMORY  {} asked for at ", spelt(mib * MIB)));
    assert!(asked(180) || asked(190), "{}", run.said());
    assert!(lines[3].trim_start().starts_with("CAUSE"), "{}", run.said());
    // All of it is the driver's: the cache that is left, and what the steps kept.
    let kept = run.counted("kept");
    let of_steps = format!("{} in {kept} blocks", spelt(kept * (256 * 1024 + MORE)));
    let place = lines.iter().position(|line| line.contains(&of_steps)).unwrap_or_else(|| panic!("{}", run.said()));
    assert_eq!(lines[place + 1], "     scenes  keep_here", "{}", run.said());
    assert!(lines.iter().any(|line| line.contains("oom: found")), "{}", run.said());
}

/// A server: one place keeps a block now and then until the end.
#[test]
fn growth_is_the_first_verdict() {
    let run = scene("bursts").finish();
    let lines = screen(&run);
    assert!(lines[2].starts_with(" ✗ GROWING  ") && lines[2].ends_with(" more an hour, at 1 place"), "{}", run.said());
    let kept = run.counted("kept");
    let live = format!("{} in {kept} blocks", spelt(kept * (MIB + MORE)));
    assert!(lines[4].contains("100 %") && lines[4].contains(&live), "{live}: {}", run.said());
    assert_eq!(lines[5], "     scenes  keep_here", "{}", run.said());
}

/// Without steps and in less than ten seconds nothing is judged, and that is the verdict.
#[test]
fn what_is_not_judged_is_no_all_clear() {
    let run = Tracer::run("pool", &[]).option("--report=summary").env("LC_ALL", "C").finish();
    let begin = run.stdout.find("memscope-bpf").unwrap_or_else(|| panic!("{}", run.said()));
    let text = &run.stdout[begin..];
    assert!(text.contains("\n ? NOT JUDGED"), "{}", run.said());
    assert!(!text.contains("NOTHING FOUND"), "{}", run.said());
}

/// A condition that holds makes a good run fail with status 3, and is named; one that does not changes nothing.
#[test]
fn conditions_for_continuous_integration() {
    let run = |fail_on: &str| {
        Tracer::run("steps", &["--steps", "6"]).options(&["--report=summary", "--fail-on", fail_on]).finish()
    };
    let leaky = run("growth,leak");
    assert_eq!(leaky.code(), 3, "{}", leaky.said());
    assert!(leaky.stderr.contains("--fail-on: process") && leaky.stderr.contains("it leaks"), "{}", leaky.said());
    let other = run("growth,oom,peak>512G");
    assert_eq!(other.code(), 0, "{}", other.said());
    // Success of other conditions does not hide the leak, nor that a run of a second is too short for growth.
    for words in ["leaks found, which is not in the list (add `leak`)", "growth not judged (needs 10 s of work)"] {
        assert!(other.stderr.contains(words), "{}", other.said());
    }
    let replayed = Tracer::replay(&leaky.folder.capture()).options(&["--fail-on", "peak>1M"]).finish();
    assert_eq!(replayed.code(), 3, "{}", replayed.said());
    assert_eq!(Tracer::replay(&leaky.folder.capture()).options(&["--fail-on", "peak>512G"]).finish().code(), 0);
}

/// A page of the trace, in one command: a file of ours that only its owner reads, and the run goes on to the end of its report.
#[test]
fn a_page_comes_with_the_trace() {
    let run = scene("killed").option("--html=page.html").finish();
    let page = run.folder.path().join("page.html");
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{error}: {}", run.said()));
    assert!(text.starts_with("<!doctype html>\n<!-- memscope-bpf report -->\n"), "{}", &text[..80]);
    assert!(text.ends_with("</html>\n") && text.contains("Content-Security-Policy"), "{}", text.len());
    let mode = std::os::unix::fs::PermissionsExt::mode(&page.metadata().expect("a page").permissions());
    assert_eq!(mode & 0o777, 0o600, "{}", run.said());
    assert!(run.stdout.contains(" ✗ LEAK "), "{}", run.said());
}
