//! Training on two ranks, each with a part of every weight: `fully_shard`.

use super::ranks;

const KIND: &str = "fsdp2";

#[test]
fn both_ranks_are_exact() {
    ranks::is_exact(KIND);
}

#[test]
fn a_leak_is_named_on_its_rank() {
    ranks::names_the_rank(KIND);
}

#[test]
fn nothing_is_kept() {
    ranks::names_none(KIND);
}
