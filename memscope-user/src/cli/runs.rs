//! Runs and their folders: one for each run in the working directory, the newest one if no file is given.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::{Context as _, Result, bail};

use super::{
    USAGE,
    args::{DEFAULT_OUTPUT, LogLevel},
    error, message,
};
use crate::session::Traced;

/// Names of the folders of runs begin so.
const PREFIX: &str = "memscope-";
const EXTENSION: &str = "capture";
/// Folders of processes in an output folder are named `msmemscope_<pid>_<time>_ascend`.
const OF_PROCESS: &str = "msmemscope_";
/// Most letters of a program in the name of a folder.
const MAX_LABEL: usize = 40;
/// Most runs that a message lists.
const MAX_LISTED: usize = 8;

/// The name of a new run's folder: `memscope-train.py-20260102-120059`, or with the process that is attached to.
pub(super) fn folder_of(traced: &Traced) -> PathBuf {
    folder_for(&match traced {
        Traced::Program(program) => label(&program.command),
        Traced::Processes(pids) => match pids.as_slice() {
            [pid] => pid.to_string(),
            [pid, others @ ..] => format!("{pid}+{}", others.len()),
            [] => "none".to_owned(),
        },
        Traced::Joining => "joined".to_owned(),
    })
}

/// The name of a new run's folder, with a word of what is traced.
pub(super) fn folder_for(label: &str) -> PathBuf {
    stamped(&format!("{PREFIX}{label}"))
}

/// The name of a new folder for the outputs of a capture, which is no run.
pub(super) fn folder_of_replay() -> PathBuf {
    stamped("replayed")
}

fn stamped(name: &str) -> PathBuf {
    PathBuf::from(format!("{name}-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S")))
}

/// A word for a program: its script's name, else its own.
fn label(command: &[OsString]) -> String {
    let name =
        |word: &OsString| Path::new(word).file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let is_script = |word: &&OsString| {
        let extension = Path::new(word).extension();
        let is_option = word.as_encoded_bytes().starts_with(b"-");
        !is_option && extension.is_some_and(|extension| extension == "py" || extension == "sh")
    };
    // `env A=b program`.
    let is_setting = |word: &&OsString| *word == "env" || word.as_encoded_bytes().contains(&b'=');
    let own = || command.iter().find(|word| !is_setting(word));
    let word = command.iter().find(is_script).or_else(own).map(name).unwrap_or_default();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let word: String = word.chars().take(MAX_LABEL).map(plain).collect();
    if word.is_empty() { "program".to_owned() } else { word }
}

/// Files that a command may be given.
pub(super) trait Given {
    /// Takes this one, where none was given.
    fn or_take(&mut self, newest: impl FnOnce() -> Result<PathBuf>) -> Result<()>;
}

impl Given for Vec<PathBuf> {
    fn or_take(&mut self, newest: impl FnOnce() -> Result<PathBuf>) -> Result<()> {
        if self.is_empty() {
            self.push(newest()?);
        }
        Ok(())
    }
}

impl Given for Option<PathBuf> {
    fn or_take(&mut self, newest: impl FnOnce() -> Result<PathBuf>) -> Result<()> {
        if self.is_none() {
            *self = Some(newest()?);
        }
        Ok(())
    }
}

/// Runs a command on files, with the newest run if none is given.
pub(super) fn on<A, G: Given>(
    mut args: A,
    files: impl Fn(&mut A) -> &mut G,
    run: impl FnOnce(&A) -> ExitCode,
) -> ExitCode {
    let newest = || {
        let run = newest(Path::new("."))?;
        message(LogLevel::Info, LogLevel::Info, format_args!("the newest run: {}", run.display()));
        Ok(run)
    };
    match files(&mut args).or_take(newest) {
        Ok(()) => run(&args),
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(USAGE)
        }
    }
}

/// The run written last: its capture, or the folder of its rows; of equal ones that with the last name.
fn newest(here: &Path) -> Result<PathBuf> {
    let mut folders = runs(here)?;
    folders.extend([here.join(DEFAULT_OUTPUT), here.to_owned()]);
    let mut found: Vec<(Option<SystemTime>, PathBuf)> = Vec::new();
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        let captures = captures(&folder)?;
        let is_run_of_rows = captures.is_empty() && folder != here && has_rows(&folder);
        found.extend(captures.into_iter().map(|capture| (written(&capture), capture)));
        if is_run_of_rows {
            found.push((written(&folder), folder));
        }
    }
    let newest = found.into_iter().max().map(|(_, run)| run);
    let newest = newest.map(|run| run.strip_prefix(".").map(Path::to_owned).unwrap_or(run));
    newest.context(
        "no FILE is given, and there is no run here (no folder memscope-*, no memscopeDumpResults): \
         give a capture, the output folder of a trace, or dumps of one run",
    )
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|about| about.modified()).ok()
}

/// Folders of runs in a folder, by name.
fn runs(above: &Path) -> Result<Vec<PathBuf>> {
    let is_run = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && path.is_dir()
            && (has_rows(path) || captures(path).is_ok_and(|captures| !captures.is_empty()))
    };
    Ok(entries(above)?.into_iter().filter(is_run).collect())
}

fn has_rows(folder: &Path) -> bool {
    let of_process = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(OF_PROCESS.as_bytes())
    };
    entries(folder).is_ok_and(|entries| entries.iter().any(of_process))
}

/// Captures in a folder, oldest name first.
pub(super) fn captures(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION);
    Ok(entries(folder)?.into_iter().filter(is_capture).collect())
}

/// Paths in a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read directory `{}`", folder.display()))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    Ok(found)
}

/// The output folder of a trace stands for its capture, if it has one alone; else for its dumps. A folder with several
/// runs stands for none of them.
pub(super) fn one_capture(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let [folder] = given else { return Ok(given.to_vec()) };
    if !folder.is_dir() {
        return Ok(given.to_vec());
    }
    match captures(folder)?.as_slice() {
        [capture] => return Ok(vec![capture.clone()]),
        [] => {}
        several => bail!(
            "`{}` has captures of {} runs: give one of them: {}; their rows together are `{}/*/`",
            folder.display(),
            several.len(),
            listed(several),
            folder.display()
        ),
    }
    match runs(folder)?.as_slice() {
        [] => Ok(given.to_vec()),
        [run] => one_capture(std::slice::from_ref(run)),
        several => {
            bail!("`{}` has {} runs: give one of them: {}", folder.display(), several.len(), listed(several))
        }
    }
}

/// The last ones, which are the newest of a program.
fn listed(paths: &[PathBuf]) -> String {
    let shown = &paths[paths.len().saturating_sub(MAX_LISTED)..];
    let names: Vec<String> = shown.iter().map(|path| path.display().to_string()).collect();
    let more = if shown.len() < paths.len() { " and others" } else { "" };
    format!("{}{more}", names.join(", "))
}

/// The folder of a capture, if it is one run's own.
pub(super) fn own_folder(capture: &Path) -> Option<&Path> {
    let folder = capture.parent()?;
    let is_own = folder.file_name()?.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    (is_own && captures(folder).is_ok_and(|captures| captures.len() == 1)).then_some(folder)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    fn write(path: &Path, seconds: u64) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let file = File::create(path).expect("a file");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("a time");
    }

    /// By the time of writing, not by name, wherever a trace writes; other folders that begin alike are no runs.
    #[test]
    fn the_last_written_is_the_newest() {
        let here = tempfile::tempdir().expect("a folder");
        let here = here.path();
        write(&here.join("memscope-user/Cargo.toml"), 90);
        let refused = newest(here).expect_err("no run").to_string();
        assert!(refused.contains("no run here") && refused.contains("give a capture"), "{refused}");
        let captures =
            [("memscope-a.py-1/x.capture", 3), ("memscope-b.py-1/x.capture", 2), ("memscopeDumpResults/x.capture", 1)];
        for (name, seconds) in captures {
            write(&here.join(name), seconds);
        }
        assert_eq!(newest(here).expect("a run"), here.join("memscope-a.py-1/x.capture"));
        write(&here.join("memscopeDumpResults/y.capture"), 4);
        assert_eq!(newest(here).expect("a run"), here.join("memscopeDumpResults/y.capture"));
        write(&here.join("given.capture"), 5);
        assert_eq!(newest(here).expect("a run"), here.join("given.capture"));
        // Just made.
        fs::create_dir_all(here.join("memscope-7-1/msmemscope_7_1_ascend")).expect("rows");
        assert_eq!(newest(here).expect("a run"), here.join("memscope-7-1"));
    }

    /// A folder stands for the one run in it; several are listed, not mixed.
    #[test]
    fn a_folder_stands_for_one_run() {
        let here = tempfile::tempdir().expect("a folder");
        let one = |path: &Path| one_capture(&[path.to_owned()]);
        assert_eq!(one(here.path()).expect("dumps"), [here.path()]);
        let first = here.path().join("memscope-7-1/x.capture");
        write(&first, 1);
        for given in [&first, first.parent().expect("a folder"), here.path()] {
            assert_eq!(one(given).expect("a capture"), [first.as_path()], "{}", given.display());
        }
        assert_eq!(own_folder(&first), first.parent());
        write(&here.path().join("memscope-7-2/x.capture"), 1);
        let refused = one(here.path()).expect_err("two runs").to_string();
        assert!(refused.contains("has 2 runs: give one of them: "), "{refused}");
        assert!(refused.contains("memscope-7-1") && refused.contains("memscope-7-2"), "{refused}");
        write(&first.with_file_name("y.capture"), 1);
        let refused = one(first.parent().expect("a folder")).expect_err("two captures").to_string();
        assert!(refused.contains("has captures of 2 runs") && refused.ends_with("memscope-7-1/*/`"), "{refused}");
        assert_eq!(own_folder(&first), None);
    }

    /// The script, not its interpreter; nothing that a shell or a terminal takes for more than a name.
    #[test]
    fn folders_are_named_by_the_program() {
        for (command, expected) in [
            (&["python3", "-u", "/srv/train.py", "--config", "x.sh"][..], "train.py"),
            (&["bash", "train.sh"], "train.sh"),
            (&["/usr/bin/torchrun", "--hook=a.py", "--nproc-per-node=2", "train.py"], "train.py"),
            (&["env", "LD_LIBRARY_PATH=/x/lib", "/opt/steps", "--steps", "6"], "steps"),
            (&["./a b\u{1b}[2J"], "a_b__2J"),
            (&["/"], "program"),
            (&[""], "program"),
        ] {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            assert_eq!(label(&command), expected, "{command:?}");
        }
        let name = |pids: &[u32]| folder_of(&Traced::Processes(pids.to_vec())).display().to_string();
        assert!(name(&[7]).starts_with("memscope-7-20") && name(&[7, 8, 9]).starts_with("memscope-7+2-20"));
        assert_eq!(name(&[7]).len(), "memscope-7-20260102-120059".len());
        assert!(folder_of_replay().display().to_string().starts_with("replayed-20"));
    }
}
