//! Training on two ranks with `DeepSpeed`: `ZeRO` in its three stages, which part the optimizer's state, gradients and weights.

use memscope_tests::harness::tracer::Run;

use super::ranks::{self, Training};
use super::{OWNERS, named};

const STATES: Training = Training::of_deepspeed("zero.py 1");
const GRADIENTS: Training = Training::of_deepspeed("zero.py 2");
const WEIGHTS: Training = Training::of_deepspeed("zero.py 3");

#[test]
fn both_ranks_are_exact_in_stage_1() {
    ranks::is_exact(&STATES);
}

#[test]
fn both_ranks_are_exact_in_stage_2() {
    ranks::is_exact(&GRADIENTS);
}

#[test]
fn both_ranks_are_exact_in_stage_3() {
    ranks::is_exact(&WEIGHTS);
}

#[test]
fn a_leak_is_named_on_its_rank_in_stage_1() {
    ranks::names_the_rank(&STATES);
}

#[test]
fn a_leak_is_named_on_its_rank_in_stage_3() {
    ranks::names_the_rank(&WEIGHTS);
}

#[test]
fn nothing_is_kept_in_stage_1() {
    ranks::names_none(&STATES);
}

#[test]
fn nothing_is_kept_in_stage_3() {
    ranks::names_none(&WEIGHTS);
}

#[test]
fn owners_in_stage_1() {
    names_what_it_keeps(&STATES);
}

#[test]
fn owners_in_stage_2() {
    names_what_it_keeps(&GRADIENTS);
}

#[test]
fn owners_in_stage_3() {
    names_what_it_keeps(&WEIGHTS);
}

/// What `DeepSpeed` keeps has its purpose, to the block, on both ranks.
fn names_what_it_keeps(training: &Training) {
    let (run, truths) = ranks::traced(training, "5", &OWNERS);
    let json = run.json();
    for (rank, truth) in truths.iter().enumerate() {
        let by = |key: &str| named(&json, truth.pid(), "PTA", key);
        let (components, owners) = (by("component"), by("owner"));
        for (named, name, what) in [
            (&components, "weight", "weights"),
            (&components, "optimizer_state", "optimizer_state"),
            (&components, "gradient", "gradients"),
            (&owners, "PTA@zero@gathered_weight", "gathered"),
        ] {
            let found = named.get(name).copied().unwrap_or_default();
            assert_eq!(found, said(&run, rank, what), "{name}, rank {rank}: {named:#?}");
        }
    }
}

/// What a rank says of its blocks: how many, and their bytes.
fn said(run: &Run, rank: usize, what: &str) -> (u64, u64) {
    super::numbers(&run.stdout, &format!("rank {rank} {what} "))
}
