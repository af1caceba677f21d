//! Watches the process for a while, where no capture says what grows.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

/// A capture of the process, which goes with this.
pub(super) struct Watched {
    capture: PathBuf,
    _folder: TempDir,
}

impl Watched {
    /// Traces the process in a process of its own, which has all that a trace has. A look at its holders follows, so the trace takes none.
    pub(super) fn of(pid: u32, time: Duration) -> Result<Self> {
        let folder = TempDir::with_prefix("memscope-holders-").context("no folder for the capture")?;
        let capture = folder.path().join("trace");
        let status = Command::new("/proc/self/exe")
            .args(["attach", &pid.to_string(), "--quiet", "--capture-only", "--no-holders"])
            .args(["--duration", &format!("{}ms", time.as_millis())])
            .arg("--output-path")
            .arg(&capture)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .context("the trace does not start")?;
        ensure!(status.success(), "process {pid} was not traced: see above");
        Ok(Self { capture, _folder: folder })
    }

    pub(super) fn capture(&self) -> &Path {
        &self.capture
    }
}
