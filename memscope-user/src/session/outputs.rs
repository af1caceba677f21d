//! What the collection options mean for the pipeline: filter, sinks, analyses, files.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Result;

use super::{
    args::{CollectArgs, CollectMode, Format, LogLevel, Stacks, TraceArgs},
    disk::Files,
    message, messages, select, terminal,
    values::{Analyses, CallStacks, Devices, Events, Level as RowLevel},
};
use crate::{
    analyses::{
        self, Analysis, ByStackAnalysis, DecomposeAnalysis, Finding, FluctuationAnalysis, FragmentationAnalysis,
        HeldAnalysis, InefficientAnalysis, LedgerAnalysis, OomAnalysis, PeaksAnalysis, Stepped,
        decompose::RuleSet,
        select::{Filter, Selected},
    },
    os::{caller::Caller, secure_env},
    pipeline::{AnalysisBit, Demand, DeviceFilter, DumpFilter, Npus, Outcome, RowBits},
    sinks::{
        self, DumpOptions, DumpSink, FileChange, Rotation, Sink, SinkError, StackCells,
        config_json::{DumpConfig, NO_OUTPUT_ID, StepList, WatchConfig},
        log::{Level, LogFile},
        report::Report,
        tree::{OutputTree, ProcessDirs},
    },
    watch::spec::WatchSpec,
};

/// Blocks that are named when memory is out.
const DEFAULT_BLOCKS: u32 = 10;

/// Which rows are written.
pub(super) fn filter(args: &CollectArgs) -> DumpFilter {
    let npus = if args.device.all_npu {
        Npus::All
    } else {
        Npus::Only((0..32).filter(|id| args.device.slots & (1 << id) != 0).collect())
    };
    DumpFilter {
        alloc: args.events.alloc,
        free: args.events.free,
        block_free: args.events.block_free,
        launch: args.events.launch && args.level.kernel,
        op: args.events.launch && args.level.op,
        access: args.events.access && args.level.op,
        oom_blocks: args.analysis.oom.map(|blocks| blocks as usize),
        devices: DeviceFilter { npus, cpu: args.device.cpu },
        steps: args.steps.clone().unwrap_or_default().0,
    }
}

/// What the options say about rows; `fixed`: those that are not as they would be without an option are what a script chooses from.
pub(super) fn row_bits(args: &CollectArgs, fixed: bool) -> RowBits {
    let device = args.device;
    let fixed = fixed
        && (args.events != Events::default() || args.level != RowLevel::default() || device != Devices::default());
    RowBits {
        events: u64::from(args.events.bits()) | u64::from(args.events.block_free) << 4,
        levels: u64::from(args.level.bits()),
        devices: u64::from(device.slots) | u64::from(device.all_npu) << 32 | u64::from(device.cpu) << 33,
        fixed,
    }
}

/// Makes what scripts ask for beyond the options.
pub(super) fn demand(args: &CollectArgs, rules: Option<&Arc<RuleSet>>) -> Demand {
    let given = args.analysis.of_scripts();
    let (args, rules) = (args.clone(), rules.cloned());
    let make = move |bits: u64| {
        let asked = |bit: AnalysisBit| bit.is_in(bits);
        let analysis = Analyses {
            leaks: asked(AnalysisBit::LEAKS),
            decompose: asked(AnalysisBit::DECOMPOSE),
            inefficient: asked(AnalysisBit::INEFFICIENT),
            oom: asked(AnalysisBit::OOM).then_some(DEFAULT_BLOCKS),
            peaks: asked(AnalysisBit::PEAKS),
            fragmentation: asked(AnalysisBit::FRAGMENTATION),
            ..Analyses::NONE
        };
        let args = CollectArgs { analysis, ..args.clone() };
        let rules = rules.clone().unwrap_or_else(|| Arc::new(RuleSet::builtin()));
        let selection = args.select.selection(Some(&rules));
        let of_chosen = judging(&args, Some(&rules));
        let of_all = of_all_blocks(&args, Some(&rules), &selection.filter);
        if selection.is_all() {
            return of_chosen.into_iter().chain(of_all).collect();
        }
        let of_chosen = Selected::new(&selection, of_chosen, Arc::default());
        vec![
            Box::new(of_chosen) as Box<dyn Analysis>,
            Box::new(Selected::new(&args.select.window(), of_all, Arc::default())),
        ]
    };
    Demand { given, make: Arc::new(make) }
}

/// Opens the outputs of a live trace: the tracer's own directory with its settings and log, and the file sink. Nothing is left of them if
/// that fails.
pub(super) fn open(args: &TraceArgs, dirs: ProcessDirs, files: Files) -> Result<(Box<dyn Sink>, OutputTree)> {
    let tree = OutputTree::open(args.collect.output_path(), Caller::owner()?)?;
    match open_below(&tree, args, dirs, files) {
        Ok(sink) => Ok((sink, tree)),
        Err(error) => {
            tree.discard();
            Err(error.into())
        }
    }
}

fn open_below(
    tree: &OutputTree,
    args: &TraceArgs,
    dirs: ProcessDirs,
    files: Files,
) -> Result<Box<dyn Sink>, SinkError> {
    let (stacks, mode) = (args.call_stack.unwrap_or_default(), args.collect_mode);
    let rotation = args
        .max_size
        .zip(args.rotate)
        .map(|(most, parts)| Rotation { part_bytes: most / u64::from(parts), parts: parts as usize });
    let (args, watch) = (&args.collect, args.watch.as_ref());
    let own = tree.make_process_dir(std::process::id())?;
    let config = DumpConfig { watch_config: watch.map(watch_config).unwrap_or_default(), ..config(args, stacks, mode) };
    config.write(tree, &own)?;
    let level = match args.level_of_messages() {
        LogLevel::Debug => Level::Debug,
        LogLevel::Info => Level::Info,
        LogLevel::Warning => Level::Warn,
        LogLevel::Error => Level::Error,
    };
    messages::log_into(LogFile::create(tree, &own, level)?);
    Ok(dump(args, config, rotation, tree, dirs, files))
}

/// As msMemScope stores what is watched.
fn watch_config(spec: &WatchSpec) -> WatchConfig {
    let WatchSpec { start, output_id, end, full_content } = spec.clone();
    let output_id = output_id.unwrap_or(NO_OUTPUT_ID);
    WatchConfig { end, full_content, is_watched: true, output_id, start }
}

/// The settings as msMemScope stores them (contract §2.3).
pub(super) fn config(args: &CollectArgs, stacks: CallStacks, mode: CollectMode) -> DumpConfig {
    let mut step_id_list = [0; 5];
    let steps = args.steps.clone().unwrap_or_default().0;
    for (slot, step) in step_id_list.iter_mut().zip(&steps) {
        *slot = *step;
    }
    DumpConfig {
        selected_steps: StepList { step_count: steps.len() as u32, step_id_list },
        analysis_type: args.analysis.bits(),
        c_stack_depth: stacks.c.unwrap_or(0),
        enable_c_stack: stacks.c.is_some(),
        py_stack_depth: stacks.python.unwrap_or(0),
        enable_py_stack: stacks.python.is_some(),
        collect_all_npu: args.device.all_npu,
        collect_cpu: args.device.cpu,
        collect_mode: mode as u32,
        data_format: args.format as u32,
        dump_event_type: args.events.bits(),
        event_type: args.analysis.collect_bits(args.events),
        is_effective: true,
        level_type: args.level.bits(),
        log_level: args.level_of_messages() as u32,
        npu_slots: args.device.slots,
        oom_top_k: args.analysis.oom.unwrap_or(DEFAULT_BLOCKS),
        output_dir: std::path::absolute(args.output_path()).unwrap_or_default().to_string_lossy().into_owned(),
        ..DumpConfig::default()
    }
}

/// The file sink. Each new file is announced.
pub(super) fn dump(
    args: &CollectArgs,
    config: DumpConfig,
    rotation: Option<Rotation>,
    tree: &OutputTree,
    dirs: ProcessDirs,
    files: Files,
) -> Box<dyn Sink> {
    let format = match args.format {
        Format::Csv => sinks::Format::Csv,
        Format::Db => sinks::Format::Db,
    };
    let level = args.level_of_messages();
    let stacks = match args.stacks {
        Stacks::Inline => StackCells::Inline,
        Stacks::Table => StackCells::Table,
    };
    let options = DumpOptions { format, stacks, rotation, config: Some(config), ..DumpOptions::default() };
    let announce = move |change: FileChange<'_>| match change {
        FileChange::Made(path) => {
            files.add(path);
            message(level, LogLevel::Info, format_args!("create file {}", path.display()));
        }
        FileChange::Removed(path) => {
            files.remove(path);
            message(level, LogLevel::Info, format_args!("remove file {}", path.display()));
        }
    };
    Box::new(DumpSink::below(tree.clone(), &options, announce).sharing(dirs))
}

/// Leaks and fluctuation are off with `--steps`, and without both alloc and free (contract §1.5, §1.8).
pub(super) const fn leaks_wanted(args: &CollectArgs) -> bool {
    args.analysis.leaks && args.steps.is_none()
}

/// The rules that name owners, if an analysis was asked for that has them.
pub(super) fn rules(args: &CollectArgs) -> Result<Option<Arc<RuleSet>>, String> {
    let analysis = &args.analysis;
    if analysis.decompose || analysis.peaks || analysis.fragmentation || analysis.oom.is_some() {
        return super::decompose::rules(args.decompose_rules.as_deref()).map(Some);
    }
    match args.decompose_rules {
        Some(_) => Err("--decompose-rules needs --analysis=decompose, peaks, fragmentation or oom".to_owned()),
        None => Ok(None),
    }
}

/// The rules by which rows have owners.
pub(super) fn owners(args: &CollectArgs, rules: Option<&Arc<RuleSet>>) -> Option<Arc<RuleSet>> {
    rules.filter(|_| args.analysis.decompose).cloned()
}

/// Whether the options go together.
pub(super) fn check(args: &CollectArgs) -> Result<(), String> {
    rules(args)?;
    if args.analysis.fragmentation { select::of_pools(&args.select.blocks.filter(None)) } else { Ok(()) }
}

/// Analyses, and whether what they were shown of the run holds a block.
pub(super) struct Chosen {
    pub(super) analyses: Vec<Box<dyn Analysis>>,
    pub(super) selected: Selecting,
}

/// Becomes true with the first block that is selected; nothing where all are.
#[derive(Debug)]
pub(super) struct Selecting(Option<Arc<AtomicBool>>);

impl Selecting {
    /// Nothing is selected: it is all of the run.
    pub(super) const ALL: Self = Self(None);
}

/// The analyses that were asked for, of the part of the run that was asked for; what is still held, and where, is always told. The
/// ledger is that of whole devices.
pub(super) fn analyses(args: &CollectArgs, rules: Option<&Arc<RuleSet>>) -> Chosen {
    let selection = args.select.selection(rules);
    let (of_chosen, of_all) = (of_chosen_blocks(args, rules), of_all_blocks(args, rules, &selection.filter));
    let ledger: Box<dyn Analysis> = Box::new(LedgerAnalysis::default());
    if selection.is_all() {
        let analyses = of_chosen.into_iter().chain(of_all).chain([ledger]).collect();
        return Chosen { analyses, selected: Selecting::ALL };
    }
    let any_block = Arc::new(AtomicBool::new(false));
    let of_chosen = Selected::new(&selection, of_chosen, Arc::clone(&any_block));
    let of_all = Selected::new(&args.select.window(), of_all, Arc::default());
    let analyses = vec![Box::new(of_chosen) as Box<dyn Analysis>, Box::new(of_all), ledger];
    Chosen { analyses, selected: Selecting(Some(any_block)) }
}

/// Those that need not know of other blocks than the chosen ones.
fn of_chosen_blocks(args: &CollectArgs, rules: Option<&Arc<RuleSet>>) -> Vec<Box<dyn Analysis>> {
    let mut chosen = judging(args, rules);
    chosen.push(Box::new(HeldAnalysis::default()));
    chosen.push(Box::new(ByStackAnalysis::default()));
    chosen
}

/// Those of them that are not made without being asked for.
fn judging(args: &CollectArgs, rules: Option<&Arc<RuleSet>>) -> Vec<Box<dyn Analysis>> {
    let mut chosen: Vec<Box<dyn Analysis>> = Vec::new();
    if leaks_wanted(args) {
        chosen.push(match rules {
            Some(rules) => Box::new(analyses::judged_leaks_by(rules)),
            None => Box::new(analyses::judged_leaks()),
        });
        chosen.push(Box::new(Stepped::new::<FluctuationAnalysis>()));
    }
    if let Some(rules) = rules.filter(|_| args.analysis.peaks) {
        chosen.push(Box::new(PeaksAnalysis::new(Arc::clone(rules))));
    }
    chosen
}

/// Those that look at all blocks, whichever they tell of.
fn of_all_blocks(args: &CollectArgs, rules: Option<&Arc<RuleSet>>, filter: &Filter) -> Vec<Box<dyn Analysis>> {
    let mut chosen: Vec<Box<dyn Analysis>> = Vec::new();
    if let Some(rules) = rules.filter(|_| args.analysis.oom.is_some()) {
        chosen.push(Box::new(OomAnalysis::new(Arc::clone(rules))));
    }
    if args.analysis.inefficient {
        chosen.push(Box::new(InefficientAnalysis::default().only(filter.clone())));
    }
    if let Some(rules) = rules.filter(|_| args.analysis.decompose) {
        chosen.push(Box::new(DecomposeAnalysis::new(Arc::clone(rules)).only(filter.clone())));
    }
    if let Some(rules) = rules.filter(|_| args.analysis.fragmentation) {
        chosen.push(Box::new(FragmentationAnalysis::new(Arc::clone(rules)).only(filter.clone())));
    }
    chosen
}

/// A library that the caller chooses is code that runs with our rights: they have to be the caller's own.
pub(super) fn refuse_borrowed_rights(library: Option<&Path>) -> Result<(), String> {
    match library {
        Some(_) if secure_env::has_borrowed_rights() => {
            Err("--usage-library is refused: this program has more rights than its caller".to_owned())
        }
        _ => Ok(()),
    }
}

/// Prints what the analyses found: text, or JSON for machines.
pub(super) fn print_report(args: &CollectArgs, outcome: &Outcome, selected: &Selecting) -> std::io::Result<()> {
    if selected.0.as_ref().is_some_and(|any_block| !any_block.load(Ordering::Relaxed)) {
        message(args.level_of_messages(), LogLevel::Warning, format_args!("{}", select::NOTHING));
    }
    if args.json {
        return terminal::print_json(|mut out| sinks::report::write_json(&outcome.findings, &outcome.end, &mut out));
    }
    let leak_blocks = args.leak_blocks || args.verbose;
    let report = Report { step_hint: leaks_wanted(args), leak_blocks, ..Report::default() };
    terminal::print(|mut out| report.write_text(&outcome.findings, &outcome.end, &mut out))
}

/// Prints the ledgers of a trace that goes on; `recorded`: nothing but the capture is made of it.
pub(super) fn print_ledgers(findings: &[Finding], recorded: bool) -> std::io::Result<()> {
    const NONE: &[u8] = b"No device memory was seen so far, so there is no ledger.\n";
    const LATER: &[u8] =
        b"Only the capture is written (--capture-only), so there is no ledger yet: a replay makes it.\n";
    let mut text = Vec::new();
    analyses::ledger::text::write_all(findings, &mut text)?;
    if text.is_empty() {
        text.extend_from_slice(if recorded { LATER } else { NONE });
    }
    terminal::say_lines(&text);
    Ok(())
}

/// Name of a new capture in the output directory.
pub(super) fn capture_name() -> String {
    let stamp = sinks::tree::stamp(&jiff::Zoned::now());
    format!("memscope_{}_{stamp}.capture", std::process::id())
}
