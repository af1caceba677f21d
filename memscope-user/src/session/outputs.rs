//! Turns collection options into filter, sinks, analyses and files of the pipeline.

use std::sync::Arc;

use super::{
    disk::Files,
    log::{RunLog, Speaker},
    options::{Analyses, CallStacks, CollectOptions, Devices, Events, OutputOptions, RowLevel, TraceOptions},
};
use crate::{
    analyses::{
        Analysis, AnalysisSet, Asked, Automatic, ByStackAnalysis, HeldAnalysis, HeldByAnalysis, LedgerAnalysis,
        Question, Questions, Sees, SettingsAnalysis, SilentAnalysis,
        decompose::RuleSet,
        select::{AnyBlock, Filter, Selected, Selection},
    },
    pipeline::{Demand, DeviceFilter, DumpFilter, Npus, RowBits},
    sinks::{
        self, DumpOptions, DumpSink, FileChange, Rotation, Sink, SinkError, StackCells,
        config_json::{DumpConfig, NO_OUTPUT_ID, StepList, WatchConfig},
        log::LogFile,
        tree::{OutputTree, ProcessDirs},
    },
    watch::spec::WatchSpec,
};

/// Which rows are written.
pub(crate) fn filter(args: &CollectOptions) -> DumpFilter {
    let npus = if args.devices.all_npu {
        Npus::All
    } else {
        Npus::Only((0..32).filter(|id| args.devices.slots & (1 << id) != 0).collect())
    };
    DumpFilter {
        alloc: args.events.alloc,
        free: args.events.free,
        block_free: args.events.block_free,
        launch: args.events.launch && args.level.kernel,
        op: args.events.launch && args.level.op,
        access: args.events.access && args.level.op,
        oom_blocks: args.analyses.oom().map(|blocks| blocks as usize),
        devices: DeviceFilter { npus, cpu: args.devices.cpu },
        steps: args.steps.clone(),
    }
}

/// The options' choice of rows; `fixed`: scripts choose among the non-default ones.
pub(crate) fn row_bits(args: &CollectOptions, fixed: bool) -> RowBits {
    let device = args.devices;
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
pub(crate) fn demand(args: &CollectOptions, rules: Option<&Arc<RuleSet>>) -> Demand {
    let given = args.given_to_scripts();
    let (args, rules) = (args.clone(), rules.cloned());
    let make = move |bits: u64| {
        if !args.analyses.findings {
            return Vec::new();
        }
        let analyses = Analyses { questions: Questions::of_script(bits), ..Analyses::NONE };
        let args = CollectOptions { analyses, ..args.clone() };
        let rules = rules.clone().unwrap_or_else(|| Arc::new(RuleSet::builtin()));
        let selection = args.selection(Some(&rules));
        // The analyses that the options request report the spans.
        let of_chosen = judging(&args, Some(&rules)).silent();
        if selection.is_all() {
            return of_all_blocks(of_chosen, &args, Some(&rules), &selection.filter).into_vec();
        }
        let of_all = of_all_blocks(AnalysisSet::judging().silent(), &args, Some(&rules), &selection.filter);
        let (of_chosen, _) = Selected::new(&selection, of_chosen.into_vec(), Vec::new());
        let (of_all, _) = Selected::new(&args.window(), of_all.into_vec(), Vec::new());
        vec![Box::new(of_chosen) as Box<dyn Analysis>, Box::new(of_all)]
    };
    Demand { given, make: Arc::new(make) }
}

/// The opened outputs of a trace.
pub(super) struct Opened {
    pub(super) dump: Box<dyn Sink>,
    pub(super) tree: OutputTree,
    pub(super) speaker: Speaker,
    pub(super) log: Arc<RunLog>,
}

/// Opens the output folder.
pub(crate) fn open_tree(output: &OutputOptions) -> Result<OutputTree, SinkError> {
    let open = if output.new_directory { OutputTree::open_new } else { OutputTree::open };
    open(&output.directory, output.owner)
}

/// Opens the outputs of a live trace: the tracer's own directory with its settings and log, and the file sink. If that
/// fails, none of them is left.
pub(super) fn open(
    options: &TraceOptions,
    output: &OutputOptions,
    speaker: Speaker,
    dirs: ProcessDirs,
    files: Files,
) -> Result<Opened, SinkError> {
    let tree = open_tree(output)?;
    let output = &OutputOptions { directory: tree.path().to_owned(), ..output.clone() };
    open_below(tree.clone(), options, output, speaker, dirs, files).inspect_err(|_| tree.discard())
}

fn open_below(
    tree: OutputTree,
    options: &TraceOptions,
    output: &OutputOptions,
    speaker: Speaker,
    dirs: ProcessDirs,
    files: Files,
) -> Result<Opened, SinkError> {
    let own = tree.make_process_dir(std::process::id())?;
    // As rows have them.
    let stacks = if output.stacks == StackCells::Absent { CallStacks::default() } else { options.call_stacks };
    let config = DumpConfig {
        watch_config: options.watch.as_ref().map(watch_config).unwrap_or_default(),
        ..config(&options.collect, output, stacks, options.deferred)
    };
    config.write(&tree, &own)?;
    let log = Arc::new(RunLog::new(LogFile::create(&tree, &own, output.log_level)?));
    let speaker = speaker.with_log(Arc::clone(&log));
    let dump = dump(output, config, &tree, dirs, files, speaker.clone());
    Ok(Opened { dump, tree, speaker, log })
}

/// The watched block, as msMemScope stores it.
fn watch_config(spec: &WatchSpec) -> WatchConfig {
    let WatchSpec { start, output_id, end, full_content } = spec.clone();
    let output_id = output_id.unwrap_or(NO_OUTPUT_ID);
    WatchConfig { end, full_content, is_watched: true, output_id, start }
}

/// The settings as msMemScope stores them (contract §2.3).
pub(crate) fn config(args: &CollectOptions, output: &OutputOptions, stacks: CallStacks, deferred: bool) -> DumpConfig {
    let mut step_id_list = [0; 5];
    let steps = &args.steps;
    for (slot, step) in step_id_list.iter_mut().zip(steps) {
        *slot = *step;
    }
    DumpConfig {
        selected_steps: StepList { step_count: steps.len() as u32, step_id_list },
        analysis_type: args.analyses.bits(),
        c_stack_depth: stacks.c.unwrap_or(0),
        enable_c_stack: stacks.c.is_some(),
        py_stack_depth: stacks.python.unwrap_or(0),
        enable_py_stack: stacks.python.is_some(),
        collect_all_npu: args.devices.all_npu,
        collect_cpu: args.devices.cpu,
        collect_mode: deferred.into(),
        data_format: match output.format {
            sinks::Format::Csv => 0,
            sinks::Format::Db => 1,
        },
        dump_event_type: args.events.bits(),
        event_type: args.analyses.collect_bits(args.events),
        is_effective: true,
        level_type: args.level.bits(),
        log_level: output.log_level as u32,
        npu_slots: args.devices.slots,
        oom_top_k: args.analyses.oom_blocks,
        output_dir: std::path::absolute(&output.directory).unwrap_or_default().to_string_lossy().into_owned(),
        ..DumpConfig::default()
    }
}

/// The file sink. Each new file is announced.
pub(crate) fn dump(
    output: &OutputOptions,
    config: DumpConfig,
    tree: &OutputTree,
    dirs: ProcessDirs,
    files: Files,
    speaker: Speaker,
) -> Box<dyn Sink> {
    let &OutputOptions { format, stacks, max_bytes, parts, .. } = output;
    let rotation = max_bytes
        .zip(parts)
        .map(|(most, parts)| Rotation { part_bytes: most / u64::from(parts), parts: parts as usize });
    let options = DumpOptions { format, stacks, rotation, config: Some(config), ..DumpOptions::default() };
    let announce = move |change: FileChange<'_>| match change {
        FileChange::Made(path) => {
            files.add(path);
            speaker.info(format_args!("create file {}", path.display()));
        }
        FileChange::Removed(path) => {
            files.remove(path);
            speaker.info(format_args!("remove file {}", path.display()));
        }
    };
    Box::new(DumpSink::below(tree.clone(), &options, announce).sharing(dirs))
}

/// Whether an analysis that compares steps is made: not with `--steps` (contract §1.5, §1.8).
#[cfg(feature = "cli")]
pub(crate) fn compares_steps(args: &CollectOptions) -> bool {
    args.steps.is_empty() && args.analyses.questions.iter().any(|question| question.compares_steps)
}

/// The rules that name owners, if a requested analysis has owners.
pub(crate) fn rules(args: &CollectOptions) -> Result<Option<Arc<RuleSet>>, String> {
    let analyses = args.analyses;
    if analyses.cheap || analyses.questions.iter().any(|question| question.names_owners) {
        let rules = args.rules.as_deref().map_or_else(|| Ok(RuleSet::builtin()), RuleSet::read);
        return rules.map(Arc::new).map(Some);
    }
    match args.rules {
        Some(_) => {
            let naming = Question::all_for_users().into_iter().filter(|question| question.names_owners);
            let words: Vec<&str> = naming.map(|question| question.word).collect();
            Err(format!("--decompose-rules needs one of --analysis={}", words.join(", ")))
        }
        None => Ok(None),
    }
}

/// The rules that name owners in rows.
pub(crate) fn owners(args: &CollectOptions, rules: Option<&Arc<RuleSet>>) -> Option<Arc<RuleSet>> {
    rules.filter(|_| args.analyses.decompose()).cloned()
}

impl CollectOptions {
    /// The questions that are asked, those included that cost no probe. Those of whole pools are not asked by themselves
    /// where a filter splits these.
    fn questions(&self) -> Questions {
        let asked = self.analyses.questions;
        let filter = Filter { conditions: self.filter.clone(), rules: None };
        let is_free = |question: &&Question| match question.automatic {
            Automatic::Never => false,
            Automatic::Always => question.sees != Sees::WholePools || !filter.parts_pools(),
            Automatic::WithAccesses => self.events.access && self.level.op,
        };
        let free = Question::all().filter(|question| self.analyses.cheap && is_free(question));
        free.fold(asked, |questions, question| questions.with(question.word))
    }

    /// The analyses that scripts need not ask for, in their bits.
    fn given_to_scripts(&self) -> u64 {
        self.questions().script_bits()
    }

    /// Whether the options go together.
    pub(crate) fn check(&self) -> Result<(), String> {
        rules(self)?;
        let filter = Filter { conditions: self.filter.clone(), rules: None };
        let whole_pools = self.analyses.questions.iter().any(|question| question.sees == Sees::WholePools);
        if whole_pools { check_pools(&filter) } else { Ok(()) }
    }

    /// When, and which blocks; these rules name owners, or the built-in ones.
    fn selection(&self, rules: Option<&Arc<RuleSet>>) -> Selection {
        let filter = Filter { conditions: self.filter.clone(), rules: rules.cloned() };
        Selection { filter, ..self.window() }
    }
}

/// Refuses a filter that would split pools, for analyses of whole ones.
pub(crate) fn check_pools(filter: &Filter) -> Result<(), String> {
    if filter.parts_pools() {
        return Err(
            "the pieces of a pool are those of all its blocks: --filter takes layer, pid and device with fragmentation"
                .to_owned(),
        );
    }
    Ok(())
}

/// Analyses, and whether their part of the run holds a block.
pub(crate) struct Chosen {
    pub(crate) analyses: Vec<Box<dyn Analysis>>,
    pub(crate) selected: Selecting,
}

/// Learns whether any block is selected; nothing where all are.
#[derive(Debug)]
pub(crate) struct Selecting(Option<AnyBlock>);

impl Selecting {
    /// Without a selection: all of the run.
    pub(crate) const ALL: Self = Self(None);

    /// Whether a part of the run was selected, and no block is in it.
    pub(crate) fn selected_none(self) -> bool {
        self.0.is_some_and(|any_block| !any_block.was_seen())
    }
}

/// The requested analyses, of the requested part of the run. The ledger is that of whole devices.
pub(crate) fn analyses(args: &CollectOptions, rules: Option<&Arc<RuleSet>>) -> Chosen {
    if !args.analyses.findings {
        return Chosen { analyses: Vec::new(), selected: Selecting::ALL };
    }
    let selection = args.selection(rules);
    let of_chosen = of_chosen_blocks(args, rules);
    let of_whole: [Box<dyn Analysis>; 4] = [
        Box::new(LedgerAnalysis::default()),
        Box::new(SilentAnalysis::default()),
        Box::new(SettingsAnalysis::default()),
        Box::new(HeldByAnalysis::default()),
    ];
    if selection.is_all() {
        let analyses = of_all_blocks(of_chosen, args, rules, &selection.filter).into_vec();
        return Chosen { analyses: analyses.into_iter().chain(of_whole).collect(), selected: Selecting::ALL };
    }
    let of_all = of_all_blocks(AnalysisSet::judging().silent(), args, rules, &selection.filter);
    let (of_chosen, any_block) = Selected::new(&selection, of_chosen.into_vec(), Vec::new());
    let (of_all, _) = Selected::new(&args.window(), of_all.into_vec(), Vec::new());
    let of_part: [Box<dyn Analysis>; 2] = [Box::new(of_chosen), Box::new(of_all)];
    let analyses = of_part.into_iter().chain(of_whole).collect();
    Chosen { analyses, selected: Selecting(Some(any_block)) }
}

/// Those that need only the chosen blocks.
fn of_chosen_blocks(args: &CollectOptions, rules: Option<&Arc<RuleSet>>) -> AnalysisSet {
    judging(args, rules).whole(HeldAnalysis::default()).marking(ByStackAnalysis::default())
}

/// Those of them that are made only on request.
fn judging(args: &CollectOptions, rules: Option<&Arc<RuleSet>>) -> AnalysisSet {
    let filter = Filter::default();
    asking(AnalysisSet::judging(), args, rules, &filter, |question| question.sees == Sees::Chosen)
}

/// Adds those that need all blocks, whichever they report.
fn of_all_blocks(to: AnalysisSet, args: &CollectOptions, rules: Option<&Arc<RuleSet>>, filter: &Filter) -> AnalysisSet {
    asking(to, args, rules, filter, |question| question.sees != Sees::Chosen)
}

/// Adds the analyses of requested questions.
fn asking(
    to: AnalysisSet,
    args: &CollectOptions,
    rules: Option<&Arc<RuleSet>>,
    filter: &Filter,
    which: impl Fn(&Question) -> bool,
) -> AnalysisSet {
    // Leaks and fluctuation are off with `--steps` (contract §1.5, §1.8).
    let is_made = |question: &&Question| which(question) && (args.steps.is_empty() || !question.compares_steps);
    let automatic = args.analyses == Analyses::automatic();
    let asked = || Asked { rules: rules.cloned(), automatic, filter: filter.clone() };
    args.questions().iter().filter(is_made).fold(to, |to, question| (question.add)(asked(), to))
}

/// Name of a new capture in the output directory.
pub(crate) fn capture_name() -> String {
    let stamp = sinks::tree::stamp(&jiff::Zoned::now());
    format!("memscope_{}_{stamp}.capture", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace that is off has no analysis, and scripts that ask for one get none; one that asks for none has what each report has.
    #[test]
    fn nothing_is_judged_where_findings_are_off() {
        let counts = |analyses| {
            let options = CollectOptions { analyses, ..CollectOptions::default() };
            let of_scripts = (demand(&options, None).make)(u64::MAX);
            [super::analyses(&options, None).analyses.len(), of_scripts.len()]
        };
        assert_eq!(counts(Analyses::OFF), [0, 0]);
        assert!(counts(Analyses::NONE).into_iter().all(|count| count > 0));
    }
}
