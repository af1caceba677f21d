//! What did two runs allocate, operator by operator or kernel by kernel?
//!
//! Contract §8.4: the operators that ended and the kernels that were launched are one sequence for each device; the two
//! sequences are aligned by name. Each entry has two figures: the reference's, the size of the next allocation or free
//! of the framework's pool, whatever its operator; and the true one: the entry's thread's allocations minus its frees,
//! within the operator, or since its last kernel launch.

mod align;
mod of_step;
mod sequence;
mod table;

pub use self::table::TABLE;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

pub use of_step::OfStep;
pub use sequence::{Entry, EntryKind, Names, Recorded, Recorder, Sequences, Which};

use align::{Edit, align};

/// One row of a comparison: an entry of both runs, or of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedRow {
    /// Its kind.
    pub kind: EntryKind,
    /// Its name.
    pub name: Arc<str>,
    /// NPU.
    pub device: u32,
    /// Figures of the base run.
    pub base: Option<Figures>,
    /// Figures of the other run.
    pub compare: Option<Figures>,
}

/// Figures of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// As the reference has it: the size of the pool's next allocation or free.
    pub next_bytes: u64,
    /// What really changed.
    pub delta_bytes: i64,
}

/// One name on one device, in both runs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ComparedName {
    /// The name.
    pub name: String,
    /// Number in the base run.
    pub base_count: u64,
    /// Number in the other run.
    pub compare_count: u64,
    /// Sum of their changes in the base run.
    pub base_delta_bytes: i64,
    /// Sum of their changes in the other run.
    pub compare_delta_bytes: i64,
}

/// One device in both runs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ComparedDevice {
    /// NPU.
    pub device: u32,
    /// Entries of both.
    pub aligned: u64,
    /// Entries of the base run alone.
    pub only_base: u64,
    /// Entries only in the other run.
    pub only_compare: u64,
    /// Kernels of the base run with an address for a name; aligned with none.
    pub nameless_base: u64,
    /// Those of the other run.
    pub nameless_compare: u64,
    /// The alignment is a shortest one, hence the reference's.
    pub shortest: bool,
    /// Names, those with the largest memory difference first.
    pub names: Vec<ComparedName>,
}

/// Why two runs cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// Two frameworks.
    #[error("blocks of PyTorch and of MindSpore are in the inputs: only one framework can be compared")]
    Frameworks,
    /// As in the reference.
    #[error("MindSpore can be compared at level kernel only")]
    OperatorsOfMindSpore,
}

/// Compares; rows go to `out`, device by device, in the order of the runs. `watch` gets the work done and the work in
/// all: each entry is aligned, then reported.
pub fn compare(
    base: &Sequences,
    other: &Sequences,
    names: &Names,
    mut out: impl FnMut(&ComparedRow),
    mut watch: impl FnMut(u64, u64),
) -> Vec<ComparedDevice> {
    let devices: BTreeSet<u32> = base.devices().chain(other.devices()).collect();
    let entries = devices.iter().map(|device| base.of(*device).len() + other.of(*device).len()).sum::<usize>();
    let total = 2 * entries as u64;
    let mut done = 0;
    devices
        .into_iter()
        .map(|device| {
            let (base, other) = (base.of(device), other.of(device));
            let key = |entry: &Entry| Alike((!entry.nameless).then_some((entry.kind, entry.name)));
            let alignment = align(base, other, key, &mut |aligned| watch(done + aligned as u64, total));
            done += (base.len() + other.len()) as u64;
            let nameless = |entries: &[Entry]| entries.iter().filter(|entry| entry.nameless).count() as u64;
            let mut found = Tally { device, nameless: (nameless(base), nameless(other)), ..Tally::default() };
            let (mut from, mut to) = (base.iter(), other.iter());
            for edit in alignment.edits {
                let (base, compare) = match edit {
                    Edit::Keep => (from.next(), to.next()),
                    Edit::Delete => (from.next(), None),
                    Edit::Insert => (None, to.next()),
                };
                let Some(entry) = base.or(compare) else { continue };
                found.count(entry.name, base, compare);
                done += u64::from(base.is_some()) + u64::from(compare.is_some());
                watch(done, total);
                out(&ComparedRow {
                    kind: entry.kind,
                    name: names.text(entry.name),
                    device,
                    base: base.map(Entry::figures),
                    compare: compare.map(Entry::figures),
                });
            }
            found.close(alignment.shortest, names)
        })
        .collect()
}

/// Key of the alignment. Entries without a name equal nothing, not even themselves.
struct Alike(Option<(EntryKind, u32)>);

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_some() && self.0 == other.0
    }
}

#[derive(Default)]
struct Tally {
    device: u32,
    aligned: u64,
    only_base: u64,
    only_compare: u64,
    nameless: (u64, u64),
    /// Counts and bytes of both runs.
    names: BTreeMap<u32, (u64, u64, i64, i64)>,
}

impl Tally {
    fn count(&mut self, name: u32, base: Option<&Entry>, compare: Option<&Entry>) {
        match (base, compare) {
            (Some(_), Some(_)) => self.aligned += 1,
            (Some(_), None) => self.only_base += 1,
            _ => self.only_compare += 1,
        }
        let counts = self.names.entry(name).or_default();
        counts.0 += u64::from(base.is_some());
        counts.1 += u64::from(compare.is_some());
        counts.2 = counts.2.saturating_add(base.map_or(0, |entry| entry.delta_bytes));
        counts.3 = counts.3.saturating_add(compare.map_or(0, |entry| entry.delta_bytes));
    }

    fn close(self, shortest: bool, known: &Names) -> ComparedDevice {
        let Self { device, aligned, only_base, only_compare, nameless, names } = self;
        let (nameless_base, nameless_compare) = nameless;
        let mut names: Vec<ComparedName> = names
            .into_iter()
            .map(|(name, (base_count, compare_count, base_delta_bytes, compare_delta_bytes))| ComparedName {
                name: known.text(name).to_string(),
                base_count,
                compare_count,
                base_delta_bytes,
                compare_delta_bytes,
            })
            .collect();
        names.sort_by(|one, other| {
            let differs = |name: &ComparedName| name.compare_delta_bytes.abs_diff(name.base_delta_bytes);
            differs(other).cmp(&differs(one)).then_with(|| one.name.cmp(&other.name))
        });
        ComparedDevice { device, aligned, only_base, only_compare, nameless_base, nameless_compare, shortest, names }
    }
}

/// Whether the runs can be compared at all.
pub fn check(base: &Sequences, other: &Sequences, which: Which) -> Result<(), Incomparable> {
    use crate::model::Pool;

    let frameworks = [base, other].map(Sequences::frameworks);
    let all: BTreeSet<Pool> = frameworks.into_iter().flatten().collect();
    if all.len() > 1 {
        return Err(Incomparable::Frameworks);
    }
    if which.op && !all.iter().all(|pool| pool.has_operators()) {
        return Err(Incomparable::OperatorsOfMindSpore);
    }
    Ok(())
}
