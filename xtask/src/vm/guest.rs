//! What a guest boots into: an initramfs that runs the live tests and powers off.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    debian::{self, Userland},
    kernel::Kernel,
};
use crate::{
    arch::Arch,
    project::{as_root, output, program, root, run_quietly, target},
    python, sim, standalone,
};

/// Starts the line by which the guest reports the exit status of the tests.
pub(super) const STATUS: &str = "memscope-vm: status ";

/// Tests that need debuggers, and `script`, which are not there; and one that preloads a library into the tracer, which is static there.
const LEFT_OUT: [&str; 3] =
    ["stack_witness", "stops::jobs_of_a_shell_on_a_terminal", "agent_evidence::a_clock_that_is_set_back"];

/// Builds everything and gives the image. `overlay` is the kernel's module for these file systems.
pub(super) fn build(kernel: &Kernel, overlay: &Path, test_arguments: &[String]) -> Result<PathBuf> {
    let arch = kernel.arch;
    sim::build_for_tests(arch)?;
    python::build(arch)?;
    let [tool, live] = build_programs(arch)?;
    let userland = debian::userland(arch)?;

    let root = folder().join(format!("root-{}", kernel.name));
    let _ = fs::remove_dir_all(&root);
    for folder in ["bin", "dev", "etc", "lib", "lib64", "memscope/sim", "proc", "root", "sys", "tmp", "usr", "var"] {
        make_folder(&root.join(folder))?;
    }
    // Debian merged `/usr` into `/`; an initramfs may do it the other way round.
    for (link, to) in [("usr/bin", "../bin"), ("usr/lib", "../lib"), ("sbin", "bin"), ("usr/sbin", "../bin")] {
        symlink(to, root.join(link)).with_context(|| format!("failed to link `{link}`"))?;
    }
    copy_userland(&userland, &root)?;
    strip(arch, &tool, &root.join("memscope/memscope-bpf"))?;
    strip(arch, &live, &root.join("memscope/live"))?;
    for part in ["bin", "lib", "python", "runpath", "torch"] {
        run_quietly(program("cp").arg("-rp").arg(sim::folder(arch).join(part)).arg(root.join("memscope/sim")))?;
    }
    run_quietly(program("cp").arg("-rp").arg(python::folder(arch)).arg(root.join("memscope/python")))?;
    copy_scripts(&root)?;
    run_quietly(program("cp").arg(overlay).arg(root.join("memscope")))?;
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    write(&root.join("etc/group"), "root:x:0:\n")?;
    // A test mounts one of its own there; the loader passes over an empty one.
    write(&root.join("etc/ld.so.cache"), "")?;
    let init = root.join("init");
    write(&init, &init_script(kernel, test_arguments))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context("failed to make `init` executable")?;
    pack(&root, &folder().join(format!("{}.cpio", kernel.name)))
}

/// Images and logs.
pub(super) fn folder() -> PathBuf {
    target().join("vm")
}

/// The program and the live tests, optimized, which pays where processors are interpreted. In one build: alone, either has other features of what both
/// need, and the library is compiled twice.
fn build_programs(arch: &Arch) -> Result<[PathBuf; 2]> {
    let mut cargo = standalone::builder(arch, "build");
    cargo.args([
        "--package",
        "memscope-user",
        "--bin",
        "memscope-bpf",
        "--package",
        "memscope-tests",
        "--test",
        "live",
    ]);
    let messages = output(cargo.args(["--message-format", "json-render-diagnostics"]))?;
    let program = |name, is_test| {
        executable(&messages, name, is_test).with_context(|| format!("cargo did not report the program `{name}`"))
    };
    Ok([program("memscope-bpf", false)?, program("live", true)?])
}

/// The program of that name, from cargo's messages.
fn executable(messages: &str, name: &str, is_test: bool) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).find_map(|message| {
        let ours = message["target"]["name"] == name && message["profile"]["test"] == is_test;
        if ours { message["executable"].as_str().map(PathBuf::from) } else { None }
    })
}

/// Programs and libraries, from wherever this release of Debian puts them.
fn copy_userland(Userland { folder: from, python }: &Userland, to: &Path) -> Result<()> {
    for name in ["bin/busybox", "bin/bash", "sbin/ldconfig", &format!("bin/{python}")] {
        let file = [from.join(name), from.join("usr").join(name)].into_iter().find(|file| file.is_file());
        let file = file.with_context(|| format!("no `{name}` in the userland"))?;
        fs::copy(&file, to.join(name)).with_context(|| format!("failed to copy `{}`", file.display()))?;
    }
    for (link, program) in [("sh", "busybox"), ("python3", *python)] {
        symlink(program, to.join("bin").join(link)).with_context(|| format!("failed to link `bin/{link}`"))?;
    }
    for folder in ["lib", "lib64", "usr/lib", "usr/lib64"].map(|folder| from.join(folder)) {
        if folder.is_dir() && !folder.is_symlink() {
            let into = to.join(folder.file_name().context("a name was joined")?);
            run_quietly(program("cp").arg("-a").arg(folder.join(".")).arg(into))?;
        }
    }
    // Character sets, which nothing here converts.
    for arch in crate::arch::all() {
        let _ = fs::remove_dir_all(to.join("lib").join(arch.gnu).join("gconv"));
    }
    Ok(())
}

/// The tests' scripts, which the tests find where they are in the project.
fn copy_scripts(to: &Path) -> Result<()> {
    let project = to.join(root().strip_prefix("/").context("the project has a whole path")?);
    for (folder, scripts) in [("python", "tests"), ("tests", "workloads")] {
        make_folder(&project.join(folder))?;
        run_quietly(program("cp").arg("-rp").arg(root().join(folder).join(scripts)).arg(project.join(folder)))?;
    }
    Ok(())
}

fn strip(arch: &Arch, from: &Path, to: &Path) -> Result<()> {
    run_quietly(program(arch.tool("strip")).arg("--strip-debug").arg("-o").arg(to).arg(from))
}

fn init_script(kernel: &Kernel, test_arguments: &[String]) -> String {
    let mounts = mounts(kernel);
    let arguments: Vec<_> =
        test_arguments.iter().map(|argument| format!("'{}'", argument.replace('\'', r"'\''"))).collect();
    let arguments = arguments.join(" ");
    let left_out = [&LEFT_OUT[..], kernel.left_out()].concat().join(" --skip ");
    format!(
        "#!/bin/sh
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/bin HOME=/root TMPDIR=/tmp RUST_BACKTRACE=1
export MEMSCOPE_VM=1 MEMSCOPE_REPORT=details MEMSCOPE_NO_STACKS=true MEMSCOPE_BIN=/memscope/memscope-bpf MEMSCOPE_SIM_DIR=/memscope/sim MEMSCOPE_PYTHON_DIR=/memscope/python
{mounts}
# A processor that is stuck may wait for another one: show both.
echo 1 > /proc/sys/kernel/softlockup_all_cpu_backtrace
[ -e /memscope/overlay.ko ] || unxz /memscope/overlay.ko.xz
insmod /memscope/overlay.ko
cd /root
echo \"memscope-vm: booted $(uname -r) after $(cut -d' ' -f1 /proc/uptime) s\"
# In a group of its own: that of the first process has no number.
setsid /memscope/live --test-threads=1 --skip {left_out} {arguments} 2>&1
echo \"{STATUS}$?\"
poweroff -f
"
    )
}

/// What every guest has mounted.
pub(super) fn mounts(kernel: &Kernel) -> String {
    let tracefs = if kernel.has_tracefs() { "mount -t tracefs tracefs /sys/kernel/tracing" } else { "" };
    format!(
        "mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts
ln -s /proc/self/fd /dev/fd
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t bpf bpf /sys/fs/bpf
{tracefs}
ifconfig lo up"
    )
}

/// As an uncompressed archive: reading it costs the guest less than unpacking it.
pub(super) fn pack(root: &Path, image: &Path) -> Result<PathBuf> {
    let script = "find . | cpio --create --format=newc --owner=0:0 --quiet";
    let archive = fs::File::create(image).with_context(|| format!("failed to write `{}`", image.display()))?;
    // Systems have files that only root reads.
    let status =
        as_root("sh").args(["-c", script]).current_dir(root).stdout(archive).status().context("cannot run sh")?;
    ensure!(status.success(), "`{script}` failed ({status})");
    Ok(image.to_owned())
}

fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make `{}`", folder.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("failed to write `{}`", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that the test binary is taken, not the library or the ordinary build of the same name.
    #[test]
    fn finds_the_tests() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"live"},"profile":{"test":false},"executable":"/t/not"}
{"reason":"compiler-artifact","target":{"name":"memscope"},"profile":{"test":true},"executable":"/t/lib"}
{"reason":"compiler-artifact","target":{"name":"live"},"profile":{"test":true},"executable":"/t/live-0"}
"#;
        assert_eq!(executable(messages, "live", true), Some(PathBuf::from("/t/live-0")));
    }

    /// Make sure that what a user types reaches the tests as it is.
    #[test]
    fn quotes_arguments() {
        let kernel = Kernel::named("6.1-x86_64").expect("it is in the table");
        let script = init_script(&kernel, &["it's".to_owned(), "a b".to_owned()]);
        let command = script.lines().find(|line| line.contains("/memscope/live")).expect("the tests run");
        assert!(command.contains(" --test-threads=1 --skip stack_witness "), "{command}");
        assert!(command.ends_with(r" 'it'\''s' 'a b' 2>&1"), "{command}");
        assert!(!script.contains("/sys/kernel/tracing"), "{script}");
    }
}
