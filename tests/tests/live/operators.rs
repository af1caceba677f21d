//! Operators of libtorch and their tensors, over a look-alike of libtorch that says itself what it does.

use std::collections::BTreeMap;

use memscope_tests::harness::kernel;
use memscope_tests::harness::rows::{Row, Rows, dump_files, split_csv};
use memscope_tests::harness::tracer::{Run, Tracer};

use super::shared::assert_nothing_lost;

/// Lines by thread.
type Lines = BTreeMap<u32, Vec<String>>;

/// What the program says: `tid START name`, or `tid READ name device address bytes type [sizes]`.
fn said(run: &Run) -> Lines {
    let mut lines = Lines::new();
    for line in run.stdout.lines() {
        if let Some((tid, rest)) = line.split_once(' ')
            && let Ok(tid) = tid.parse()
        {
            lines.entry(tid).or_default().push(rest.to_owned());
        }
    }
    lines
}

/// The same of a row; `None` for other rows.
fn line(row: &Row) -> Option<String> {
    let name = row.name.as_deref().unwrap_or("N/A");
    match (row.event.as_str(), row.event_type.as_str()) {
        ("OP_LAUNCH", "ATEN_START") => Some(format!("START {name}")),
        ("OP_LAUNCH", "ATEN_END") => Some(format!("END {name}")),
        ("ACCESS", kind) => {
            let attr = |key: &str| row.attr.get(key).unwrap_or_else(|| panic!("no `{key}` in {row:?}")).as_str();
            assert_eq!(row.ptr.map(|ptr| format!("0x{ptr:016x}")).as_deref(), Some(attr("addr")), "{row:?}");
            assert_eq!(attr("type"), if row.device == "cpu" { "HOST" } else { "PTA" }, "{row:?}");
            let shape = attr("shape").trim_start_matches("torch.Size(").trim_end_matches(')');
            Some(format!("{kind} {name} {} {} {} {} {shape}", row.device, attr("addr"), attr("size"), attr("dtype")))
        }
        _ => None,
    }
}

fn traced(rows: &Rows) -> Lines {
    let mut lines = Lines::new();
    for row in rows.all() {
        if let Some(text) = line(row) {
            lines.entry(row.tid).or_default().push(text);
        }
    }
    lines
}

fn kept(lines: Lines, keep: impl Fn(&str) -> bool) -> Lines {
    let keep_all = |(tid, all): (u32, Vec<String>)| (tid, all.into_iter().filter(|line| keep(line)).collect());
    lines.into_iter().map(keep_all).filter(|(_, all): &(u32, Vec<String>)| !all.is_empty()).collect()
}

/// `None` on kernels that cannot trace these operators, where that has to be said.
fn trace(options: &[&str]) -> Option<Run> {
    let run = Tracer::run("operators", &[]).options(options).finish();
    if !kernel::has_multi_links() && run.stderr.contains("cannot be traced on this kernel") {
        assert_eq!(run.code(), 125, "{}", run.said());
        return None;
    }
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost(&run);
    Some(run)
}

/// Names, order, addresses, types and shapes of everything; an operator that throws ends nowhere, and its program lives.
#[test]
fn operators_and_their_tensors() {
    let Some(run) = trace(&["--events", "launch,access", "--device", "npu,cpu"]) else { return };
    let expected = said(&run);
    // Two threads; the first does everything twice, once on the CPU.
    assert_eq!(
        expected.values().map(|lines| lines.iter().filter(|line| line.starts_with("START")).count()).sum::<usize>(),
        3 * 14
    );
    assert_eq!(traced(&run.rows()), expected);
    // A replay of the capture knows the operators by itself.
    let replay = Tracer::replay(&run.folder.capture()).options(&["--events", "launch,access", "--device", "npu,cpu"]);
    assert_eq!(traced(&replay.succeed().rows()), expected);
}

/// Event, name and C stack of the rows of all operators and accesses.
fn stacks(run: &Run) -> Vec<[String; 3]> {
    let texts =
        dump_files(&run.folder.output_path()).into_iter().map(|file| std::fs::read_to_string(file).expect("text"));
    let rows = texts.flat_map(|text| split_csv(&text).into_iter().skip(1));
    let kept = rows.filter(|row| ["OP_LAUNCH", "ACCESS"].contains(&row[1].text.as_str()));
    let kept = kept.map(|row| (row[0].text.clone(), row[5].text.clone(), [2, 3, 11].map(|at| row[at].text.clone())));
    // A row without a device stands in several files.
    kept.map(|(id, pid, row)| ((pid, id), row)).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Rows of operators and of accesses say where the operator was called, at its beginning and at its end.
#[test]
fn operators_have_stacks() {
    let options = ["--events", "launch,access", "--device", "npu,cpu"];
    let Some(run) = trace(&[&options[..], &["--call-stack=c"]].concat()) else { return };
    let expected = said(&run);
    assert_eq!(traced(&run.rows()), expected);
    let rows = stacks(&run);
    assert_eq!(rows.len(), expected.values().map(Vec::len).sum::<usize>());
    for [event, name, stack] in rows {
        // `torch._ops.aten.add.Tensor` is `at::_ops::add_Tensor::call`; `linear` calls others.
        let name = name.trim_start_matches("torch._ops.aten.").trim_end_matches(".default").replace('.', "_");
        let what = format!("{event} {name}\n{stack}");
        let frames: Vec<&str> = stack.lines().collect();
        assert!(frames[0].starts_with(&format!("libtorch_cpu.so(at::_ops::{name}::call(")), "{what}");
        let caller = frames.iter().find(|frame| !frame.starts_with("libtorch_cpu.so(at::")).expect("a caller");
        assert!(caller.starts_with("operators((anonymous namespace)::work("), "{what}");
        // Main thread and other threads end in the libraries' or the program's code.
        let outermost = frames.last().expect("a frame");
        assert!(outermost.starts_with("operators(_start") || outermost.starts_with("libc.so.6("), "{what}");
    }
    let Some(run) = trace(&options) else { return };
    assert!(stacks(&run).iter().all(|[.., stack]| stack.is_empty()), "{:?}", stacks(&run).first());
}

/// Tensors in host memory are left out unless they are asked for.
#[test]
fn devices_are_chosen() {
    let Some(run) = trace(&["--events", "launch,access"]) else { return };
    assert_eq!(traced(&run.rows()), kept(said(&run), |line| !line.contains(" cpu ")));
    let Some(run) = trace(&["--events", "launch,access", "--device", "npu:1"]) else { return };
    let expected = kept(said(&run), |line| !line.contains(" cpu ") && !line.contains(" 0 0x"));
    assert_eq!(traced(&run.rows()), expected);
}

/// Operators are chosen by name: all overloads, or one; an operator that is made up of others too, if it is named.
#[test]
fn operators_are_chosen() {
    let Some(run) = trace(&["--events", "launch,access", "--ops", "aten::max,mul_.Tensor"]) else { return };
    let wanted = |line: &str| (line.contains(".max.dim") || line.contains(".mul_.Tensor")) && !line.contains(" cpu ");
    assert_eq!(traced(&run.rows()), kept(said(&run), wanted));
    let Some(run) = trace(&["--events", "launch,access", "--device", "npu,cpu", "--ops", "linear"]) else { return };
    let names: Vec<_> = run.rows().all().filter_map(line).filter(|line| line.starts_with("START")).collect();
    assert_eq!(names, ["START torch._ops.aten.linear.default"; 3]);
}

/// Without accesses there are names; without operators there is nothing.
#[test]
fn names_alone_and_nothing() {
    let Some(run) = trace(&["--ops", "all"]) else { return };
    let is_name = |line: &str| line.starts_with("START") || line.starts_with("END");
    assert_eq!(traced(&run.rows()), kept(said(&run), is_name));
    for options in [&[][..], &["--ops", "none", "--events", "launch,access"], &["--ops", "all", "--level", "kernel"]] {
        let run = Tracer::run("operators", &[]).options(options).succeed();
        assert_eq!((run.rows().count("ACCESS"), run.rows().count("OP_LAUNCH")), (0, 0), "{options:?}");
    }
}

/// A link for each probe, where the kernel has no links for many: few operators can be named, not all.
#[test]
fn single_links() {
    if !kernel::has_cookies() {
        return;
    }
    let options = ["--link", "cookie", "--events", "launch,access"];
    let run = Tracer::run("operators", &[]).options(&options).option("--ops=cat,mm").succeed();
    let wanted = |line: &str| (line.contains(".cat.") || line.contains(".mm.")) && !line.contains(" cpu ");
    assert_eq!(traced(&run.rows()), kept(said(&run), wanted));
    let run = Tracer::run("operators", &[]).options(&options).option("--ops=all").finish();
    assert_eq!(run.code(), 125, "{}", run.said());
    assert!(run.stderr.contains("name those of interest with --ops"), "{}", run.said());
    let run = Tracer::run("operators", &[]).options(&["--link", "slots", "--ops=cat"]).finish();
    assert_eq!(run.code(), 125, "{}", run.said());
    assert!(run.stderr.contains("no attach cookies"), "{}", run.said());
}
