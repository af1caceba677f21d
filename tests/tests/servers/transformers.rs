//! Training and generation with transformers and accelerate.

use memscope_tests::torch::bench::Program;
use memscope_tests::torch::truth::Truth;

use super::{EVERYTHING, LEAKS, accused, compare, line_of, steps_ended};

/// Blocks of the pool are multiples of it.
const ROUND: u64 = 512;
const STEPS: u64 = 12;

fn learns(kind: &str) {
    let (run, truth) = Program::server(&format!("trainer.py {kind} 5 clean")).traced(&EVERYTHING);
    // start, model, 5 steps, trained, generated, end
    assert_eq!(truth.marks.len(), 10);
    // 8 tokens of the prompt and 6 that were written.
    assert!(run.stdout.contains("generated 1 14 npu:0"), "{}", run.stdout);
    compare(&format!("Trainer and generate(), {kind}"), &run, &[truth]);
}

#[test]
fn gpt2() {
    learns("gpt2");
}

#[test]
fn llama() {
    learns("llama");
}

/// The list of losses is named at the line that fills it, and nothing else is: of the first step nothing is judged, and the last one
/// that has ended judges none of its own.
#[test]
fn losses_that_are_kept() {
    let (run, truth) = Program::server(&format!("trainer.py gpt2 {STEPS} keeps")).traced_with(&LEAKS);
    let pid = Truth::read(&truth).pid();
    assert!(run.stdout.contains(&format!("kept {STEPS} {}", 4 * STEPS)), "{}", run.stdout);
    let json = run.json();
    assert_eq!(steps_ended(&json, pid), STEPS);
    let place = line_of("trainer.py", "# the leak", "Losses.compute_loss");
    assert_eq!(accused(&json, pid), [(STEPS - 2, (STEPS - 2) * ROUND, place)]);
}

/// The same program that keeps nothing is accused of nothing.
#[test]
fn nothing_is_kept() {
    let (run, truth) = Program::server(&format!("trainer.py gpt2 {STEPS} clean")).traced_with(&LEAKS);
    let pid = Truth::read(&truth).pid();
    let json = run.json();
    assert_eq!(steps_ended(&json, pid), STEPS);
    assert_eq!(accused(&json, pid), []);
}
