//! Debian packages, made by dpkg-deb: it is on every Debian, and all it wants is the folder as it is to be installed.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    arch::Arch,
    project::{output, program, root, run_quietly},
};

const PACKAGE: &str = "memscope-bpf";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// File name of a package.
pub(super) fn name(arch: &Arch) -> String {
    format!("{PACKAGE}_{VERSION}_{}.deb", arch.debian)
}

/// What the program says of itself.
pub(super) struct Texts {
    pages: PathBuf,
    /// Completions and where they belong.
    completions: Vec<(&'static str, String)>,
    /// Licences of its parts.
    licences: String,
}

impl Texts {
    /// Asks a program that runs here.
    pub(super) fn of(tool: &Path, folder: &Path, licences: String) -> Result<Self> {
        const SHELLS: [(&str, &str); 3] = [
            ("bash", "usr/share/bash-completion/completions/memscope-bpf"),
            ("zsh", "usr/share/zsh/vendor-completions/_memscope-bpf"),
            ("fish", "usr/share/fish/vendor_completions.d/memscope-bpf.fish"),
        ];
        run_quietly(program(tool).arg("manual").arg(folder))?;
        let completion = |(shell, path)| Ok((path, output(program(tool).args(["completions", shell]))?));
        let completions = SHELLS.into_iter().map(completion).collect::<Result<_>>()?;
        Ok(Self { pages: folder.to_owned(), completions, licences })
    }
}

/// Makes the package of a program. The same input gives the same bytes: times are those of the commit.
pub(super) fn pack(arch: &Arch, tool: &Path, texts: &Texts, out: &Path) -> Result<()> {
    let stage = Stage(out.join(format!("stage-{}", arch.name)));
    stage.add("usr/bin/memscope-bpf", &read(tool)?, 0o755)?;
    for page in fs::read_dir(&texts.pages).context("failed to list the manual pages")? {
        let page = page.context("failed to list the manual pages")?.path();
        let name = page.file_name().context("a page without a name")?.to_string_lossy().into_owned();
        stage.add(&format!("usr/share/man/man1/{name}"), &read(&page)?, 0o644)?;
        run_quietly(program("gzip").arg("-9n").arg(stage.0.join("usr/share/man/man1").join(name)))?;
    }
    for (path, text) in &texts.completions {
        stage.add(path, text.as_bytes(), 0o644)?;
    }
    // Neither is enabled by the package: whether there is a daemon is the administrator's decision.
    for unit in ["memscope-bpf.service", "memscope-bpf.socket"] {
        let text = read(&root().join("packaging/systemd").join(unit))?;
        stage.add(&format!("usr/lib/systemd/system/{unit}"), &text, 0o644)?;
    }
    let documents = format!("usr/share/doc/{PACKAGE}");
    let own = ["LICENSE", "LICENSE-MIT", "LICENSE-APACHE", "LICENSE-GPL-2.0"];
    let mut copyright: Vec<Vec<u8>> = own.into_iter().map(|name| read(&root().join(name))).collect::<Result<_>>()?;
    copyright.push(texts.licences.as_bytes().to_vec());
    stage.add(&format!("{documents}/copyright"), &copyright.join(&b"\n\n"[..]), 0o644)?;
    stage.add(&format!("{documents}/README.md"), &read(&root().join("README.md"))?, 0o644)?;
    stage.add(&format!("{documents}/daemon.md"), &read(&root().join("docs/daemon.md"))?, 0o644)?;
    stage.add("DEBIAN/control", control(arch, tool)?.as_bytes(), 0o644)?;
    let epoch = output(program("git").args(["log", "-1", "--format=%ct"]))?;
    let mut pack = program("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", epoch.trim()).args(["--root-owner-group", "-Zxz", "--build"]);
    run_quietly(pack.arg(&stage.0).arg(out.join(name(arch))).stdout(std::process::Stdio::null()))?;
    fs::remove_dir_all(&stage.0).with_context(|| format!("failed to remove `{}`", stage.0.display()))
}

fn control(arch: &Arch, tool: &Path) -> Result<String> {
    let kilobytes = fs::metadata(tool)?.len() / 1024;
    Ok(format!(
        "Package: {PACKAGE}
Version: {VERSION}
Architecture: {}
Maintainer: memscope-bpf maintainers <maintainers@memscope-bpf.invalid>
Depends: libc6 (>= 2.17)
Installed-Size: {kilobytes}
Section: devel
Priority: optional
Description: traces device memory of programs on Huawei Ascend NPUs from outside
 eBPF probes on the driver, the runtime, ACL and mstx send every allocation,
 free, kernel launch and mark to a program that analyses and writes them.
 Nothing is preloaded, no code is changed, running programs can be attached to.
",
        arch.debian
    ))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read `{}`", path.display()))
}

/// The folder as it is to be installed.
struct Stage(PathBuf);

impl Stage {
    fn add(&self, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
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
}
