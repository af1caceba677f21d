//! What does a replay under other settings cost? Requests of two made-up programs, under twenty settings, on one core.

use anyhow::{Context as _, Result};
use memscope::analyses::{Analysis, Finding, Observer as _};
use memscope::backend::ascend::pools;
use memscope::model::{Event, RunEnd, Stacks};
use memscope::whatif::{Card, Recorder, Release, Requests, Settings, Setup, Source, Until, replay};

use crate::program::{Program, Slot};
use crate::random::Random;
use crate::sizes::cost_of;

/// Runs a program.
type Made = fn(&mut Program);

const REQUESTS: u64 = 10_000_000;
const GOAL_SECONDS: f64 = 60.0;
const GOAL_BYTES: f64 = 24.0;
const MIB: u64 = 1 << 20;

const SETTINGS: [&str; 20] = [
    "",
    "expandable_segments:True",
    "expandable_segments:True,base_addr_aligned_kb:0",
    "expandable_segments:True,segment_size_mb:32",
    "expandable_segments:True,segment_size_mb:64",
    "expandable_segments:True,segment_size_mb:128",
    "expandable_segments:True,segment_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "max_split_size_mb:21",
    "max_split_size_mb:32",
    "max_split_size_mb:48",
    "max_split_size_mb:64",
    "max_split_size_mb:96",
    "max_split_size_mb:128",
    "max_split_size_mb:192",
    "max_split_size_mb:256",
    "max_split_size_mb:384",
    "max_split_size_mb:512",
];

/// Prints figures; gives whether the goals are met.
pub(crate) fn run() -> Result<bool> {
    let programs: [(&str, Made); 2] = [("training", training), ("server", server)];
    let mut met = true;
    for (name, program) in programs {
        let requests = requests(program)?;
        let bytes = requests.memory_bytes() as f64 / requests.count as f64;
        let cpu_seconds = || cost_of(libc::RUSAGE_SELF).cpu_seconds;
        let started = cpu_seconds();
        let mut peak_bytes = 0;
        for text in SETTINGS {
            let settings = Settings::parse(text, Release::Next)?;
            let outcome = replay(
                &requests,
                &Setup { settings, card: Card::default(), with_script: false, with_limits: false },
                Until::End,
            );
            peak_bytes = peak_bytes.max(outcome.devices[0].figures.reserved_peak_bytes);
        }
        let seconds = cpu_seconds() - started;
        println!(
            "{name}: {} requests under {} settings: {seconds:.1} s of a processor (goal {GOAL_SECONDS:.0} s), {bytes:.1} bytes a request (goal \
             {GOAL_BYTES:.0}); peaks up to {} MiB",
            requests.count,
            SETTINGS.len(),
            peak_bytes / MIB
        );
        met &= seconds <= GOAL_SECONDS && bytes <= GOAL_BYTES;
    }
    Ok(met)
}

fn requests(program: Made) -> Result<Requests> {
    let (recorder, made) = Recorder::new(Source::Dump);
    let mut made_up = Program::new(vec![Box::new(Seen(recorder))]);
    program(&mut made_up);
    drop(made_up.finish());
    made.try_recv().unwrap_or_default().pop().context("no requests")
}

/// A recorder that a program takes for an analysis without findings.
struct Seen(Recorder);

impl Analysis for Seen {
    fn observe(&mut self, event: &Event) {
        self.0.observe(event);
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.0.finish(end);
        Vec::new()
    }
}

/// Addresses that no live block has.
struct Addresses(u64);

impl Addresses {
    fn alloc(&mut self, program: &mut Program, bytes: u64) -> Slot {
        self.0 += 1 << 32;
        program.alloc(pools::PTA, self.0, bytes, Stacks::default())
    }
}

/// Steps of 48 layers: activations are kept for the way back, temporary blocks go at once.
fn training(program: &mut Program) {
    let (mut addresses, mut random, mut made) = (Addresses(0), Random::new(1), 0);
    let _weights: Vec<Slot> = (0..400).map(|index| addresses.alloc(program, (1 + index % 7) * 4 * MIB)).collect();
    while made < REQUESTS {
        let mut kept = Vec::new();
        for layer in 0..48_u64 {
            for _ in 0..4 {
                let temporary = addresses.alloc(program, 512 * random.between(1, 40_000));
                kept.push(addresses.alloc(program, (1 + layer % 3) * 3 * MIB / 2));
                program.free(temporary);
                made += 2;
            }
        }
        while let Some(block) = kept.pop() {
            let gradient = addresses.alloc(program, 2 * MIB);
            program.free(block);
            program.free(gradient);
            made += 1;
        }
    }
}

/// Requests of all lengths come and go.
fn server(program: &mut Program) {
    let (mut addresses, mut random) = (Addresses(0), Random::new(2));
    let mut live: Vec<Slot> = Vec::new();
    for _ in 0..REQUESTS {
        let bytes = if random.once_in(3) { random.between(MIB, 40 * MIB) } else { random.between(1, 64 << 10) };
        let slot = addresses.alloc(program, bytes.next_multiple_of(512));
        live.push(slot);
        if live.len() > 600 {
            let index = random.below(live.len() as u64) as usize;
            program.free(live.swap_remove(index));
        }
    }
}
