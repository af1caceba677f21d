//! `test`: every test there is, through one run of nextest, so that its summary is the last thing said.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    arch::Arch,
    bpf, build, check, install, nextest,
    project::{BPF_OBJECT, cargo, output, program, root, run as run_command, target},
    setup, sim, tables,
    wheels::{self, Set},
};

/// Recordings that are not part of the repository; the tests of binary `golden` compare with them.
const SHARED: &str = "MEMSCOPE_SHARED";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Options { shared, wheels: with_wheels, browser: with_browser, rest } =
        parse(arguments, env::var_os(SHARED).map(PathBuf::from))?;
    let shared = shared.map(|folder| existing(&folder)).transpose()?;
    let host = Arch::host();
    let whole = rest.is_empty();
    setup::nextest()?;
    // Two compilers are where one looks at a large crate alone, and the network is busy while they are.
    let compiling = whole.then(|| thread::spawn(built));
    install::run(&[])?;
    let fetching = thread::spawn(move || Fetched::get(with_wheels, with_browser));
    if !whole {
        eprintln!("left out: `check` and doc tests, because only some tests were asked for");
    }
    build::with_python()?;
    sim::build_for_tests(host)?;
    let nextest = compiling.map_or_else(nextest::runner, |tests| tests.join().expect("no panic"))?;
    let mut nextest = nextest::with_needs(host, nextest)?;
    if let Some(folder) = &shared {
        nextest.args(["--profile", "shared"]).env(SHARED, folder);
    } else {
        eprintln!("left out: group `golden` (tests/tests/golden), because there is no `--shared DIR` or {SHARED}");
        nextest.env_remove(SHARED);
    }
    fetching.join().expect("no panic")?.give(&mut nextest);
    let fetched = "binary(=wheels) or binary(=tables) or binary(=loaders)";
    let groups = [(with_wheels, fetched), (with_browser, "binary(=browser)")];
    let left_out: Vec<&str> = groups.into_iter().filter(|(with, _)| !with).map(|(_, group)| group).collect();
    if !whole {
        return run_command(nextest.args(rest));
    }
    if !left_out.is_empty() {
        nextest.args(["-E", &format!("not ({})", left_out.join(" or "))]);
    }
    let beside = Beside::start()?;
    let tests = run_command(&mut nextest);
    beside.finish().and(tests)
}

/// What tests need from elsewhere; `None`: their groups are left out.
struct Fetched {
    tables: Option<PathBuf>,
    browser: Option<PathBuf>,
}

impl Fetched {
    fn get(wheels: bool, browser: bool) -> Result<Self> {
        // Only real libraries show that a hidden function is found, so without a network this fails.
        let tables = wheels.then(|| wheels::fetch(Set::Small).and_then(|()| tables::fetch())).transpose()?;
        Ok(Self { tables, browser: browser.then(setup::browser).transpose()? })
    }

    fn give(&self, nextest: &mut Command) {
        if let Some(tables) = &self.tables {
            nextest.env(wheels::FOLDER, wheels::folder()).env(wheels::SET, Set::Small.name());
            nextest.env(tables::PYTHON, tables);
        } else {
            eprintln!(
                "left out: groups `wheels`, `tables` and `loaders` (tests/tests/{{wheels,tables,loaders}}.rs), because of \
                 `--no-wheels`"
            );
            nextest.env_remove(wheels::FOLDER).env_remove(tables::PYTHON);
        }
        if let Some(browser) = &self.browser {
            nextest.env(setup::CHROMIUM, browser);
        } else {
            eprintln!("left out: group `browser` (tests/tests/browser.rs), because of `--no-browser`");
            nextest.env_remove(setup::CHROMIUM);
        }
    }
}

/// What needs the processors and no quiet, while live tests wait for something most of the time.
struct Beside {
    child: Child,
    log: PathBuf,
}

impl Beside {
    /// With the least priority. What it says goes to a file, so that the summary of the tests stays the last word.
    fn start() -> Result<Self> {
        let log = target().join("test-beside.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let again = file.try_clone().context("no further descriptor")?;
        let this = env::current_exe().context("the name of this program")?;
        let mut nice = program("nice");
        nice.args(["-n", "19"]).arg(this).arg(BESIDE).stdin(Stdio::null()).stdout(file).stderr(again);
        let child = nice.spawn().context("cannot start `nice`")?;
        eprintln!("beside the tests: `check` and doc tests; they say what fails when the tests have ended");
        Ok(Self { child, log })
    }

    fn finish(mut self) -> Result<()> {
        let status = self.child.wait().context("cannot wait for `check`")?;
        if !status.success() {
            eprint!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        ensure!(status.success(), "`check` or doc tests failed ({status}): their words are above");
        Ok(())
    }
}

/// The verb of [`Beside`].
pub(crate) const BESIDE: &str = "test-beside";

/// That verb.
pub(crate) fn beside() -> Result<()> {
    check::all()?;
    doc_tests()
}

/// Nextest on tests that are compiled already: it asks cargo for nothing, which another cargo could make it wait for.
fn built() -> Result<Command> {
    let folder = target().join("nextest");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (tests, packages) = (folder.join("tests.json"), folder.join("packages.json"));
    let mut list = nextest::with_stand_in("list")?;
    list.args(nextest::OURS).args(["--list-type", "binaries-only", "--message-format", "json"]);
    eprintln!("$ cargo nextest list");
    write(&tests, &output(&mut list)?)?;
    let mut metadata = cargo();
    write(&packages, &output(metadata.args(["metadata", "--format-version", "1", "--locked"]))?)?;
    let mut nextest = nextest::with_stand_in("run")?;
    nextest.arg("--binaries-metadata").arg(tests).arg("--cargo-metadata").arg(packages);
    Ok(nextest)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The examples of the library's documentation, which nextest does not run. They have the BPF object of the program, since the first
/// one traces; all else is built as for the tests.
fn doc_tests() -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["test", "--doc", "--quiet", "--locked", "--workspace", "--exclude", "memscope-ebpf"]);
    run_command(cargo.env(BPF_OBJECT, bpf::of_program()?))
}

/// What `test` was asked to do.
#[derive(Debug)]
struct Options<'a> {
    shared: Option<PathBuf>,
    wheels: bool,
    browser: bool,
    /// Nextest's.
    rest: Vec<&'a String>,
}

/// Takes our own options out of the arguments.
fn parse(arguments: &[String], from_environment: Option<PathBuf>) -> Result<Options<'_>> {
    let (mut shared, mut wheels, mut browser, mut rest) = (from_environment, true, true, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--shared" {
            shared = Some(arguments.next().context("usage: ./x test --shared DIR")?.into());
        } else if let Some(folder) = argument.strip_prefix("--shared=") {
            shared = Some(folder.into());
        } else if argument == "--no-wheels" {
            wheels = false;
        } else if argument == "--no-browser" {
            browser = false;
        } else {
            rest.push(argument);
        }
    }
    Ok(Options { shared, wheels, browser, rest })
}

/// Tests run in other folders: they need it absolute.
fn existing(folder: &Path) -> Result<PathBuf> {
    let folder = root().join(folder);
    folder.canonicalize().with_context(|| format!("no folder `{}` for `--shared`", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::parse;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Make sure that the folder is found anywhere in the line, in both spellings, and beats the environment.
    #[test]
    fn shared_folder() {
        for line in ["--shared a b c", "b --shared a c", "b c --shared=a"] {
            let arguments = words(line);
            let options = parse(&arguments, Some(PathBuf::from("e"))).expect("a good line");
            assert_eq!(options.shared.as_deref(), Some(Path::new("a")), "{line}");
            assert_eq!(options.rest, ["b", "c"], "{line}");
            assert!(options.wheels, "{line}");
        }
        let none = parse(&[], Some(PathBuf::from("e"))).expect("a good line").shared;
        assert_eq!(none.as_deref(), Some(Path::new("e")));
    }

    /// Make sure that the browser is left out when that is asked for by name, and that nextest does not see the name.
    #[test]
    fn browser_left_out() {
        let arguments = words("b --no-browser c");
        let options = parse(&arguments, None).expect("a good line");
        assert!(!options.browser && options.wheels);
        assert_eq!(options.rest, ["b", "c"]);
    }

    /// Make sure that wheels are left out when that is asked for by name, and that nextest does not see the name.
    #[test]
    fn wheels_left_out() {
        let arguments = words("b --no-wheels c");
        let options = parse(&arguments, None).expect("a good line");
        assert!(!options.wheels);
        assert_eq!(options.rest, ["b", "c"]);
    }

    /// Make sure that a folder that was forgotten is not taken for "none".
    #[test]
    fn folder_forgotten() {
        let error = parse(&words("--shared"), None).expect_err("no folder");
        assert_eq!(error.to_string(), "usage: ./x test --shared DIR");
    }
}
