//! `vm`: the live tests on other kernels, each in a machine of its own under QEMU.
//!
//! Nothing of this machine is seen in there: an initramfs holds static builds of the program and of the tests, the
//! simulated libraries, and a small Debian userland. QEMU interprets (no KVM), so that any host can run any guest.

mod debian;
mod guest;
mod kernel;
mod machine;
mod report;

use std::fs;

use anyhow::{Context as _, Result, bail};

use self::{kernel::Kernel, report::Outcome};
use crate::{
    apt,
    project::{output, program, root},
};

/// The floor, the kernel without multi links, and the newest; one of them on the other architecture.
const DEFAULT: [&str; 3] = ["5.10-x86_64", "6.1-x86_64", "6.12-aarch64"];
/// In place of names: every series on every architecture.
const ALL: &str = "all";

/// Commands and the packages they come from.
const TOOLS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("qemu-system-aarch64", "qemu-system-arm"), ("cpio", "cpio")];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (kernels, test_arguments) = parse(arguments)?;
    crate::setup::to_build()?;
    apt::install_missing(&TOOLS)?;
    let mut outcomes = Vec::new();
    for kernel in kernels {
        let files = debian::kernel(&kernel)?;
        let guest = guest::build(&kernel, &files.overlay, test_arguments)?;
        let outcome = machine::boot(&kernel, &files.image, &guest)?;
        eprintln!("{outcome}");
        outcomes.push(outcome);
    }
    print!("{}", report::table(&outcomes));
    // Of a selection of tests nothing is kept.
    if test_arguments.is_empty() {
        let path = root().join(report::REPORT);
        let before = fs::read_to_string(&path).with_context(|| format!("cannot read {}", report::REPORT))?;
        let commit = output(program("git").args(["describe", "--always", "--dirty=, changed since"]))?;
        fs::write(&path, report::update(&before, &outcomes, commit.trim()))?;
        println!("written: {}", report::REPORT);
    }
    if outcomes.iter().all(Outcome::passed) { Ok(()) } else { bail!("live tests failed in a virtual machine") }
}

/// What `run` needs: fetched ahead, so that it works without a network.
pub(crate) fn setup() -> Result<()> {
    apt::install_missing(&TOOLS)?;
    for name in DEFAULT {
        let kernel = Kernel::named(name)?;
        debian::kernel(&kernel)?;
        debian::userland(kernel.arch)?;
    }
    Ok(())
}

/// Kernels, then what the test binary gets.
fn parse(arguments: &[String]) -> Result<(Vec<Kernel>, &[String])> {
    let (names, test_arguments) = match arguments.iter().position(|argument| argument == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    let kernels = if names == [ALL] {
        Kernel::all()?
    } else if names.is_empty() {
        DEFAULT.iter().map(|name| Kernel::named(name)).collect::<Result<_>>()?
    } else {
        names.iter().map(|name| Kernel::named(name)).collect::<Result<_>>()?
    };
    Ok((kernels, test_arguments))
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Make sure that kernels and test arguments are told apart, and that no kernels means the usual ones.
    #[test]
    fn arguments() {
        let line = words("6.1-aarch64 -- attach");
        let (kernels, rest) = parse(&line).expect("a good line");
        assert_eq!(kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>(), ["6.1-aarch64"]);
        assert_eq!(rest, ["attach"]);
        assert_eq!(parse(&words("-- attach")).expect("a good line").0.len(), 3);
        assert_eq!(parse(&words("all")).expect("a good line").0.len(), 6);
        parse(&words("6.1")).expect_err("without an architecture");
    }
}
