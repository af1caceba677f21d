//! Training on two ranks, each with a part of every weight: `fully_shard`.

use super::ranks::{self, Training};

const TRAINING: Training = Training::of_torch("ranks.py fsdp2");

#[test]
fn both_ranks_are_exact() {
    ranks::is_exact(&TRAINING);
}

#[test]
fn a_leak_is_named_on_its_rank() {
    ranks::names_the_rank(&TRAINING);
}

#[test]
fn nothing_is_kept() {
    ranks::names_none(&TRAINING);
}
