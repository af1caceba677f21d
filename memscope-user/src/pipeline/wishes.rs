//! Demands of scripts in `config()`: those that a running trace can meet, and those that it lacks because the tracer
//! was started without.

use std::fmt;
use std::sync::Arc;

use super::domains::script::Wanted;
use super::output::DumpFilter;
use crate::analyses::{Analysis, AnalysisBit};
use crate::capture::Collected;
use crate::hash::HashSet;
use crate::model::Unmet;

/// Most different demands reported; further ones of a script are ignored.
const MAX_UNMET: usize = 16;
/// Blocks named when memory is out, if a script asks for the analysis without a number.
pub(super) const DEFAULT_BLOCKS: usize = 10;

/// The options' choice of rows, in the bits of contract §1.5 (see `Field::Events`, `Levels`, `Devices`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBits {
    /// Events.
    pub events: u64,
    /// Levels.
    pub levels: u64,
    /// Devices.
    pub devices: u64,
    /// Scripts choose among them and cannot add to them.
    pub fixed: bool,
}

/// Makes analyses that scripts ask for.
#[derive(Clone)]
pub struct Demand {
    /// Those that the options have requested already, as bits.
    pub given: u64,
    /// The analyses of these bits.
    pub make: Arc<MakeAnalyses>,
}

/// From bits to analyses.
pub type MakeAnalyses = dyn Fn(u64) -> Vec<Box<dyn Analysis>> + Send + Sync;

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Demand").field("given", &self.given).finish_non_exhaustive()
    }
}

/// Demands of a script's `config()` besides rows, as in its marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) analyses: u64,
    pub(super) stack_depths: u64,
    pub(super) named: u64,
}

const EVENTS: u32 = 0;
const LEVELS: u32 = 1;
const DEVICES: u32 = 2;
const WATCH: u32 = 3;
const CSV: u32 = 4;
const DB: u32 = 5;
const OUTPUT_PATH: u32 = 6;

const ACCESS: u64 = 8;
const OP: u64 = 1;

impl Settings {
    const fn names(self, setting: u32) -> bool {
        self.named >> setting & 1 == 1
    }

    /// Requested frames of C and of Python; whether to merge them.
    fn depths(self) -> (Option<u32>, Option<u32>, bool) {
        let depth = |word: u64| u32::from(word as u16).checked_sub(1);
        (depth(self.stack_depths), depth(self.stack_depths >> 16), self.stack_depths >> 32 & 1 == 1)
    }

    /// Number of blocks named when memory is out, if requested.
    pub(super) const fn oom_blocks(self) -> Option<usize> {
        let blocks = (self.analyses >> 16 & 0xffff) as usize;
        match (AnalysisBit::OOM.is_in(self.analyses), blocks) {
            (false, _) => None,
            (true, 0) => Some(DEFAULT_BLOCKS),
            (true, blocks) => Some(blocks),
        }
    }

    /// The rows that the script wants: named settings are its own, the rest comes from the options.
    pub(super) fn rows(self, wanted: Wanted, options: Option<RowBits>) -> Rows {
        let Some(options) = options else { return Rows { filter: wanted.into(), adds: false } };
        let all = |setting, bits: u64, of_options: u64| {
            if self.names(setting) && !options.fixed { bits } else { bits & of_options }
        };
        let devices = match (self.names(DEVICES) && !options.fixed, wanted.devices, options.devices) {
            (true, ..) => wanted.devices,
            (false, script, options) => common_devices(script, options),
        };
        let events = all(EVENTS, wanted.events, options.events);
        let levels = all(LEVELS, wanted.levels, options.levels);
        Rows { filter: Wanted { events, levels, devices }.into(), adds: true }
    }
}

/// NPUs and host of both; bit 32 is all NPUs.
const fn common_devices(one: u64, other: u64) -> u64 {
    const ALL_NPUS: u64 = 1 << 32;
    const fn npus(devices: u64) -> u64 {
        if devices & ALL_NPUS == 0 { devices & (ALL_NPUS - 1) } else { ALL_NPUS | (ALL_NPUS - 1) }
    }
    npus(one) & npus(other) | one & other & 1 << 33
}

/// Which rows a script wants.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) filter: DumpFilter,
    /// They may differ from those of the options.
    pub(super) adds: bool,
}

/// Facts about the trace against which demands are checked.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) collected: Option<Collected>,
    pub(super) mixed: bool,
    pub(super) options: Option<RowBits>,
    reported: HashSet<String>,
}

impl Wishes {
    pub(super) fn new(collected: Option<Collected>, mixed: bool, options: Option<RowBits>) -> Self {
        Self { collected, mixed, options, reported: HashSet::default() }
    }

    /// Whether operators' uses of tensors are collected.
    pub(super) fn accesses(&self) -> bool {
        self.collected.as_ref().is_none_or(|collected| collected.accesses)
    }

    /// Demands of a script that the trace lacks, and that were not reported before.
    pub(super) fn unmet(&mut self, settings: Settings, wanted: Wanted) -> Option<Unmet> {
        let collected = self.collected.as_ref()?;
        let mut lacks = Lacks::default();
        lacks.stacks(settings, collected, self.mixed);
        if AnalysisBit::INEFFICIENT.is_in(settings.analyses) && !collected.accesses {
            lacks.add("analysis=inefficient", "--analysis=inefficient");
        }
        let wants_accesses = settings.names(EVENTS) && wanted.events & ACCESS != 0 && wanted.levels & OP != 0;
        if wants_accesses && !collected.accesses {
            lacks.add("events=access", "--events=alloc,free,launch,access");
        }
        if settings.names(WATCH) && !collected.watch {
            lacks.add("watch", "--watch");
        }
        match (settings.names(CSV), settings.names(DB), collected.db) {
            (true, _, true) => lacks.add("format=csv", "--format=csv"),
            (_, true, false) => lacks.add("format=db", "--format=db"),
            _ => {}
        }
        if settings.names(OUTPUT_PATH) {
            lacks.add("output_path", "--output-path");
        }
        lacks.0.retain(|(setting, _)| self.reported.len() < MAX_UNMET && self.reported.insert(setting.clone()));
        lacks.unmet()
    }
}

/// Requested settings, each with the option that the tracer lacks.
#[derive(Default)]
struct Lacks(Vec<(String, String)>);

impl Lacks {
    fn add(&mut self, setting: &str, option: &str) {
        self.0.push((setting.to_owned(), option.to_owned()));
    }

    fn stacks(&mut self, settings: Settings, collected: &Collected, mixed: bool) {
        let (native, python, wants_mixed) = settings.depths();
        // Those without a request are in no rows.
        let in_rows = |have: Option<u32>| have.filter(|_| !collected.automatic_stacks).unwrap_or(0);
        let lacks = |wanted: Option<u32>, have: Option<u32>| wanted.is_some_and(|depth| depth > in_rows(have));
        let lacks_native = lacks(native, collected.native_depth);
        let lacks_python = lacks(python, collected.python_depth);
        let kinds = if wants_mixed {
            if !mixed || lacks_native || lacks_python { vec![("mixed", native)] } else { Vec::new() }
        } else {
            let of = |kind, depth, lacks| if lacks { Some((kind, depth)) } else { None };
            [of("c", native, lacks_native), of("python", python, lacks_python)].into_iter().flatten().collect()
        };
        let list: Vec<String> = kinds.iter().map(|(kind, depth)| format!("{kind}:{}", depth.unwrap_or(0))).collect();
        if !list.is_empty() {
            let list = list.join(",");
            self.add(&format!("call_stack={list}"), &format!("--call-stack={list}"));
        }
    }

    fn unmet(self) -> Option<Unmet> {
        let (settings, options): (Vec<String>, Vec<String>) = self.0.into_iter().unzip();
        (!settings.is_empty())
            .then(|| Unmet { settings: settings.join(", ").into(), options: options.join(" ").into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depths(native: u64, python: u64) -> u64 {
        (native + 1) | ((python + 1) << 16)
    }

    const ROWS: Wanted = Wanted { events: 7, levels: 1, devices: 1 << 32 };

    fn unmet(collected: &Collected, settings: Settings, wanted: Wanted) -> Option<(String, String)> {
        let mut wishes = Wishes::new(Some(collected.clone()), false, None);
        wishes.unmet(settings, wanted).map(|unmet| (unmet.settings.to_string(), unmet.options.to_string()))
    }

    /// Each setting that a plain trace lacks is named, with the option that brings it.
    #[test]
    fn plain_trace_names_what_it_lacks() {
        let settings = |analyses, stack_depths, named| Settings { analyses, stack_depths, named };
        for (asked, wanted, reported_settings, options) in [
            (settings(0, depths(10, 5), 0), ROWS, "call_stack=c:10,python:5", "--call-stack=c:10,python:5"),
            (settings(0, 11, 0), ROWS, "call_stack=c:10", "--call-stack=c:10"),
            (settings(0, depths(9, 9) | (1 << 32), 0), ROWS, "call_stack=mixed:9", "--call-stack=mixed:9"),
            (settings(4, 0, 0), ROWS, "analysis=inefficient", "--analysis=inefficient"),
            (settings(0, 0, 1), Wanted { events: 15, ..ROWS }, "events=access", "--events=alloc,free,launch,access"),
            (
                settings(0, 0, 1 << 3 | 1 << 5 | 1 << 6),
                ROWS,
                "watch, format=db, output_path",
                "--watch --format=db --output-path",
            ),
        ] {
            let expected = Some((reported_settings.to_owned(), options.to_owned()));
            assert_eq!(unmet(&Collected::default(), asked, wanted), expected, "{asked:?}");
        }
        // No frames, uses of tensors without the level, and what every trace can do.
        for (asked, wanted) in [
            (settings(0, depths(0, 0), 0), ROWS),
            (settings(0, 0, 3), Wanted { events: 15, levels: 2, devices: 0 }),
            (settings(1 | 2 | 8 | 16 | 32, 0, 7 | 1 << 4), Wanted { levels: 3, ..ROWS }),
        ] {
            assert_eq!(unmet(&Collected::default(), asked, wanted), None, "{asked:?}");
        }
    }

    /// A trace that meets all of it reports none; one with shorter stacks does.
    #[test]
    fn what_the_trace_has_is_not_named() {
        let have = Collected {
            native_depth: Some(10),
            python_depth: Some(5),
            accesses: true,
            watch: true,
            db: true,
            automatic_stacks: false,
        };
        let all = Settings { analyses: 63, stack_depths: depths(10, 5), named: 1 | 1 << 3 | 1 << 5 };
        let wanted = Wanted { events: 15, ..ROWS };
        assert_eq!(unmet(&have, all, wanted), None);
        let deeper = Settings { stack_depths: depths(10, 6), ..all };
        assert_eq!(unmet(&have, deeper, wanted).map(|unmet| unmet.0).as_deref(), Some("call_stack=python:6"));
        let csv = Settings { named: 1 << 4, ..Settings::default() };
        assert_eq!(unmet(&have, csv, ROWS).map(|unmet| unmet.0).as_deref(), Some("format=csv"));
    }

    /// A capture without a list of collected data reports no demands either.
    #[test]
    fn old_captures_are_silent() {
        let asked = Settings { analyses: 4, stack_depths: depths(1, 1), named: 127 };
        assert_eq!(Wishes::default().unmet(asked, ROWS), None);
    }

    /// A setting that a script names replaces the option's; others choose among it.
    #[test]
    fn named_settings_replace_options() {
        let options = RowBits { events: 1, levels: 1, devices: 1 << 3, fixed: false };
        let wanted = Wanted { events: 3, levels: 3, devices: 1 << 32 };
        let rows = |named, options| Settings { named, ..Settings::default() }.rows(wanted, Some(options)).filter;
        let none = DumpFilter::from(Wanted { events: 1, levels: 1, devices: 1 << 3 });
        assert_eq!(rows(0, options), none);
        assert_eq!(rows(1, options), DumpFilter::from(Wanted { events: 3, levels: 1, devices: 1 << 3 }));
        assert_eq!(rows(7, options), DumpFilter::from(wanted));
        assert_eq!(rows(7, RowBits { fixed: true, ..options }), none);
        assert_eq!(common_devices(1 << 33 | 0b110, 1 << 33 | 1 << 32), 1 << 33 | 0b110);
        assert_eq!(common_devices(1 << 32, 1 << 32) >> 32, 1);
    }
}
