//! `report`, and `--html` of other commands: a run as a page for a browser.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};

use super::{
    args::{HtmlArgs, LogLevel, PageArgs},
    decompose::rules,
    input, message, progress,
    select::SelectArgs,
    whatif,
};
use crate::{
    analyses::{self, Analysis, Observer, decompose::RuleSet},
    explain,
    input::Options,
    os::{caller::Caller, secure_env},
    regular,
    report::{self, PAGE_START, Reduced, Reducer},
    sinks::folder::FilePlace,
    text::numbers::rounded,
    whatif::{
        Requests,
        answers::{Question, Wishes, advise},
    },
};

/// Default name of a page.
const DEFAULT_NAME: &str = "report.html";
/// Most requests of a process for which other settings are tried unasked: some seconds.
const MAX_REQUESTS: u64 = 200_000;

/// `report FILE…`.
pub(super) fn run(args: &PageArgs) -> ExitCode {
    input::exit(|| {
        let requests = if args.what_if { u64::MAX } else { MAX_REQUESTS };
        let page = Page { title: args.title.clone(), requests, ..Page::of(args.rules.as_deref(), &args.select) };
        let path = args.output.clone().unwrap_or_else(|| beside(&args.files));
        page.write(&args.files, &path, args.open)
    })
}

/// `--html` of a command on files: the page of the same part of the run.
pub(super) fn also(html: &HtmlArgs, files: &[PathBuf], rules: Option<&Path>, select: &SelectArgs) -> Result<()> {
    let Some(path) = path(html, || beside(files)) else { return Ok(()) };
    Page::of(rules, select).write(files, &path, html.open)
}

/// `--html` of a trace: the page of its capture.
pub(super) fn of_capture(html: &HtmlArgs, capture: &Path, rules: Option<&Path>, select: &SelectArgs) -> Result<()> {
    let Some(path) = path(html, || capture.with_extension("html")) else { return Ok(()) };
    Page::of(rules, select).write(&[capture.to_owned()], &path, html.open)
}

/// `--html` of a capture that is in no file.
pub(super) fn of_bytes(html: &HtmlArgs, capture: &[u8]) -> Result<()> {
    let Some(path) = path(html, || beside(&[])) else { return Ok(()) };
    let mut file = tempfile::Builder::new().suffix(".capture").tempfile().context("cannot make a temporary file")?;
    file.write_all(capture).context("cannot write a temporary file")?;
    Page::of(None, &SelectArgs::default()).write(&[file.path().to_owned()], &path, html.open)
}

/// Where the page goes that `--html` asks for; without a name beside its input.
fn path(html: &HtmlArgs, beside: impl FnOnce() -> PathBuf) -> Option<PathBuf> {
    let path = html.html.clone()?;
    Some(if path.as_os_str().is_empty() { beside() } else { path })
}

/// The inputs of a page.
struct Page<'a> {
    title: Option<String>,
    rules: Option<&'a Path>,
    select: &'a SelectArgs,
    /// Most requests of a process that other settings are tried for.
    requests: u64,
}

impl<'a> Page<'a> {
    const fn of(rules: Option<&'a Path>, select: &'a SelectArgs) -> Self {
        Self { title: None, rules, select, requests: MAX_REQUESTS }
    }

    fn write(&self, files: &[PathBuf], path: &Path, open: bool) -> Result<()> {
        let place = FilePlace::reach(path, Caller::owner()?).with_context(|| cannot(path))?;
        refuse_foreign(&place, path)?;
        let rules = rules(self.rules).map_err(anyhow::Error::msg)?;
        let (reducer, made) = Reducer::naming(Arc::clone(&rules));
        let selection = self.select.selection(Some(&rules));
        let mut observers: Vec<Box<dyn Observer>> = vec![reducer];
        let part = self.select.text();
        // Requests of a part of the run meet another pool.
        let recorded =
            part.is_none().then(|| whatif::recorder(files, self.requests)).transpose()?.map(|(recorder, made)| {
                observers.push(Box::new(recorder));
                made
            });
        let options = Options { selection, observers, ..Options::default() };
        let outcome = input::read_with(files, options, analyses(&rules))?;
        let run = made.try_recv().unwrap_or_default();
        if run.views.is_empty() {
            bail!("there is no block in it, so there is nothing to show");
        }
        let tells_failures = outcome.replay.is_some();
        let requests = recorded.and_then(|made| made.try_recv().ok()).unwrap_or_default();
        let what_if = progress::during("replaying", || self.what_if(&requests));
        let options = report::Options { title: self.title.clone(), part, tells_failures, what_if };
        let write = || save(&place, &run, &outcome.findings, &options);
        let bytes = progress::during("writing", write).with_context(|| cannot(path))?;
        let text = format_args!("page of {}: {}", rounded(bytes.into()), path.display());
        message(LogLevel::Info, LogLevel::Info, text);
        if open { show(path) } else { Ok(()) }
    }

    /// What other settings would give each process with `PyTorch`'s pool. Without an answer where the settings of the run are refused.
    fn what_if(&self, requests: &[Requests]) -> report::WhatIf {
        let (cut, whole): (Vec<_>, Vec<_>) = requests.iter().partition(|requests| requests.is_cut);
        let advise = |requests: &Requests| advise(requests, &Question::default(), Wishes::default()).ok();
        report::WhatIf {
            advices: whole.into_iter().filter_map(advise).collect(),
            left_out: cut.into_iter().map(|requests| requests.pid).collect(),
            most: self.requests,
        }
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

/// All that a page shows.
fn analyses(rules: &Arc<RuleSet>) -> Vec<Box<dyn Analysis>> {
    explain::analyses(rules)
}

/// Beside the page's input.
fn beside(files: &[PathBuf]) -> PathBuf {
    match files {
        [file] if file.is_dir() => file.join(DEFAULT_NAME),
        [file, ..] => file.with_file_name(DEFAULT_NAME),
        [] => PathBuf::from(DEFAULT_NAME),
    }
}

/// A file that is no page of ours is not overwritten.
fn refuse_foreign(place: &FilePlace, path: &Path) -> Result<()> {
    let mut head = Vec::new();
    match regular::open(&place.path()) {
        Ok(file) => file.take(PAGE_START.len() as u64).read_to_end(&mut head).with_context(|| cannot(path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| cannot(path)),
    };
    if head.is_empty() || head == PAGE_START.as_bytes() {
        return Ok(());
    }
    bail!("`{}` is no report of memscope-bpf, so it is not overwritten: give another name with -o", path.display())
}

/// Writes the page; it shows a program's internals, so only its owner may read it. Returns its bytes.
pub(super) fn save(
    place: &FilePlace,
    run: &Reduced,
    findings: &[analyses::Finding],
    options: &report::Options,
) -> io::Result<u64> {
    let mut page = Vec::new();
    report::write(run, findings, options, &mut page)?;
    let mut file: File = place.overwrite()?;
    if file.metadata()?.is_file() {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    file.write_all(&page)?;
    Ok(page.len() as u64)
}

/// Opens the page in the user's browser.
fn show(path: &Path) -> Result<()> {
    // A browser is not to run as root, nor with rights that its user does not have.
    if nix::unistd::geteuid().is_root() || secure_env::has_borrowed_rights() {
        let text = format_args!("no browser is started as root: open {} yourself", path.display());
        message(LogLevel::Info, LogLevel::Warning, text);
        return Ok(());
    }
    let mut opener = Command::new("xdg-open");
    opener.arg(std::path::absolute(path)?).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = opener.status().context("cannot start `xdg-open`: open the page yourself")?;
    if status.success() { Ok(()) } else { bail!("`xdg-open` found no browser: open the page yourself") }
}
