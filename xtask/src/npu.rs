//! `npu`: real `torch_npu`, traced, and compared with its own statistics. See `tests/torch-npu/README.md`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    arch::Arch,
    build,
    project::{cargo, find, is_root, output, program, root, run as run_command, run_quietly, target, tool},
    python, setup, sim,
};

/// What `torch_npu` is tested with when nothing is said: an old and a new allocator.
const VERSIONS: [&str; 2] = ["2.9.0.post9", "2.14.0"];
/// The one interpreter that all these versions have wheels for.
const PYTHON: &str = "3.11";
/// Names the interpreter, if it is not `python3.11`.
const PYTHON_VARIABLE: &str = "MEMSCOPE_PYTHON";
/// What torch and `torch_npu` import, and what reads ELF files for the generators. torch's own list has CUDA in it.
const NEEDED: [&str; 10] = [
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "numpy",
    "pyelftools",
    "pyyaml",
    "setuptools",
    "sympy",
    "typing-extensions",
];
/// Simulated libraries that stand where the program looks first for a missing symbol.
const SIMULATED: [&str; 3] = ["libascend_hal.so", "libruntime.so", "libms_tools_ext.so"];
/// Options that torch's CUDA half and `torch_npu` 2.14 both register, which ends in an exception while they are loaded.
/// Nothing here uses CUDA: there, they get another name of the same length.
const TWICE: [&str; 2] = ["pinned_reserve_s_segment_size_mb", "per_process_memo_memory_fraction"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    ensure!(host.name == "x86_64", "the stand-ins are made for the wheels of x86-64");
    ensure!(is_root(), "`./x npu` attaches probes: run it as root");
    let (versions, tests) =
        arguments.split_at(arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len()));
    if let Some(unknown) = versions.iter().find(|argument| torch_of(argument).is_none()) {
        bail!("`{unknown}` is no version of torch_npu\nusage: ./x npu [VERSION...] [-- TEST ARGUMENTS]");
    }
    build::run()?;
    sim::build(host)?;
    python::build(host)?;
    let nextest = setup::nextest()?;
    let versions: Vec<&str> =
        if versions.is_empty() { VERSIONS.to_vec() } else { versions.iter().map(String::as_str).collect() };
    let mut different = Vec::new();
    for version in &versions {
        let folder = prepare(version, &sim::folder(host).join("lib"))?;
        eprintln!("torch_npu {version}");
        let mut nextest = program(&nextest);
        nextest.env("CARGO", cargo().get_program());
        nextest
            .env("MEMSCOPE_BIN", tool())
            .env("MEMSCOPE_SIM_DIR", sim::folder(host))
            .env(python::FOLDER, python::folder(host))
            .env("MEMSCOPE_TORCH_NPU", folder);
        nextest.args(["nextest", "run", "--locked", "--cargo-quiet", "--package", "memscope-tests", "--test", "npu"]);
        let result = run_command(nextest.args(["--profile", "npu", "--no-capture"]).args(tests.iter().skip(1)));
        different.extend(result.err().map(|error| format!("torch_npu {version}: {error:#}")));
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    Ok(())
}

/// The torch that a version of `torch_npu` goes with: `2.9.0` for `2.9.0.post9`.
fn torch_of(version: &str) -> Option<String> {
    let parts: Vec<&str> = version.split('.').collect();
    let numbers = parts.get(..3)?;
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let rest_fits = match &parts[3..] {
        [] => true,
        [post] => post.strip_prefix("post").is_some_and(|number| is_number(&number)),
        _ => false,
    };
    (numbers.iter().all(is_number) && rest_fits).then(|| numbers.join("."))
}

/// Makes the environment of a version, or completes it; gives its folder.
fn prepare(version: &str, simulated: &Path) -> Result<PathBuf> {
    let folder = target().join("npu").join(version);
    install(version, &folder)?;
    let packages = folder.join(format!("venv/lib/python{PYTHON}/site-packages"));
    rename_options(&packages.join("torch/lib/libc10_cuda.so"))?;
    generate(&folder, &packages, simulated)?;
    let mut make = program("make");
    make.args(["--silent", "-C", "tests/torch-npu"]);
    for (name, place) in [("GEN", &folder.join("gen")), ("OUT", &folder.join("lib")), ("SIM", &simulated.to_owned())] {
        make.arg(format!("{name}={}", place.display()));
    }
    run_command(&mut make)?;
    // torch_npu looks whether these are there.
    for part in ["opp", "runtime", "compiler"] {
        fs::create_dir_all(folder.join("cann").join(part))?;
    }
    Ok(folder)
}

fn install(version: &str, folder: &Path) -> Result<()> {
    let done = folder.join("installed");
    if done.is_file() {
        return Ok(());
    }
    let venv = folder.join("venv");
    fs::create_dir_all(folder)?;
    run_command(program(interpreter()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = || {
        let mut pip = program(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]);
        pip
    };
    run_command(pip().args(NEEDED))?;
    let torch = torch_of(version).context("a version of torch_npu")?;
    run_command(pip().args(["--no-deps", &format!("torch=={torch}"), &format!("torch-npu=={version}")]))?;
    fs::write(done, "")?;
    Ok(())
}

/// `CPython` of the one version.
fn interpreter() -> Result<PathBuf> {
    let name = format!("python{PYTHON}");
    let python = env::var_os(PYTHON_VARIABLE).map(PathBuf::from).or_else(|| find(&name));
    let needed = format!("CPython {PYTHON} with its module venv is needed: `{name}` in PATH, or {PYTHON_VARIABLE}");
    let python = python.with_context(|| needed.clone())?;
    let code = "import sys, venv; print(sys.implementation.name, *sys.version_info[:2])";
    let found = output(program(&python).args(["-c", code])).context(needed.clone())?;
    ensure!(found.trim() == format!("cpython {}", PYTHON.replace('.', " ")), "{needed}; this is {found}");
    Ok(python)
}

/// See [`TWICE`].
fn rename_options(library: &Path) -> Result<()> {
    let mut bytes = fs::read(library).with_context(|| format!("no `{}`", library.display()))?;
    let mut changed = false;
    for name in TWICE {
        while let Some(at) = bytes.windows(name.len()).position(|window| window == name.as_bytes()) {
            bytes[at].make_ascii_uppercase();
            changed = true;
        }
    }
    if changed {
        fs::write(library, bytes)?;
    }
    Ok(())
}

/// Writes the sources of what this version needs and nobody has. Only once: they depend on the wheels alone.
fn generate(folder: &Path, packages: &Path, simulated: &Path) -> Result<()> {
    let out = folder.join("gen");
    let scripts = root().join("tests/torch-npu");
    let newest = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let made = newest(&out.join("libopapi.so.c"));
    let scripts_of = ["gen_stubs.py", "gen_opapi.py"].map(|name| scripts.join(name));
    if made.is_some() && scripts_of.iter().all(|script| newest(script) < made) {
        return Ok(());
    }
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let python = folder.join("venv/bin/python");
    let mut stubs = program(&python);
    stubs.arg(&scripts_of[0]).arg("--out").arg(&out);
    for name in SIMULATED {
        stubs.arg("--provided").arg(simulated.join(name));
    }
    for place in ["torch/lib", "torch_npu/lib", "torch_npu"] {
        stubs.args(libraries(&packages.join(place))?);
    }
    run_quietly(&mut stubs)?;
    let torch_npu = packages.join("torch_npu/lib/libtorch_npu.so");
    run_quietly(program(&python).arg(&scripts_of[1]).arg(&out).arg(torch_npu))
}

/// Shared libraries in a folder, but for one that wants a compiler of CUDA's at once.
fn libraries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no folder `{}`", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|extension| extension == "so") && !name.contains("nvrtc") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::torch_of;

    /// The third part ends the version of torch.
    #[test]
    fn versions() {
        assert_eq!(torch_of("2.9.0.post9").as_deref(), Some("2.9.0"));
        assert_eq!(torch_of("2.14.0").as_deref(), Some("2.14.0"));
        for wrong in ["", "2.9", "2.9.x", "2.9.0.9", "2.9.0.post", "2.9.0.post9.1", "../2.9.0", "2..0"] {
            assert_eq!(torch_of(wrong), None, "{wrong}");
        }
    }
}
