//! The owners of a pool's memory, as text.

use std::io::{self, Write};

use super::{Decomposition, HeldPart, OwnerNode, OwnerPart, OwnerTimeline, Source};
use crate::model::Confidence;
use crate::text::DeviceName;
use crate::text::clock::Clock;
use crate::text::numbers::{counted, rounded, size};

/// Rules listed for each pool.
const RULE_LINES: usize = 30;
/// Moments of the timeline.
const TIME_LINES: usize = 12;
/// Components of the timeline.
const COLUMNS: usize = 8;

/// Writes one finding: the tree of owners, the rules behind it, and the components over time.
pub(super) fn write(found: &Decomposition, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let device = DeviceName(found.device);
    writeln!(
        out,
        "Owners of {} on device {device}: peak {} at {}, {} at the end, {} on average",
        found.pool.display_name(),
        size(found.peak_bytes),
        clock.exact(found.peak_ns),
        rounded(found.end_bytes.into()),
        rounded(found.mean_bytes.into()),
    )?;
    writeln!(out, "  {:>12}  {:>12}  {:>12}  Owner", "At peak", "At end", "Average")?;
    for node in &found.tree {
        write_node(node, 0, out)?;
    }
    for (moment, bytes) in [("peak", found.peak_untracked_bytes), ("end", found.end_untracked_bytes)] {
        if bytes > 0 {
            writeln!(
                out,
                "  Beyond that the pool had {} at its {moment} that were never seen allocated.",
                size(bytes)
            )?;
        }
    }
    writeln!(out, "  {:>12}  {:>8}  Named by", "At peak", "Blocks")?;
    for OwnerPart { component, rule, source, peak_bytes, blocks, .. } in found.parts.iter().take(RULE_LINES) {
        let peak = rounded((*peak_bytes).into());
        let by = if *source == Source::Nothing { String::new() } else { format!(", by {}", source_text(*source)) };
        writeln!(out, "  {peak:>12}  {blocks:>8}  {component}{by}: {rule}")?;
    }
    if let Some(more) = found.parts.len().checked_sub(RULE_LINES).filter(|&more| more > 0) {
        writeln!(out, "  … and {more} more (see --json)")?;
    }
    write_sources(found, out)?;
    write_held(&found.held, out)?;
    write_timeline(&found.timeline, clock, out)?;
    if found.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events or labels were lost, so blocks, steps and owners may be wrong.")?;
    }
    Ok(())
}

fn write_node(node: &OwnerNode, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let [peak, end, mean] = [node.peak_bytes, node.end_bytes, node.mean_bytes].map(|bytes| rounded(bytes.into()));
    let indent = 2 * depth;
    writeln!(out, "  {peak:>12}  {end:>12}  {mean:>12}  {:indent$}{}", "", node.label)?;
    node.children.iter().try_for_each(|child| write_node(child, depth + 1, out))?;
    // The bytes without a label behind this one.
    let rest =
        |of: fn(&OwnerNode) -> u64| of(node).saturating_sub(node.children.iter().map(of).fold(0, u64::saturating_add));
    let rest = [rest(|node| node.peak_bytes), rest(|node| node.end_bytes), rest(|node| node.mean_bytes)];
    if node.children.is_empty() || rest[..2] == [0, 0] {
        return Ok(());
    }
    let [peak, end, mean] = rest.map(|bytes| rounded(bytes.into()));
    writeln!(out, "  {peak:>12}  {end:>12}  {mean:>12}  {:indent$}  (no label)", "")
}

/// The attributed part of the peak, by evidence.
fn write_sources(found: &Decomposition, out: &mut dyn Write) -> io::Result<()> {
    if found.peak_bytes == 0 {
        return Ok(());
    }
    let percent = |bytes: u64| 100.0 * bytes as f64 / found.peak_bytes as f64;
    let of = Source::ALL.iter().zip(found.peak_by_source).filter(|(_, bytes)| *bytes > 0);
    let part = |(source, bytes): (&Source, u64)| match source {
        Source::Nothing => format!("{:.1}% have no name", percent(bytes)),
        _ => format!("{:.1}% are named by {}", percent(bytes), source_text(*source)),
    };
    let parts: Vec<String> = of.map(part).collect();
    writeln!(out, "  At the peak {}; {}.", parts.join(", "), counted(found.steps.into(), "step"))?;
    if found.parts.iter().any(|part| part.rule.as_str() == "no-stack") {
        writeln!(out, "  Blocks without a stack cannot be distinguished: trace with --call-stack=c,python.")?;
    }
    Ok(())
}

/// Where holders and rules disagree.
fn write_held(held: &[HeldPart], out: &mut dyn Write) -> io::Result<()> {
    let looked_at: u64 = held.iter().map(|part| part.blocks).sum();
    if looked_at == 0 {
        return Ok(());
    }
    let others: Vec<&HeldPart> = held.iter().filter(|part| part.held_as != part.by_rule).collect();
    let agreed = looked_at - others.iter().map(|part| part.blocks).sum::<u64>();
    writeln!(out, "  Holders show the purpose of {}; rules agree on {agreed}.", counted(looked_at, "block"))?;
    for HeldPart { held_as, by_rule, taken, blocks, size_bytes } in others {
        let size = rounded((*size_bytes).into());
        writeln!(out, "  {size:>12}  {blocks:>8}  {held_as} by holder, {by_rule} by rule; taken: {taken}")?;
    }
    Ok(())
}

const fn source_text(source: Source) -> &'static str {
    match source {
        Source::Pool => "pool",
        Source::Module => "module",
        Source::Stack => "stack",
        Source::Lifetime => "lifetime",
        Source::Label => "label",
        Source::Holder => "holder",
        Source::Nothing => "nothing",
    }
}

/// Evenly chosen moments, the largest components.
fn write_timeline(timeline: &OwnerTimeline, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let OwnerTimeline { components, samples } = timeline;
    let highest = |column: usize| samples.iter().map(|sample| sample.bytes[column]).max().unwrap_or(0);
    let mut columns: Vec<usize> = (0..components.len()).collect();
    columns.sort_by_key(|column| std::cmp::Reverse(highest(*column)));
    let more = columns.len().saturating_sub(COLUMNS);
    columns.truncate(COLUMNS);
    if samples.len() < 2 || columns.is_empty() {
        return Ok(());
    }
    write!(out, "  {:>15}  {:>12}", "Time", "Highest")?;
    for column in &columns {
        write!(out, "  {:>15}", components[*column].as_str())?;
    }
    writeln!(out, "{}", if more > 0 { "  …" } else { "" })?;
    let step = samples.len().div_ceil(TIME_LINES);
    // The last moment of each group, so that the end is there.
    for group in samples.chunks(step) {
        let Some(last) = group.last() else { continue };
        let highest = group.iter().map(|sample| sample.highest_bytes).max().unwrap_or(0);
        let after = clock.since_start(last.time_ns);
        write!(out, "  {after:>15}  {:>12}", rounded(highest.into()))?;
        for column in &columns {
            write!(out, "  {:>15}", rounded(last.bytes[*column].into()))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::{
        DecomposeAnalysis, Finding,
        script::{Script, run},
    };
    use crate::backend::ascend::pools;
    use crate::model::{Device, RunEnd};
    use crate::text::clock::without_wall;

    /// 1 MiB of weights and 512 KiB of an unknown owner without a stack, which is freed.
    #[test]
    fn owners_are_a_tree() {
        let mut script = Script::new(1, Device::Npu(0));
        script.stacks(&["/x/torch/nn/modules/module.py(942): Module._apply", "train.py(1): main"], &[]);
        script.alloc(pools::PTA, 0x1000, 1 << 20).stacks(&[], &[]).alloc(pools::PTA, 0x2000, 1 << 19);
        script.free(pools::PTA, 0x2000);
        let end = RunEnd { time_ns: 2, ..RunEnd::default() };
        let found = run(DecomposeAnalysis::default(), script.events(), &end);
        let [Finding::Decompose(found)] = found.as_slice() else { panic!("{found:?}") };
        let mut out = Vec::new();
        write(found, Clock::since(0), &mut out).expect("memory takes everything");
        let expected = "\
Owners of Pytorch Caching memory pool on device 0: peak 1.50 MiB (1572864 bytes) at 0.000000001s WALL, 1.00 MiB at the end, \
1.25 MiB on average
       At peak        At end       Average  Owner
      1.50 MiB      1.00 MiB      1.25 MiB  PTA
      1.00 MiB      1.00 MiB      1.00 MiB    weight
    512.00 KiB       0 bytes    256.00 KiB    (no label)
       At peak    Blocks  Named by
      1.00 MiB         1  weight, by stack: module-load
    512.00 KiB         1  unknown: no-stack
  At the peak 66.7% are named by stack, 33.3% have no name; 0 steps.
  Blocks without a stack cannot be distinguished: trace with --call-stack=c,python.
";
        assert_eq!(without_wall(&String::from_utf8(out).expect("text")), expected);
    }

    /// At most this many moments, the last of all among them.
    #[test]
    fn components_over_time() {
        let name = crate::model::Name::fixed;
        let samples = (1..=25).map(|at| crate::analyses::decompose::OwnerSample {
            time_ns: at * 1_000_000_000,
            highest_bytes: at,
            bytes: vec![1, 2 * at],
        });
        let timeline =
            OwnerTimeline { components: vec![name(&"weight"), name(&"activation")], samples: samples.collect() };
        let mut out = Vec::new();
        write_timeline(&timeline, Clock::since(0), &mut out).expect("memory takes everything");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 9);
        assert_eq!(lines[0], "             Time       Highest       activation           weight");
        assert_eq!(lines[1], "               3s       3 bytes          6 bytes           1 byte");
        assert_eq!(lines[9], "              25s      25 bytes         50 bytes           1 byte");
    }
}
