//! Training on two ranks, started by `torch.distributed.run`: what the tests of all ways to do it share.

use memscope_tests::harness::tracer::Run;
use memscope_tests::torch::bench::Program;
use memscope_tests::torch::truth::Truth;
use serde_json::Value;

use super::{EVERYTHING, LEAKS, accused, compare, line_of, of_process, steps_ended};

const RANKS: u32 = 2;
const STEPS: u64 = 12;
/// The one that keeps something.
const KEEPING: usize = 1;
/// The outputs of a step: 16 rows of 10 numbers, ...
const KEPT: u64 = 16 * 10 * 4;
/// ... with room for what operators may read behind a tensor, in blocks of 512 bytes.
const BLOCK: u64 = 1024;
/// What a communicator takes of the driver: two buffers of 16 MiB.
const BUFFERS: u64 = 2 * (16 << 20);

/// A way to train on ranks.
pub(super) struct Training {
    /// The program, and what it is asked for.
    pub(super) program: &'static str,
    /// Losses of the same network on the CPU (the program with `cpu 5`).
    pub(super) losses: [&'static str; 5],
    pub(super) communicators: u64,
    /// How many of the steps can be seen to end.
    pub(super) ended: u64,
}

impl Training {
    /// torch's own ways, with SGD. Backward passes are the steps, since SGD takes no memory. Three of these end before the fourth makes
    /// them steps, and nothing shows that the last one has ended.
    pub(super) const fn of_torch(program: &'static str) -> Self {
        let losses = ["2.2854", "2.2135", "2.1473", "2.0852", "2.0255"];
        Self { program, losses, communicators: 1, ended: STEPS - 4 }
    }

    /// `DeepSpeed`, with `AdamW`. Steps are the optimizer's; nothing shows that the last one has ended.
    pub(super) const fn of_deepspeed(program: &'static str) -> Self {
        let losses = ["2.2854", "1.9254", "1.6206", "1.3433", "1.0876"];
        Self { program, losses, communicators: 2, ended: STEPS - 1 }
    }
}

/// Runs it on all ranks; gives the account of each.
pub(super) fn traced(training: &Training, arguments: &str, options: &[&str]) -> (Run, Vec<Truth>) {
    let program = Program::server(&format!("{} {arguments}", training.program));
    let program = program.started_by(&format!("torch.distributed.run --nproc_per_node {RANKS}"));
    let (run, folder) = program.traced_with(options);
    let truths = (0..RANKS).map(|rank| Truth::read(&folder.join(format!("rank {rank}")))).collect();
    (run, truths)
}

/// Both ranks to the byte, each on its device, and the losses of the CPU.
pub(super) fn is_exact(training: &Training) {
    let (run, truths) = traced(training, "5", &EVERYTHING);
    let losses: Vec<&str> =
        run.stdout.lines().filter_map(|line| line.strip_prefix("step ")?.split(' ').nth(2)).collect();
    assert_eq!(losses, training.losses, "{}", run.stdout);
    let json = run.json();
    for (rank, truth) in (0..).zip(&truths) {
        let held = of_process(&json, "held", truth.pid());
        let mut devices: Vec<&str> = held.iter().filter_map(|held| held["device"].as_str()).collect();
        devices.retain(|device| *device != "host");
        devices.dedup();
        assert_eq!(devices, [format!("npu:{rank}")], "rank {rank}");
        assert_eq!(buffers(&json, truth.pid()), Some(training.communicators * BUFFERS), "rank {rank}");
    }
    compare(&format!("{}, {RANKS} ranks", training.program), &run, &truths);
}

/// What the ledger has for collectives at the peak.
fn buffers(json: &Value, pid: u32) -> Option<u64> {
    let ledgers = of_process(json, "ledger", pid);
    let peak = ledgers.iter().find(|ledger| ledger["moment"] == "peak")?;
    let part = peak["hal"]["parts"].as_array()?.iter().find(|part| part["item"] == "hccl")?;
    part["size_bytes"].as_u64()
}

/// What one rank keeps is named on it, at its line, and the other is accused of nothing.
pub(super) fn names_the_rank(training: &Training) {
    let (run, truths) = traced(training, &format!("{STEPS} {KEEPING}"), &LEAKS);
    let (ended, script) = (training.ended, training.program.split(' ').next().expect("a word"));
    assert!(run.stdout.contains(&format!("rank {KEEPING} kept {STEPS} {}", STEPS * KEPT)), "{}", run.stdout);
    let json = run.json();
    for (rank, truth) in truths.iter().enumerate() {
        assert_eq!(steps_ended(&json, truth.pid()), ended, "rank {rank}");
        let place = line_of(script, "# the leak", "<module>");
        let wanted = if rank == KEEPING { vec![(ended - 2, (ended - 2) * BLOCK, place)] } else { Vec::new() };
        assert_eq!(accused(&json, truth.pid()), wanted, "rank {rank}");
    }
}

/// Neither is accused when none keeps anything.
pub(super) fn names_none(training: &Training) {
    let (run, truths) = traced(training, &STEPS.to_string(), &LEAKS);
    let json = run.json();
    for (rank, truth) in truths.iter().enumerate() {
        assert_eq!(steps_ended(&json, truth.pid()), training.ended, "rank {rank}");
        assert_eq!(accused(&json, truth.pid()), [], "rank {rank}");
    }
}
