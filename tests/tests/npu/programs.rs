//! Programs that are traced from their start to their end.

use memscope_tests::torch::bench::Program;

use super::{Outcome, compare};

const EXPANDABLE: (&str, &str) = ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True");

fn train(kind: &str, task_queue: &str) {
    let program = Program::new(&format!("train.py {kind} 10 128")).env("TASK_QUEUE_ENABLE", task_queue);
    let outcome = compare(&format!("training, {kind}, TASK_QUEUE_ENABLE={task_queue}"), &program);
    assert_learned(&outcome, kind);
}

/// It did what it should: the losses are those of the same network on the CPU, to all printed digits.
fn assert_learned(outcome: &Outcome, kind: &str) {
    let wanted = if kind == "sgd" { ["2.311932", "2.123824"] } else { ["2.311932", "0.068469"] };
    let lines = outcome.stdout.lines();
    let printed: Vec<&str> = lines.filter_map(|line| line.strip_prefix("step ")?.split(' ').nth(2)).collect();
    assert_eq!(printed, wanted, "{}", outcome.stdout);
    assert_eq!(outcome.truth.marks.len(), 12);
    assert!(outcome.launches > 200, "only {} launches", outcome.launches);
}

/// Operators are queued, and run on another thread.
#[test]
fn train_sgd_queue_1() {
    train("sgd", "1");
}

/// Preparing them is queued, too: workspaces come from an allocator of their own, on that thread.
#[test]
fn train_sgd_queue_2() {
    train("sgd", "2");
}

#[test]
fn train_adamw_queue_1() {
    train("adamw", "1");
}

#[test]
fn train_adamw_queue_2() {
    train("adamw", "2");
}

/// Two devices, two streams, the cache emptied.
#[test]
fn churn() {
    let Outcome { truth, .. } = compare("churn on two devices", &Program::new("churn.py 2000"));
    assert!(truth.history.iter().all(|history| history.len() > 400), "little happened on one of the devices");
}

/// What other libraries ask for, and how much of it, is known as that of tensors is; emptying the cache is no request.
#[test]
fn raw_blocks() {
    let Outcome { truth, .. } = compare("blocks without a tensor", &Program::new("raw.py 40"));
    assert!(truth.history[0].len() > 160, "only {} operations", truth.history[0].len());
}

#[test]
fn churn_expandable() {
    let program = Program::new("churn.py 2000").env(EXPANDABLE.0, EXPANDABLE.1);
    let Outcome { truth, .. } = compare("churn on two devices, expandable segments", &program);
    assert!(truth.history.iter().all(|history| history.len() > 400), "little happened on one of the devices");
}

#[test]
fn train_expandable() {
    let program = Program::new("train.py adamw 10 128").env(EXPANDABLE.0, EXPANDABLE.1);
    assert_learned(&compare("training, adamw, expandable segments", &program), "adamw");
}

/// Six times an error that Python catches, and three times a retry that helps.
#[test]
fn out_of_memory() {
    let Outcome { truth, .. } = compare("out of memory", &Program::new("oom.py"));
    let end = truth.marks.last().expect("a mark");
    assert_eq!((end.stat(0, "num_ooms"), end.stat(0, "num_alloc_retries")), (6, 9));
}

/// An expandable segment stays when its blocks are freed, so no retry is needed for the large one.
#[test]
fn out_of_memory_expandable() {
    let program = Program::new("oom.py").env(EXPANDABLE.0, EXPANDABLE.1);
    let Outcome { truth, .. } = compare("out of memory, expandable segments", &program);
    let end = truth.marks.last().expect("a mark");
    assert_eq!((end.stat(0, "num_ooms"), end.stat(0, "num_alloc_retries")), (6, 6));
}
