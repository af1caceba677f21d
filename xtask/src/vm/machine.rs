//! One run of QEMU.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{guest, kernel::Kernel, report::Outcome};
use crate::project::program;

/// A guest with a silent console for this long hangs: also interpreted, and on a machine that others use, a test takes
/// a minute or two.
const SILENCE: Duration = Duration::from_mins(10);
/// A guest may hang and go on to complain.
const TIMEOUT: Duration = Duration::from_mins(150);

/// One boot.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) console: String,
    took: Duration,
    in_time: bool,
}

/// Boots a guest that runs tests.
pub(super) fn boot(kernel: &Kernel, image: &Path, initramfs: &Path) -> Result<Outcome> {
    let Run { console, took, in_time } = run(kernel, image, initramfs)?;
    Ok(Outcome::read(&kernel.name, &console, took, in_time))
}

/// Boots, waits for the power to go off, and reads the console.
pub(super) fn run(kernel: &Kernel, image: &Path, initramfs: &Path) -> Result<Run> {
    let log = guest::folder().join(format!("{}.log", kernel.name));
    eprintln!("booting {}; its console goes to `{}`", kernel.name, log.display());
    let start = Instant::now();
    let mut qemu = command(kernel, image, initramfs, &log);
    let child = qemu.stdin(Stdio::null()).spawn().context("cannot run QEMU; `./x setup --vm` installs it")?;
    let in_time = wait(child, &log, start)?;
    let console = fs::read(&log).with_context(|| format!("failed to read `{}`", log.display()))?;
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    // QEMU ends in order at a signal, too. That is no failure of the guest, so no row.
    ensure!(
        !in_time || is_over(&console),
        "QEMU was stopped before {} ended; the console is in `{}`",
        kernel.name,
        log.display()
    );
    Ok(Run { console, took: start.elapsed(), in_time })
}

fn command(kernel: &Kernel, image: &Path, initramfs: &Path, log: &Path) -> Command {
    // x86 in one thread for both processors: emulated in two, a processor was found spinning at an instruction that the
    // kernel had patched from the other one (the tracepoint of `do_exit`, which each start and end of a tracer switches).
    let (machine, processor, console, accelerator) = match kernel.arch.name {
        "x86_64" => ("q35", "max", "ttyS0", "tcg,thread=single"),
        // The other one has pages of 4 and 64 KiB only, and a kernel of 16 KiB stops without a word.
        _ if kernel.has_large_pages => ("virt", "neoverse-n1", "ttyAMA0", "tcg,thread=multi"),
        _ => ("virt", "cortex-a72", "ttyAMA0", "tcg,thread=multi"),
    };
    let mut qemu = program(format!("qemu-system-{}", kernel.arch.name));
    qemu.args(["-machine", machine, "-cpu", processor, "-accel", accelerator]);
    qemu.args(["-smp", "2", "-m", "2048", "-no-reboot"]);
    qemu.args(["-display", "none", "-monitor", "none", "-nic", "none", "-serial"]).arg(file_argument(log));
    // The kernel's stacks have level 4, and only lower ones are shown. Interpreted, neither do processors speculate nor do
    // their clocks differ, and what kernels do about it takes time.
    qemu.arg("-append").arg(format!("console={console} panic=-1 loglevel=5 mitigations=off tsc=reliable"));
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    qemu
}

/// Whether the guest itself came to an end, in order or not.
fn is_over(console: &str) -> bool {
    console.lines().any(|line| line.starts_with(guest::STATUS)) || console.contains("Kernel panic")
}

fn file_argument(file: &Path) -> PathBuf {
    PathBuf::from(format!("file:{}", file.display()))
}

/// Whether it ended by itself, before its log no longer grew.
fn wait(mut child: Child, log: &Path, start: Instant) -> Result<bool> {
    let (mut length, mut grew) = (0, start);
    while grew.elapsed() < SILENCE && start.elapsed() < TIMEOUT {
        if let Some(status) = child.try_wait().context("failed to wait for QEMU")? {
            ensure!(status.success(), "QEMU failed ({status})");
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(100));
        let now = fs::metadata(log).map_or(length, |file| file.len());
        if now != length {
            (length, grew) = (now, Instant::now());
        }
    }
    child.kill().context("failed to stop QEMU")?;
    child.wait().context("failed to wait for QEMU")?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that a guest that was stopped from outside is not taken for one that failed.
    #[test]
    fn ends() {
        let started = "memscope-vm: booted 5.10\nrunning 2 tests\n";
        assert!(!is_over(started));
        assert!(is_over(&format!("{started}memscope-vm: status 101\n")));
        assert!(is_over(&format!("{started}[    9.1] Kernel panic - not syncing: Attempted to kill init!\n")));
    }
}
