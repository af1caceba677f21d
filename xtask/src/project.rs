//! Where things are, and how commands are run.

use std::{
    env,
    ffi::OsString,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// Names an object to be taken for the one that the build script would make.
pub(crate) const BPF_OBJECT: &str = "MEMSCOPE_BPF_OBJECT";
/// What cargo is asked for, so that it compiles everything once.
pub(crate) const RELEASED: [&str; 4] = ["--package", "memscope-user", "--package", "memscope-python"];

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |target| root().join(target))
}

/// The program, after `build`.
pub(crate) fn tool() -> PathBuf {
    target().join("release/memscope-bpf")
}

/// Tools of this project alone, as `cargo install --root` lays them out.
pub(crate) fn tools() -> PathBuf {
    root().join(".tools")
}

/// Cargo of the pinned toolchain, in the repository.
pub(crate) fn cargo() -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// A program, in the repository.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// Whether commands need `sudo` to reach root.
pub(crate) fn is_root() -> bool {
    program("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// A program, as root.
pub(crate) fn as_root(name: impl AsRef<std::ffi::OsStr>) -> Command {
    if is_root() {
        return program(name);
    }
    let mut command = program("sudo");
    command.arg("-E").arg(name);
    command
}

/// First executable of that name in `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Runs it, showing what runs.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    if std::io::stderr().is_terminal() {
        eprintln!("\x1b[1m$ {line}\x1b[0m");
    } else {
        eprintln!("$ {line}");
    }
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed ({status})");
    Ok(())
}

/// Runs it without showing more than its messages: steps on the way.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs it and gives what it printed; its messages go to our stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    printed(command.stderr(Stdio::inherit()))
}

/// Runs it and gives what it printed; its messages are shown if it fails.
pub(crate) fn silent_output(command: &mut Command) -> Result<String> {
    printed(command.stderr(Stdio::piped()))
}

fn printed(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed ({}) {messages}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed something that is not UTF-8"))
}

/// The command as one would type it: the program by its name, what lies in the repository by its path in there.
fn line(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let root = format!("{}/", root().display());
    let words = std::iter::once(name).chain(command.get_args()).map(|word| word.to_string_lossy().replace(&root, ""));
    words.collect::<Vec<_>>().join(" ")
}
