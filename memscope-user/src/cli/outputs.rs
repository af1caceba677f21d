//! What the collection options mean for the pipeline: filter, sinks, analyses, files.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    LOG,
    args::{CollectArgs, CollectMode, Format, LogLevel, TraceArgs},
    message, select, stdout,
    values::CallStacks,
};
use crate::{
    analyses::{
        Analysis, ByStackAnalysis, DecomposeAnalysis, FluctuationAnalysis, FragmentationAnalysis, GrowthAnalysis,
        HeldAnalysis, InefficientAnalysis, LedgerAnalysis, OomAnalysis, PeaksAnalysis, StepLeaksAnalysis,
        decompose::RuleSet,
        select::{Filter, Selected},
    },
    attach::{spawn::sudo_ids, withheld},
    model::Finding,
    pipeline::{DeviceFilter, DumpFilter, Npus, Outcome},
    sinks::{
        self, DumpOptions, DumpSink, Sink, SinkError,
        config_json::{DumpConfig, NO_OUTPUT_ID, StepList, WatchConfig},
        log::{Level, LogFile},
        report::Report,
        tree::{OutputTree, ProcessDirs},
    },
    watch::spec::WatchSpec,
};

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

/// Opens the outputs of a live trace: the tracer's own directory with its settings and log, and the file sink.
pub(super) fn open(args: &TraceArgs, dirs: ProcessDirs) -> Result<Box<dyn Sink>, SinkError> {
    let (stacks, mode) = (args.call_stack.unwrap_or_default(), args.collect_mode);
    let (args, watch) = (&args.collect, args.watch.as_ref());
    let owner = sudo_ids();
    let tree = OutputTree::open(args.output_path(), owner)?;
    let own = tree.make_process_dir(std::process::id())?;
    let config = DumpConfig { watch_config: watch.map(watch_config).unwrap_or_default(), ..config(args, stacks, mode) };
    config.write(&tree, &own)?;
    let level = match args.level_of_messages() {
        LogLevel::Debug => Level::Debug,
        LogLevel::Info => Level::Info,
        LogLevel::Warning => Level::Warn,
        LogLevel::Error => Level::Error,
    };
    let _ = LOG.set(Mutex::new(LogFile::create(&tree, &own, level)?));
    dump(args, config, owner, dirs)
}

/// As msMemScope stores what is watched.
fn watch_config(spec: &WatchSpec) -> WatchConfig {
    let WatchSpec { start, output_id, end, full_content } = spec.clone();
    let output_id = output_id.unwrap_or(NO_OUTPUT_ID);
    WatchConfig { end, full_content, is_watched: true, output_id, start }
}

/// The settings as msMemScope stores them (contract §2.3).
pub(super) fn config(args: &CollectArgs, stacks: CallStacks, mode: CollectMode) -> DumpConfig {
    const DEFAULT_BLOCKS: u32 = 10;
    let mut step_id_list = [0; 5];
    let steps = args.steps.clone().unwrap_or_default().0;
    for (slot, step) in step_id_list.iter_mut().zip(&steps) {
        *slot = *step;
    }
    let wants_blocks = args.events.alloc || args.events.free || args.analysis.leaks || args.analysis.decompose;
    let collect = args.events.bits() | if wants_blocks { 3 } else { 0 };
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
        event_type: collect,
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
    owner: Option<(u32, u32)>,
    dirs: ProcessDirs,
) -> Result<Box<dyn Sink>, SinkError> {
    let format = match args.format {
        Format::Csv => sinks::Format::Csv,
        Format::Db => sinks::Format::Db,
    };
    let level = args.level_of_messages();
    let options = DumpOptions { out_dir: args.output_path().to_path_buf(), format, owner, config: Some(config) };
    let announce = move |path: &Path| message(level, LogLevel::Info, format_args!("create file {}", path.display()));
    Ok(Box::new(DumpSink::new(&options, announce)?.sharing(dirs)))
}

/// Leaks and fluctuation are off with `--steps`, and without both alloc and free (contract §1.5, §1.8).
pub(super) const fn leaks_wanted(args: &CollectArgs) -> bool {
    args.analysis.leaks && args.steps.is_none()
}

/// The rules that name owners, if an analysis was asked for that has them.
pub(super) fn rules(args: &CollectArgs) -> Result<Option<Arc<RuleSet>>, String> {
    if args.analysis.decompose || args.analysis.peaks || args.analysis.fragmentation {
        return super::decompose::rules(args.decompose_rules.as_deref()).map(Some);
    }
    match args.decompose_rules {
        Some(_) => Err("--decompose-rules is of use with --analysis=decompose, peaks or fragmentation only".to_owned()),
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
    let mut chosen: Vec<Box<dyn Analysis>> = Vec::new();
    if leaks_wanted(args) {
        chosen.push(Box::new(StepLeaksAnalysis::default()));
        chosen.push(Box::new(FluctuationAnalysis::default()));
        chosen.push(Box::new(GrowthAnalysis::default()));
    }
    if let Some(rules) = rules.filter(|_| args.analysis.peaks) {
        chosen.push(Box::new(PeaksAnalysis::new(Arc::clone(rules))));
    }
    chosen.push(Box::new(HeldAnalysis::default()));
    chosen.push(Box::new(ByStackAnalysis::default()));
    chosen
}

/// Those that look at all blocks, whichever they tell of.
fn of_all_blocks(args: &CollectArgs, rules: Option<&Arc<RuleSet>>, filter: &Filter) -> Vec<Box<dyn Analysis>> {
    let mut chosen: Vec<Box<dyn Analysis>> = Vec::new();
    if args.analysis.oom.is_some() {
        chosen.push(Box::new(OomAnalysis::default()));
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
        Some(_) if withheld::has_borrowed_rights() => {
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
    stdout::print(|mut out| {
        if args.json {
            return sinks::report::write_json(&outcome.findings, &outcome.end, &mut out);
        }
        let report = Report { step_hint: leaks_wanted(args), ..Report::default() };
        report.write_text(&outcome.findings, &outcome.end, &mut out)
    })
}

/// Prints the ledgers of a trace that goes on; `recorded`: nothing but the capture is made of it.
pub(super) fn print_ledgers(findings: &[Finding], recorded: bool) -> std::io::Result<()> {
    const NONE: &[u8] = b"No device memory was seen so far, so there is no ledger.\n";
    const LATER: &[u8] =
        b"Only the capture is written (--capture-only), so there is no ledger yet: a replay makes it.\n";
    let mut text = Vec::new();
    sinks::report::write_ledgers(findings, &mut text)?;
    if text.is_empty() {
        text.extend_from_slice(if recorded { LATER } else { NONE });
    }
    // In one piece: the traced program may write there, too.
    std::io::stderr().lock().write_all(&text)
}

/// Name of a new capture in the output directory.
pub(super) fn capture_path(directory: &Path) -> PathBuf {
    let stamp = sinks::tree::stamp(&jiff::Zoned::now());
    directory.join(format!("memscope_{}_{stamp}.capture", std::process::id()))
}
