//! Common parts of the findings of all questions.

use std::io::{self, Write};

use super::Finding;
use crate::model::{Device, Pool, StepsFrom};
use crate::text::clock::Clock;

/// The subject of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Process; `None` for a whole device.
    pub pid: Option<u32>,
    /// Device; [`Device::None`] for a whole process.
    pub device: Device,
    /// Pool; `None` for all of them.
    pub pool: Option<Pool>,
}

impl Subject {
    /// A process on a device.
    pub(super) const fn process(pid: u32, device: Device) -> Self {
        Self { pid: Some(pid), device, pool: None }
    }

    /// A pool of a process on a device.
    pub(super) const fn pool(pid: u32, device: Device, pool: Pool) -> Self {
        Self { pid: Some(pid), device, pool: Some(pool) }
    }
}

/// Order of a finding among those of its kind and process: device, a count of the kind's own, pool.
pub(super) type Order = (Device, u64, Option<Pool>);

/// A finding of one kind. [`registry`](super::registry) lists the kinds.
pub(super) trait Answer: Sized {
    /// Process, device and pool.
    fn subject(&self) -> Subject;

    /// Its bytes. Of the findings about ended processes those with the most bytes are kept.
    fn weight_bytes(&self) -> u64 {
        0
    }

    /// Place in the text among the findings of its kind and process.
    fn order(&self) -> Order {
        let Subject { device, pool, .. } = self.subject();
        (device, 0, pool)
    }

    /// Sets the origin of the steps. Only findings by step keep it.
    fn set_steps_from(&mut self, _: StepsFrom) {}

    /// Writes the finding as text.
    fn write(&self, context: &Context<'_>, out: &mut dyn Write) -> io::Result<()>;

    /// Writes all findings of the kind about a process, in order.
    fn write_all(found: &[&Self], context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        found.iter().try_for_each(|found| found.write(context, out))
    }

    /// Writes the end of the report: conclusions from the findings of all processes, or from their absence.
    fn write_end(_: &[&Self], _: Report, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// A kind of findings. The registry has a line for each.
pub trait Kind: Sized {
    /// The field `finding` in outputs for programs.
    const KIND: &'static str;

    /// The finding, if it is of this kind.
    fn of(finding: &Finding) -> Option<&Self>;
}

/// A kind in the registry.
pub(super) trait Registered: Answer + Kind + Into<Finding> {}

/// Facts for writing a finding.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// How to write.
    pub(crate) report: Report,
    /// Clock of the run.
    pub(crate) clock: Clock,
    /// All findings about the process.
    pub(crate) process: &'a [&'a Finding],
}

impl Context<'_> {
    /// Findings of another kind about the process.
    pub(super) fn others<T: Registered + 'static>(&self) -> impl Iterator<Item = &T> {
        self.process.iter().filter_map(|finding| T::of(finding))
    }
}

/// How to write the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether to list the blocks that outlived their steps one by one, in msMemScope's lines.
    pub leak_blocks: bool,
    /// Leaks listed one by one for each process and device; the summary counts the rest too.
    pub leak_lines: usize,
    /// Most places listed as leaks of steps, and most listed as undecided, for each process and device.
    pub place_lines: usize,
    /// Growing sites listed for each process and device.
    pub growth_lines: usize,
    /// Whether to explain how to mark steps when none was marked. Only sensible when leaks were looked for.
    pub step_hint: bool,
    /// Whether the losses are known. A dump does not have them.
    pub losses: bool,
}

impl Report {
    /// What commands write if nothing else is wanted.
    pub const DEFAULT: Self =
        Self { leak_blocks: false, leak_lines: 100, place_lines: 10, growth_lines: 10, step_hint: true, losses: true };
}

impl Default for Report {
    fn default() -> Self {
        Self::DEFAULT
    }
}
