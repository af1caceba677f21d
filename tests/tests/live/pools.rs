//! The framework's memory pools: a hidden function of a stripped library, found and probed.

use memscope_tests::harness::journal::{Entry, Library, PtaReport};
use memscope_tests::harness::tracer::{Run, Tracer};

use super::shared::{assert_nothing_lost, assert_sound};

/// Event, address, size, bytes handed out, bytes held.
type Told = (&'static str, u64, u64, u64, u64);

/// What the caching allocator told of the blocks of one process, in order. When a block that was freed goes back to the
/// pool is of no interest here.
fn told(run: &Run) -> Vec<Told> {
    let journal = run.journal();
    let reports = journal.entries.iter().filter_map(Entry::pta_report);
    let of_tensors = reports.filter(|report| report.component == 0 && report.kind < 2);
    of_tensors
        .map(|PtaReport { kind, addr, size, allocated, reserved, .. }| {
            (if kind == 0 { "MALLOC" } else { "FREE" }, addr, size.unsigned_abs(), allocated, reserved)
        })
        .collect()
}

fn written(run: &Run) -> Vec<Told> {
    let rows = run.rows();
    let of_tensors = rows.all().filter(|row| row.event_type == "PTA" && !row.is_made_up());
    of_tensors
        .map(|row| {
            let event = if row.event == "MALLOC" { "MALLOC" } else { "FREE" };
            (event, row.ptr.expect("an address"), row.number("size"), row.number("used"), row.number("total"))
        })
        .collect()
}

/// Each block of the pool with the pool's own totals, late ones of other streams among them.
#[test]
fn every_block_of_the_pool_is_reported() {
    let variants: [&[&str]; 3] = [
        &[],
        &["--blocks", "40", "--size", "3000000", "--leak-size", "30000000", "--device", "2"],
        &["--rounds", "10", "--leaks", "0", "--shared", "16"],
    ];
    for variant in variants {
        let run = Tracer::run("pool", variant).succeed();
        assert_nothing_lost(&run);
        assert_sound(&run);
        let told = told(&run);
        assert_eq!(told.len() as u64, run.counted("mallocs") + run.counted("frees"), "{variant:?}");
        assert_eq!(written(&run), told, "{variant:?}");
        assert_eq!(told.last().expect("some").3, run.counted("allocated"), "{variant:?}");
    }
}

/// The real function may throw, and an entry probe is not in the way of what unwinds the stack.
#[test]
fn a_report_that_throws_does_the_program_no_harm() {
    let run = Tracer::run("pool", &["--rounds", "20"]).env("ASCEND_SIM_PTA_THROW", "2").succeed();
    assert_nothing_lost(&run);
    assert_eq!(written(&run), told(&run));
    assert!(run.journal().count(Library::TorchNpu, "reportMemoryDataToNpuProfiler") > 1000);
}
