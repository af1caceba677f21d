//! A whole system, booted with the newest kernel: its root is the initramfs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::{
    TOOLS, debian,
    guest::{self, STATUS},
    kernel::Kernel,
    machine,
};
use crate::{
    apt,
    arch::Arch,
    project::{as_root, run as run_command},
};

/// The series.
const NEWEST: &str = "6.12";
/// What the first process needs, which the system may not have.
const BUSYBOX: &str = "memscope-vm/busybox";
/// Stands before what the command prints.
const BOOTED: &str = "memscope-vm: booted";

/// Runs a command of a shell in the system, as root and at its own root, and gives what it printed, its messages with it.
pub(crate) fn run(arch: &Arch, root: &Path, command: &str) -> Result<String> {
    apt::install_missing(&TOOLS)?;
    let kernel = Kernel::named(&format!("{NEWEST}-{}", arch.name))?;
    let image = debian::kernel(&kernel)?.image;
    let busybox = debian::userland(kernel.arch)?.folder.join("bin/busybox");
    let init = guest::folder().join(format!("init-{}", arch.name));
    fs::create_dir_all(guest::folder()).context("failed to make a folder for guests")?;
    fs::write(&init, script(&kernel, command)).with_context(|| format!("failed to write `{}`", init.display()))?;
    for (program, to) in [(&busybox, BUSYBOX), (&init, "init")] {
        run_command(as_root("install").arg("-D").arg(program).arg(root.join(to)))?;
    }
    let initramfs = guest::pack(root, &guest::folder().join(format!("system-{}.cpio", arch.name)))?;
    let said = machine::run(&kernel, &image, &initramfs)?.console;
    printed(&said).map(str::to_owned)
}

/// Programs of the system come first; what the system lacks is not added to it.
fn script(kernel: &Kernel, command: &str) -> String {
    let mounts = guest::mounts(kernel);
    format!(
        "#!/{BUSYBOX} sh
for name in mount mkdir ln ifconfig; do
    eval \"$name() {{ /{BUSYBOX} $name \\\"\\$@\\\"; }}\"
done
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev /proc /root /sys /tmp
{mounts}
echo \"{BOOTED}\"
{command}
echo \"{STATUS}$?\"
/{BUSYBOX} poweroff -f
"
    )
}

/// What the command printed, if it ended well.
fn printed(console: &str) -> Result<&str> {
    let (_, said) = console.split_once(BOOTED).with_context(|| format!("it did not boot: {console}"))?;
    let (said, status) = said.split_once(STATUS).with_context(|| format!("it did not end: {said}"))?;
    ensure!(status.trim_start().starts_with("0\n"), "it failed: {said}");
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that what did not end, or failed, gives nothing.
    #[test]
    fn ends() {
        let said = |status: &str| format!("[0.1] Linux\n{BOOTED}\nrow 1\n{STATUS}{status}\n[9.9] Power down\n");
        assert_eq!(printed(&said("0")).expect("an end").trim(), "row 1");
        printed(&said("1")).expect_err("a failure");
        printed("[0.1] Linux\n").expect_err("no boot");
        printed(&format!("{BOOTED}\nrow 1\n")).expect_err("no end");
        let script = script(&Kernel::named("6.12-aarch64").expect("a kernel"), "sh /x.sh");
        assert!(script.contains("eval \"$name() { /memscope-vm/busybox $name \\\"\\$@\\\"; }\""), "{script}");
    }
}
