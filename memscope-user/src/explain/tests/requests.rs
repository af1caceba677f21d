//! Requests that failed.

use super::*;

/// 200 MiB asked for, 100 MiB unused in the pool: 100 MiB is missing. Where nothing is missing the rule is silent.
#[test]
fn a_request_that_is_too_large() {
    let found = card(Rule::OomShort, &[oom(200 * MIB, 100 * MIB, 2 * MIB).into()]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Error, 100 * MIB));
    assert_eq!(
        found.text,
        "200.00 MiB asked for at oom.py:6 prefill; pools had 100.00 MiB unused, up to 100.00 MiB was missing."
    );
    let evidence = [
        "2 attempts of the request",
        "PyTorch pool: 1.00 GiB in use of 1.10 GiB, largest free piece 2.00 MiB",
        "768.00 MiB in 12 blocks: kv.py:4 kv",
    ];
    assert_eq!(found.evidence, evidence);
    assert_eq!(rules(&[oom(100 * MIB, 100 * MIB, 100 * MIB).into()]), [Rule::OomApart]);
}

/// 100 MiB unused: with a largest piece of 70 MiB 30 % of it is outside of that, with 70 MiB and a byte less.
#[test]
fn pieces_from_thirty_percent_on() {
    let found = card(Rule::OomFragmented, &[oom(80 * MIB, 100 * MIB, 70 * MIB).into()]).expect("a card");
    assert_eq!(found.size_bytes, 100 * MIB);
    assert!(found.text.ends_with("; 100.00 MiB was free in pools, the largest piece had 70.00 MiB."), "{}", found.text);
    let [first, second] = &advice(&found)[..] else { panic!("{found:?}") };
    assert!(first.ends_with("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, unless in force"), "{first}");
    assert!(second.ends_with("PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:N"), "{second}");
    assert_eq!(rules(&[oom(80 * MIB, 100 * MIB, 70 * MIB + 1).into()]), []);
}

/// A setting in force is no advice, and one that it excludes neither.
#[test]
fn expandable_segments_are_in_force() {
    let conf = settings(&[("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")]);
    let found = card(Rule::OomFragmented, &[oom(80 * MIB, 100 * MIB, 2 * MIB).into(), conf]).expect("a card");
    assert_eq!(advice(&found), [""; 0]);
    let last = found.evidence.last().map(String::as_str);
    assert_eq!(
        last,
        Some("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True was set at the start: it is not the reason")
    );
}

/// The largest piece is unknown: no card about pieces.
#[test]
fn unknown_pieces_are_not_judged() {
    let mut unknown = oom(80 * MIB, 100 * MIB, 0);
    unknown.pools[0].largest_free_bytes = None;
    unknown.cause = Cause::of(crate::backend::ascend::pools::HAL, unknown.size_bytes, &unknown.pools);
    assert_eq!(rules(&[unknown.into()]), []);
}

/// Other processes hold exactly the request, or a byte less; figures of the driver that are too old do not count.
#[test]
fn other_processes_hold_the_request() {
    let of_others = |bytes: u64, time_ns: u64| {
        let others = [(Item::OtherProcess { pid: 40 }, bytes - 10), (Item::OtherProcess { pid: 41 }, 10)];
        let ledger = with_figures(ledger(GIB, &[]), 2 * GIB, &others);
        [oom(200 * MIB, 0, 0).into(), Ledger { used_time_ns: Some(time_ns), ..ledger }.into()]
    };
    let found = card(Rule::OomOther, &of_others(200 * MIB, 50 * SECOND_NS)).expect("a card");
    assert_eq!(found.size_bytes, 200 * MIB);
    let text = "200.00 MiB asked for at oom.py:6 prefill; 2 other processes on the device: 200.00 MiB in use; this one had 1.00 GiB \
        of the driver's memory.";
    assert_eq!(found.text, text);
    assert!(found.evidence.contains(&"process 40: 200.00 MiB".to_owned()), "{:?}", found.evidence);
    assert!(
        found.evidence.contains(&"the driver's figures are 1.0 s from the failure".to_owned()),
        "{:?}",
        found.evidence
    );
    // It is the more special one.
    assert_eq!(rules(&of_others(200 * MIB, 50 * SECOND_NS)), [Rule::OomOther]);
    assert_eq!(rules(&of_others(200 * MIB - 1, 50 * SECOND_NS)), [Rule::OomShort]);
    assert_eq!(rules(&of_others(200 * MIB, 41 * SECOND_NS)), [Rule::OomOther]);
    assert_eq!(rules(&of_others(200 * MIB, 41 * SECOND_NS - 1)), [Rule::OomShort]);
}

/// A request of a graph capture, by its frames; a function of that name in no Python file is none.
#[test]
fn a_request_while_graphs_are_captured() {
    let stacks =
        python(&["/x/torch/nn.py(3): f", "/x/vllm_ascend/worker/model_runner_v1.py(9): NPUModelRunner.capture_model"]);
    let captured = Oom { stacks, ..oom(200 * MIB, 100 * MIB, MIB) };
    let found = card(Rule::GraphCapture, &[captured.clone().into()]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Error, 200 * MIB));
    assert!(found.text.ends_with(" while graphs were captured; up to 100.00 MiB was missing."), "{}", found.text);
    assert_eq!(rules(&[captured.into()]), [Rule::GraphCapture]);
    let native =
        Stacks { native: Some(Stack::keep(["lib.so(capture_model+0x1) [0x1]"], StackEnd::Root)), ..Stacks::default() };
    assert_eq!(rules(&[Oom { stacks: native, ..oom(200 * MIB, 100 * MIB, MIB) }.into()]), [Rule::OomShort]);
}

/// Requests of one place are one card; those of two places are two.
#[test]
fn requests_of_a_place_are_one_card() {
    let at = |seconds: u64, size: u64| Oom { time_ns: seconds * SECOND_NS, ..oom(size, 0, 0) };
    let found = card(Rule::OomShort, &[at(20, 300 * MIB).into(), at(30, 200 * MIB).into()]).expect("one card");
    assert!(
        found.text.starts_with("200.00 MiB asked for at oom.py:6 prefill (2 failed requests here)"),
        "{}",
        found.text
    );
    let other = Oom { stacks: python(&["other.py(1): g"]), ..at(40, 100 * MIB) };
    assert_eq!(rules(&[at(20, 300 * MIB).into(), other.into()]), [Rule::OomShort; 2]);
}
