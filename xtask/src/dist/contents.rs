//! What packages install: the program, its manual pages and completions, the units, and the licences.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::licences;
use crate::{
    arch::Arch,
    project::{output, program, root, run_quietly},
};

pub(super) const PACKAGE: &str = "memscope-bpf";
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
pub(super) const SUMMARY: &str = "traces device memory of programs on Huawei Ascend NPUs from outside";
pub(super) const DESCRIPTION: [&str; 3] = [
    "eBPF probes on the driver, the runtime, ACL and mstx send every allocation,",
    "free, kernel launch and mark to a program that analyses and writes them.",
    "Nothing is preloaded, no code is changed, running programs can be attached to.",
];

/// Where a family of systems keeps what others keep elsewhere.
pub(super) struct Places {
    /// Completions of zsh.
    pub(super) zsh: &'static str,
    /// All licences, as one file.
    pub(super) licences: &'static str,
}

/// What the program says of itself.
pub(super) struct Texts {
    pages: PathBuf,
    /// Completions by shell.
    completions: Vec<(&'static str, String)>,
    /// Licences of its parts.
    licences: String,
}

impl Texts {
    /// Asks a program that runs here.
    pub(super) fn of(tool: &Path, folder: &Path, licences: String) -> Result<Self> {
        run_quietly(program(tool).arg("manual").arg(folder))?;
        let completion = |shell| Ok((shell, output(program(tool).args(["completions", shell]))?));
        let completions = ["bash", "zsh", "fish"].into_iter().map(completion).collect::<Result<_>>()?;
        Ok(Self { pages: folder.to_owned(), completions, licences })
    }
}

/// The folder as it is to be installed.
pub(super) struct Stage(PathBuf);

impl Stage {
    /// All but what the package format itself wants.
    pub(super) fn of(arch: &Arch, tool: &Path, texts: &Texts, places: &Places, out: &Path) -> Result<Self> {
        let stage = Self(out.join(format!("stage-{}", arch.name)));
        stage.add("usr/bin/memscope-bpf", &read(tool)?, 0o755)?;
        for page in fs::read_dir(&texts.pages).context("failed to list the manual pages")? {
            let page = page.context("failed to list the manual pages")?.path();
            let name = page.file_name().context("a page without a name")?.to_string_lossy().into_owned();
            stage.add(&format!("usr/share/man/man1/{name}"), &read(&page)?, 0o644)?;
            run_quietly(program("gzip").arg("-9n").arg(stage.0.join("usr/share/man/man1").join(name)))?;
        }
        for (shell, text) in &texts.completions {
            let path = match *shell {
                "bash" => "usr/share/bash-completion/completions/memscope-bpf",
                "zsh" => places.zsh,
                _ => "usr/share/fish/vendor_completions.d/memscope-bpf.fish",
            };
            stage.add(path, text.as_bytes(), 0o644)?;
        }
        // Neither is enabled by the package: whether there is a daemon is the administrator's decision.
        for unit in ["memscope-bpf.service", "memscope-bpf.socket"] {
            let text = read(&root().join("packaging/systemd").join(unit))?;
            stage.add(&format!("usr/lib/systemd/system/{unit}"), &text, 0o644)?;
        }
        stage.add(places.licences, licences::with_own(&texts.licences)?.as_bytes(), 0o644)?;
        for document in ["README.md", "docs/daemon.md"] {
            let name = Path::new(document).file_name().context("a document without a name")?.to_string_lossy();
            let text = read(&root().join(document))?;
            stage.add(&format!("usr/share/doc/{PACKAGE}/{name}"), &text, 0o644)?;
        }
        Ok(stage)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn add(&self, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let file = self.0.join(path);
        let what = || format!("failed to write `{}`", file.display());
        let mut folder = self.0.clone();
        fs::create_dir_all(&folder).with_context(what)?;
        // Each with the rights that the package is to have, whatever the umask.
        for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
            folder.push(part);
            let _ = fs::create_dir(&folder);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).with_context(what)?;
        }
        fs::write(&file, bytes).with_context(what)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).with_context(what)
    }

    /// Paths of the files in it, from the root of the system.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        self.find(&["-type", "f"])
    }

    /// Paths of the folders that are the package's alone.
    pub(super) fn folders(&self) -> Result<Vec<String>> {
        self.find(&["-type", "d", "-name", PACKAGE])
    }

    fn find(&self, what: &[&str]) -> Result<Vec<String>> {
        let text = output(program("find").arg(".").args(what).current_dir(&self.0))?;
        let mut found: Vec<String> = text.lines().filter_map(|line| Some(line.strip_prefix('.')?.to_owned())).collect();
        found.sort();
        Ok(found)
    }

    pub(super) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.0).with_context(|| format!("failed to remove `{}`", self.0.display()))
    }
}

/// Time of the commit, in seconds: the same input gives the same bytes.
pub(super) fn epoch() -> Result<String> {
    Ok(output(program("git").args(["log", "-1", "--format=%ct"]))?.trim().to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read `{}`", path.display()))
}
