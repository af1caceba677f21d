//! `whatif` and `advise`: a recorded run's requests under other settings of its pool, or on a smaller device.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::{decompose::rules_of_user, input, runs, select, terminal};
use crate::analyses::Observer;
use crate::analyses::select::{Condition, Filter, Selection};
use crate::document;
use crate::input::{Format, files, format};
use crate::regular;
use crate::whatif::answers::{
    Advices, ProcessAnswer, Question, WhatIf, Wishes, advise as advise_of, ask, write_advices, write_what_if,
};
use crate::whatif::snapshot::{is_snapshot, requests_of};
use crate::whatif::{
    Batches, EmptyAt, Family, Recorder, Release, Requests, Source, Until, freed_early, scaled, with_empty_caches,
};

/// A recording that --free-early can be asked of.
const WITH_USES: &str = "a capture recorded with --events=alloc,free,access";
/// Larger snapshots are not read.
const MAX_SNAPSHOT_BYTES: u64 = 4 << 30;

/// What both commands take.
#[derive(Debug, Args)]
pub(super) struct ReplayedArgs {
    /// A capture, or a memory snapshot of `PyTorch` (pickle). Dumps (CSV or db) lack streams and failed requests: their
    /// answers are estimates [default: the newest run].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Memory of each device: 32GiB, 29500M.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub limit: Option<u64>,
    /// What others hold of that: the driver, other processes.
    #[arg(long, value_name = "SIZE", value_parser = memory, requires = "limit")]
    pub reserve: Option<u64>,
    /// Memory fraction of the process, as for `torch.npu.set_per_process_memory_fraction` and `torch.cuda`'s.
    #[arg(long, value_name = "F", value_parser = fraction, requires = "limit")]
    pub fraction: Option<f64>,
    /// Settings that the recording was made with, as in `PYTORCH_NPU_ALLOC_CONF` or `PYTORCH_CUDA_ALLOC_CONF` [default: found by
    /// replay].
    #[arg(long, value_name = "CONF")]
    pub recorded: Option<String>,
    /// Release of `torch_npu`, which says what settings there are: 6.0.0, 7.0.0, 7.2.0, 7.3.0, 26.0.0, 26.1.0; or of `PyTorch` for
    /// snapshots of CUDA's allocator: torch-2.9, torch-2.14.
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    pub release: Option<Release>,
    /// Allocator of a memory snapshot that does not show it: older ones of CUDA without a block in use.
    #[arg(long, value_name = "npu|cuda", value_parser = allocator)]
    pub allocator: Option<Family>,
    /// Answers as JSON on stdout instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `whatif`.
#[derive(Debug, Args)]
pub(super) struct WhatIfArgs {
    /// What to replay.
    #[command(flatten)]
    pub replayed: ReplayedArgs,
    /// Settings to try (repeatable): `max_split_size_mb:128`, `expandable_segments:True,segment_size_mb:64`.
    #[arg(long = "set", value_name = "CONF", allow_hyphen_values = true)]
    pub settings: Vec<String>,
    /// Leave out the requests of blocks that match EXPR (repeatable, AND), as in --filter: 'owner~mask', 'stack~cache'.
    #[arg(long, value_name = "EXPR", value_parser = select::condition)]
    pub without: Vec<Condition>,
    /// Free blocks that match EXPR right behind their last use (repeatable, AND), as in --filter. The capture needs uses: it is recorded with
    /// --events=alloc,free,access.
    #[arg(long, value_name = "EXPR", value_parser = select::condition, conflicts_with = "second")]
    pub free_early: Vec<Condition>,
    /// Empty the cache where a step begins (`steps`), where each tenth does (`steps:10`), or at marks of a text (`mark:TEXT`).
    #[arg(long, value_name = "WHEN", value_parser = EmptyAt::parse)]
    pub empty_at: Option<EmptyAt>,
    /// A recording of the same steps with another batch size.
    #[arg(long, value_name = "FILE", requires = "batches", conflicts_with = "without")]
    pub second: Option<PathBuf>,
    /// Batch sizes of FILE, of --second, and the one to ask about: 16,32,48.
    #[arg(long, value_name = "A,B,N", requires = "second", value_parser = Batches::parse)]
    pub batches: Option<Batches>,
    /// Go on behind a request at which the program would have taken another path.
    #[arg(long)]
    pub go_on: bool,
    /// Leave out the search for the least memory, which takes tens of replays.
    #[arg(long)]
    pub quick: bool,
    /// More rules that name owners, for --without and --free-early.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
}

/// `advise`.
#[derive(Debug, Args)]
pub(super) struct AdviseArgs {
    /// What to replay.
    #[command(flatten)]
    pub replayed: ReplayedArgs,
    /// Only settings with no more driver calls than there are now.
    #[arg(long)]
    pub keep_calls: bool,
}

impl WhatIfArgs {
    fn changes_requests(&self) -> bool {
        let conditions = self.without.len() + self.free_early.len();
        conditions > 0 || self.empty_at.is_some() || self.second.is_some()
    }
}

impl ReplayedArgs {
    /// The question to recordings of this allocator.
    fn question(&self, family: Family) -> Result<Question> {
        let limit_bytes = self.limit.map(|limit| limit.saturating_sub(self.reserve.unwrap_or(0)));
        if let Some(release) = self.release.filter(|release| release.family() != family) {
            bail!(
                "{} is no release of the recording's allocator, which is of {}",
                release.name(),
                family.device_word()
            );
        }
        Ok(Question {
            recorded: self.recorded.clone(),
            release: self.release.unwrap_or(family.newest()),
            limit_bytes,
            total_bytes: self.limit,
            fraction: self.fraction,
            ..Question::default()
        })
    }
}

/// The allocator of a recording: processes of one file have the same.
fn family_of(all: &[Requests]) -> Family {
    all.first().map_or_else(Family::default, |requests| requests.family)
}

/// Which requests are left out, and which blocks are freed earlier.
#[derive(Default)]
struct Changed {
    without: Filter,
    early: Filter,
}

/// Requests of the recording; and the same with changes, if there are conditions.
fn requests(files: &[PathBuf], changed: Changed, allocator: Option<Family>) -> Result<(Vec<Requests>, Vec<Requests>)> {
    let Changed { without, early } = changed;
    if let [file] = files
        && let Some(requests) = snapshot(file, allocator)?
    {
        if !without.is_empty() {
            bail!("a snapshot has no owners: --without needs a capture");
        }
        if !early.is_empty() {
            bail!("a snapshot has no uses of blocks: --free-early needs {WITH_USES}");
        }
        return Ok((vec![requests], Vec::new()));
    }
    if allocator.is_some() {
        bail!("--allocator is for memory snapshots: what is recorded here is of torch_npu");
    }
    let paths = runs::one_capture(files)?;
    let source = source(&paths)?;
    if source == Source::Dump && !early.is_empty() {
        bail!("dumps lack the ends of operators: --free-early needs {WITH_USES}");
    }
    let (recorder, all) = Recorder::new(source);
    let mut recorders: Vec<Box<dyn Observer>> = vec![Box::new(recorder)];
    let part = (!without.is_empty() || !early.is_empty()).then(|| {
        let (recorder, part) = Recorder::new(source);
        recorders.push(Box::new(recorder.without(without).with_last_uses(early)));
        part
    });
    input::observe(&paths, Selection::default(), recorders)?;
    let part = part.and_then(|part| part.try_recv().ok()).unwrap_or_default();
    Ok((all.try_recv().unwrap_or_default(), part))
}

/// Names of files, in one line.
pub(super) fn name(files: &[PathBuf]) -> String {
    files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The requests of a memory snapshot; `None`: the file is none.
fn snapshot(path: &Path, allocator: Option<Family>) -> Result<Option<Requests>> {
    if path.is_dir() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let file = regular::open(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let mut file = file.take(MAX_SNAPSHOT_BYTES + 1);
    file.by_ref().take(2).read_to_end(&mut bytes)?;
    if !is_snapshot(&bytes) {
        return Ok(None);
    }
    file.read_to_end(&mut bytes).with_context(|| format!("cannot read `{}`", path.display()))?;
    if bytes.len() as u64 > MAX_SNAPSHOT_BYTES {
        bail!("`{}` has more than {} GiB: record a shorter history", path.display(), MAX_SNAPSHOT_BYTES >> 30);
    }
    let requests =
        requests_of(&bytes, allocator).map_err(|reason| anyhow::anyhow!("`{}`: {reason}", path.display()))?;
    Ok(Some(requests))
}

/// Captures have all that the pool reports.
fn source(paths: &[PathBuf]) -> Result<Source> {
    let formats: Vec<Format> =
        files(paths)?.iter().map(|path: &PathBuf| format(Path::new(path))).collect::<Result<_, _>>()?;
    Ok(if formats == [Format::Capture] { Source::Capture } else { Source::Dump })
}

/// Takes the requests of these files; of a process with more than `most` none.
pub(super) fn recorder(files: &[PathBuf], most: u64) -> Result<(Recorder, Receiver<Vec<Requests>>)> {
    let (recorder, made) = Recorder::new(source(&runs::one_capture(files)?)?);
    Ok((recorder.up_to(most), made))
}

/// `whatif FILE…`.
pub(super) fn run(args: &WhatIfArgs) -> ExitCode {
    let rules = match rules_of_user(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(code) => return code,
    };
    input::exit(|| {
        let filter =
            |conditions: &[Condition]| Filter { conditions: conditions.to_vec(), rules: Some(Arc::clone(&rules)) };
        let changed = Changed { without: filter(&args.without), early: filter(&args.free_early) };
        let found = what_if(args, changed)?;
        print(args.replayed.json, &found, |out| write_what_if(&found, out))
    })
}

fn what_if(args: &WhatIfArgs, changes: Changed) -> Result<WhatIf> {
    let allocator = args.replayed.allocator;
    let (all, part) = requests(&args.replayed.files, changes, allocator)?;
    let other = |file| requests(std::slice::from_ref(file), Changed::default(), allocator);
    let second = args.second.as_ref().map(other).transpose()?;
    let second = second.map(|(second, _)| second);
    let question = Question {
        settings: args.settings.clone(),
        until: if args.go_on { Until::End } else { Until::Divergence },
        least: !args.quick,
        changed: args.changes_requests(),
        ..args.replayed.question(family_of(&all))?
    };
    let mut processes = Vec::new();
    // Which process of one run is which of the other is not known.
    let second = second.as_deref().map(|second| only(second, "--second")).transpose()?;
    if second.is_some() {
        only(&all, "FILE")?;
    }
    for whole in &all {
        let is_part = !args.without.is_empty() || !args.free_early.is_empty();
        let requests = if is_part { part.iter().find(|part| part.pid == whole.pid) } else { Some(whole) };
        let Some(requests) = requests else { continue };
        processes.push(changed(requests, whole, second, args, &question)?);
    }
    if args.empty_at.is_some() && processes.iter().all(|process| process.emptied == 0) {
        bail!("no such moment in the recording: --empty-at needs its steps or marks");
    }
    let has_uses = |process: &ProcessAnswer| process.freed_early.is_none_or(|early| early.uses > 0);
    if !processes.is_empty() && !processes.iter().any(has_uses) {
        bail!("the recording has no uses of blocks by operators: --free-early needs {WITH_USES}");
    }
    Ok(WhatIf {
        input: name(&args.replayed.files),
        limit_bytes: args.replayed.limit,
        reserve_bytes: args.replayed.reserve,
        fraction: args.replayed.fraction,
        without: args.without.len() as u64,
        processes,
    })
}

fn only<'a>(all: &'a [Requests], which: &str) -> Result<&'a Requests> {
    match all {
        [one] => Ok(one),
        _ => {
            bail!("{which} has {} processes with requests to PyTorch's pool: --second compares runs of one", all.len())
        }
    }
}

/// Asks about one process, with requests changed as asked for.
fn changed(
    requests: &Requests,
    whole: &Requests,
    second: Option<&Requests>,
    args: &WhatIfArgs,
    question: &Question,
) -> Result<ProcessAnswer> {
    let mut requests = Cow::Borrowed(requests);
    let (mut found, mut emptied) = (None, 0);
    if let (Some(second), Some(batches)) = (second, args.batches) {
        let (scaled, how) = scaled(&requests, second, batches).map_err(anyhow::Error::msg)?;
        (requests, found) = (Cow::Owned(scaled), Some(how));
    }
    let mut early = None;
    if let Some((changed, how)) = freed_early(&requests) {
        (requests, early) = (Cow::Owned(changed), Some(how));
    }
    if let Some(at) = &args.empty_at {
        let (changed, times) = with_empty_caches(&requests, at);
        (requests, emptied) = (Cow::Owned(changed), times);
    }
    let answer = ask(&requests, whole, question).map_err(anyhow::Error::msg)?;
    Ok(ProcessAnswer { emptied, scaled: found, freed_early: early, ..answer })
}

/// `advise FILE…`.
pub(super) fn run_advise(args: &AdviseArgs) -> ExitCode {
    input::exit(|| {
        let (all, _) = requests(&args.replayed.files, Changed::default(), args.replayed.allocator)?;
        let question = args.replayed.question(family_of(&all))?;
        let wishes = Wishes { keep_calls: args.keep_calls };
        let advices = all.iter().map(|requests| advise_of(requests, &question, wishes));
        let processes = advices.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
        let found = Advices { input: name(&args.replayed.files), limit_bytes: args.replayed.limit, processes };
        print(args.replayed.json, &found, |out| write_advices(&found, out))
    })
}

pub(super) fn print<T>(
    json: bool,
    found: &T,
    text: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<()>
where
    for<'a> &'a T: document::Content,
{
    let printed = if json {
        terminal::print_json(|mut out| {
            document::write(found, &mut out)?;
            writeln!(out)
        })
    } else {
        terminal::print(|mut out| text(&mut out))
    };
    printed.context("cannot print the answer")
}

/// Bytes of memory: `32GiB`, `32G`, `29500M`, and `32GB` for 32 · 10⁹.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let factor: f64 = match unit {
        "" | "B" => 1.0,
        "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1_048_576.0,
        "G" | "GiB" => 1_073_741_824.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => 0.0,
    };
    let bytes = number.parse::<f64>().ok().map(|number| number * factor);
    bytes
        .filter(|bytes| *bytes >= 1.0 && *bytes < (1_u64 << 50) as f64)
        .map(|bytes| bytes as u64)
        .ok_or_else(|| format!("`{text}` is not an amount of memory like 32GiB or 29500M"))
}

fn fraction(text: &str) -> Result<f64, String> {
    let part: Option<f64> = text.parse().ok().filter(|part| *part > 0.0 && *part <= 1.0);
    part.ok_or_else(|| format!("`{text}` is not a part of memory, greater than 0 and at most 1"))
}

fn release(text: &str) -> Result<Release, String> {
    Release::of(text).ok_or_else(|| {
        let names = Release::ALL.map(Release::name).join(", ");
        format!("`{text}` is not one of {names}")
    })
}

fn allocator(text: &str) -> Result<Family, String> {
    let known = [Family::Npu, Family::Cuda].into_iter().find(|family| family.device_word() == text);
    known.ok_or_else(|| format!("`{text}` is not npu or cuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory() {
        let good = [
            ("32GiB", 32 << 30),
            ("32G", 32 << 30),
            ("1.5G", 3 << 29),
            ("29500M", 29500 << 20),
            ("32GB", 32_000_000_000),
        ];
        for (text, bytes) in good {
            assert_eq!(memory(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "G", "32T", "-1G", "1e9", "99999999999G", "NaN", ".G"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fractions_and_releases() {
        assert_eq!((fraction("0.5"), fraction("1")), (Ok(0.5), Ok(1.0)));
        for bad in ["0", "1.1", "-1", "x", "nan"] {
            assert!(fraction(bad).is_err(), "{bad}");
        }
        assert_eq!(release("7.3.0"), Ok(Release::V7_3));
        assert!(release("2.9").expect_err("no release").contains("7.3.0"));
        assert_eq!((release("torch-2.9"), allocator("cuda")), (Ok(Release::Torch2_9), Ok(Family::Cuda)));
        assert!(allocator("gpu").is_err());
    }
}
