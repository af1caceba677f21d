//! `npu`: real `torch_npu`, traced, and compared with its own statistics. See `tests/torch-npu/README.md`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    frameworks::{self, Framework},
    project::{program, run as run_command},
    setup,
};

pub(crate) const TORCH_NPU: Framework = Framework {
    name: "torch_npu",
    group: "npu",
    variable: "MEMSCOPE_TORCH_NPU",
    // An old and a new allocator.
    versions: &["2.9.0.post9", "2.14.0"],
    what: "version",
    tests: |_| None,
    is_version: |version| torch_of(version).is_some(),
    prepare,
};
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
/// Options that torch's CUDA half and `torch_npu` 2.14 both register, which ends in an exception while they are loaded.
/// Nothing here uses CUDA: there, they get another name of the same length.
const TWICE: [&str; 2] = ["pinned_reserve_s_segment_size_mb", "per_process_memo_memory_fraction"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    setup::allocators()?;
    frameworks::run(&TORCH_NPU, arguments)
}

/// The torch that a version of `torch_npu` goes with: `2.9.0` for `2.9.0.post9`.
fn torch_of(version: &str) -> Option<&str> {
    let (torch, post) = version.split_once(".post").unwrap_or((version, "0"));
    (frameworks::is_numbers(torch, 3) && frameworks::is_numbers(post, 1)).then_some(torch)
}

/// What a torch asks of pip as its `NumPy`: those before 2.3 were compiled with its first.
fn numpy_of(torch: &str) -> &'static str {
    let is_old = ["2.0.", "2.1.", "2.2."].iter().any(|old| torch.starts_with(old));
    if is_old { "numpy<2" } else { "numpy" }
}

fn prepare(version: &str, folder: &Path, simulated: &Path) -> Result<()> {
    install(version, folder)?;
    let packages = frameworks::packages(folder);
    rename_options(&packages.join("torch/lib/libc10_cuda.so"))?;
    frameworks::generate(folder, simulated, &libraries(&packages)?, &[], &[operators(&packages)])?;
    frameworks::build_stand_ins(folder, simulated, &folder.join("lib"))?;
    make_parts(folder)
}

/// Libraries that need CANN's, below a folder of packages.
pub(crate) fn libraries(packages: &Path) -> Result<Vec<PathBuf>> {
    let mut roots = Vec::new();
    for place in ["torch/lib", "torch_npu/lib", "torch_npu"] {
        roots.extend(frameworks::libraries(&packages.join(place))?);
    }
    // One wants a compiler of CUDA's at once.
    roots.retain(|path| !path.to_string_lossy().contains("nvrtc"));
    Ok(roots)
}

/// The library that names operators.
pub(crate) fn operators(packages: &Path) -> PathBuf {
    packages.join("torch_npu/lib/libtorch_npu.so")
}

/// `torch_npu` looks whether these are there.
pub(crate) fn make_parts(folder: &Path) -> Result<()> {
    for part in ["opp", "runtime", "compiler"] {
        fs::create_dir_all(folder.join("cann").join(part))?;
    }
    Ok(())
}

fn install(version: &str, folder: &Path) -> Result<()> {
    let done = folder.join("installed");
    if done.is_file() {
        return Ok(());
    }
    let venv = folder.join("venv");
    run_command(program(frameworks::interpreter()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = || {
        let mut pip = program(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]);
        pip
    };
    let torch = torch_of(version).context("a version of torch_npu")?;
    let needed = NEEDED.map(|package| if package == "numpy" { numpy_of(torch) } else { package });
    run_command(pip().args(needed))?;
    run_command(pip().args(["--no-deps", &format!("torch=={torch}"), &format!("torch-npu=={version}")]))?;
    fs::write(done, "")?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::torch_of;

    /// The third part ends the version of torch.
    #[test]
    fn versions() {
        assert_eq!(torch_of("2.9.0.post9"), Some("2.9.0"));
        assert_eq!(torch_of("2.14.0"), Some("2.14.0"));
        for wrong in ["", "2.9", "2.9.x", "2.9.0.9", "2.9.0.post", "2.9.0.post9.1", "../2.9.0", "2..0"] {
            assert_eq!(torch_of(wrong), None, "{wrong}");
        }
    }
}
