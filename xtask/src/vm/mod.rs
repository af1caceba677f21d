//! `vm`: the live tests on other kernels, each in a machine of its own under QEMU.
//!
//! Nothing of this machine is seen in there: an initramfs holds static builds of the program and of the tests, the
//! simulated libraries, and a small Debian userland. QEMU interprets (no KVM), so that any host can run any guest.

mod debian;
mod guest;
mod kernel;
mod machine;
mod report;
mod system;

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

pub(crate) use self::{debian::unpacked, system::run as in_system};
use self::{kernel::Kernel, report::Outcome};
use crate::{
    apt,
    project::{output, program, root},
};

/// The floor, the kernel without multi links, and the newest; one of them on the other architecture.
const DEFAULT: [&str; 3] = ["5.10-x86_64", "6.1-x86_64", "6.12-aarch64"];
/// In place of names: some tests on the floor, and on the newest on the other architecture.
const PART: &str = "part";
const PART_KERNELS: [&str; 2] = ["5.10-x86_64", "6.12-aarch64"];
/// That loading, following, linking, rows, rights, native and Python stacks and containers work there, and what degrades does so as stated.
const PART_TESTS: [&str; 9] = [
    "atb::lesser_kernels_tell_of_atb",
    "attach::other_links_attach",
    "containers::contained_program",
    "native_stacks::a_thousand_frames",
    "operators::operators_and_their_tensors",
    "privileges::single_links_take_one_more",
    "python_stacks::lesser_kernels_go_without",
    "python_stacks::python_stacks_of_children",
    "workloads::forktree",
];
/// In place of names: every series on every architecture, and one with large pages.
const ALL: &str = "all";

/// Commands and the packages they come from.
const TOOLS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("qemu-system-aarch64", "qemu-system-arm"), ("cpio", "cpio")];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (kernels, test_arguments) = parse(arguments)?;
    // Of what is built now, whatever becomes of the folder meanwhile.
    let commit = output(program("git").args(["describe", "--always", "--dirty=, changed since"]))?;
    let outcomes = boot(&kernels, &test_arguments)?;
    // Of a selection of tests nothing is kept.
    if test_arguments.is_empty() {
        let path = root().join(report::REPORT);
        let before = fs::read_to_string(&path).with_context(|| format!("cannot read {}", report::REPORT))?;
        fs::write(&path, report::update(&before, &outcomes, commit.trim()))?;
        println!("written: {}", report::REPORT);
    }
    passed(&outcomes)
}

fn passed(outcomes: &[Outcome]) -> Result<()> {
    if outcomes.iter().all(Outcome::passed) { Ok(()) } else { bail!("live tests failed in a virtual machine") }
}

/// Runs tests on these kernels, one after the other.
fn boot(kernels: &[Kernel], test_arguments: &[String]) -> Result<Vec<Outcome>> {
    crate::setup::to_build()?;
    apt::install_missing(&TOOLS)?;
    let mut outcomes = Vec::new();
    for kernel in kernels {
        let files = debian::kernel(kernel)?;
        let try_tests = |arguments: &[String]| {
            let guest = guest::build(kernel, &files.overlay, arguments)?;
            machine::boot(kernel, &files.image, &guest)
        };
        let mut outcome = try_tests(test_arguments)?;
        // Interpreted, one test of hundreds takes so long now and then that it fails.
        if test_arguments.is_empty() && !outcome.to_repeat().is_empty() {
            eprintln!("{outcome}");
            let again = try_tests(&[&["--exact".to_owned()], outcome.to_repeat()].concat())?;
            outcome = outcome.repeated(&again);
        }
        eprintln!("{outcome}");
        outcomes.push(outcome);
    }
    print!("{}", report::table(&outcomes));
    Ok(outcomes)
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
fn parse(arguments: &[String]) -> Result<(Vec<Kernel>, Vec<String>)> {
    let (names, test_arguments) = match arguments.iter().position(|argument| argument == "--") {
        Some(at) => (&arguments[..at], arguments[at + 1..].to_vec()),
        None => (arguments, Vec::new()),
    };
    let all_of = |names: &[&str]| names.iter().map(|name| Kernel::named(name)).collect::<Result<Vec<_>>>();
    if names == [PART] {
        ensure!(test_arguments.is_empty(), "the tests of `{PART}` are given");
        return Ok((all_of(&PART_KERNELS)?, PART_TESTS.map(str::to_owned).to_vec()));
    }
    let kernels = if names == [ALL] {
        Kernel::all()?
    } else if names.is_empty() {
        all_of(&DEFAULT)?
    } else {
        names.iter().map(|name| Kernel::named(name)).collect::<Result<_>>()?
    };
    Ok((kernels, test_arguments))
}

#[cfg(test)]
mod tests {
    use super::{PART_TESTS, parse};

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Make sure that kernels and test arguments are kept apart, and that no kernels means the usual ones.
    #[test]
    fn arguments() {
        let line = words("6.1-aarch64 -- attach");
        let (kernels, rest) = parse(&line).expect("a good line");
        assert_eq!(kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>(), ["6.1-aarch64"]);
        assert_eq!(rest, ["attach"]);
        assert_eq!(parse(&words("-- attach")).expect("a good line").0.len(), 3);
        assert_eq!(parse(&words("all")).expect("a good line").0.len(), 7);
        let (kernels, rest) = parse(&words("part")).expect("a good line");
        assert_eq!((kernels.len(), rest.len()), (2, PART_TESTS.len()));
        parse(&words("part -- attach")).expect_err("tests of one's own");
        parse(&words("6.1")).expect_err("without an architecture");
    }
}
