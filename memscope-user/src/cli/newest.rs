//! The default run if no file is given: the newest one that was traced here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};

use super::{
    USAGE,
    args::{DEFAULT_OUTPUT, LogLevel},
    error, message, offline,
};

/// Runs a command on files, with the newest run if none is given.
pub(super) fn on<A>(
    mut args: A,
    files: impl Fn(&mut A) -> &mut Vec<PathBuf>,
    run: impl FnOnce(&A) -> ExitCode,
) -> ExitCode {
    let given = files(&mut args);
    if given.is_empty() {
        match newest(Path::new(DEFAULT_OUTPUT)) {
            Ok(capture) => {
                let text = format_args!("the newest run: {}", capture.display());
                message(LogLevel::Info, LogLevel::Info, text);
                given.push(capture);
            }
            Err(failure) => {
                error(format_args!("{failure:#}"));
                return ExitCode::from(USAGE);
            }
        }
    }
    run(&args)
}

/// The capture written last; of equal ones that with the last name.
fn newest(folder: &Path) -> Result<PathBuf> {
    const WAY_OUT: &str = "give FILE: a capture, the output folder of a trace, or dumps of one run";
    if !folder.is_dir() {
        bail!("no FILE is given, and there is no folder `{}` here: {WAY_OUT}", folder.display());
    }
    let written = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    let captures = offline::captures(folder)?;
    let newest = captures.into_iter().max_by_key(written);
    newest.with_context(|| format!("no FILE is given, and `{}` has no capture: {WAY_OUT}", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, SystemTime},
    };

    use super::*;

    /// By the time of writing, not by name; a folder without a capture is refused with a way out.
    #[test]
    fn the_last_written_is_the_newest() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = newest(folder.path()).expect_err("no capture").to_string();
        assert!(
            refused
                .ends_with("has no capture: give FILE: a capture, the output folder of a trace, or dumps of one run")
        );
        for (name, seconds) in [("a.capture", 3), ("b.capture", 2), ("c.csv", 9)] {
            let file = File::create(folder.path().join(name)).expect("a file");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("a time");
        }
        assert_eq!(newest(folder.path()).expect("a capture"), folder.path().join("a.capture"));
        let missing = newest(&folder.path().join("none")).expect_err("no folder").to_string();
        assert!(missing.contains("there is no folder"), "{missing}");
    }
}
