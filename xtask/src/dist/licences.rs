//! The licences of the crates that are given out, with the texts that their authors put into them: who gives out a program
//! has to give out these, too.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::sbom;
use crate::project::root;

/// Its file.
pub(super) const NAME: &str = "THIRD-PARTY-LICENSES";
/// How names of such files begin, in capitals.
const BEGINNINGS: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// The licences of all that is given out: this project's, then those of its parts.
pub(crate) fn of_all() -> Result<String> {
    with_own(&text(&sbom::packages()?)?)
}

/// The same, with the licences of the parts.
pub(super) fn with_own(parts: &str) -> Result<String> {
    const OWN: [&str; 4] = ["LICENSE", "LICENSE-MIT", "LICENSE-APACHE", "LICENSE-GPL-2.0"];
    let read = |name: &str| fs::read_to_string(root().join(name)).with_context(|| format!("failed to read `{name}`"));
    let mut texts: Vec<String> = OWN.into_iter().map(read).collect::<Result<_>>()?;
    texts.push(parts.to_owned());
    Ok(texts.join("\n\n"))
}

/// The list of packages, as cargo's metadata has them; those of this repository are left out.
pub(super) fn text(packages: &BTreeMap<String, Value>) -> Result<String> {
    let mut list = "Parts of other authors, their licences, and the texts below by number.\n\n".to_owned();
    let mut texts: Vec<String> = Vec::new();
    for (name, package) in packages.iter().filter(|(_, package)| !package["source"].is_null()) {
        let of_package = texts_of(&folder_of(package)?)?;
        let mut numbers = Vec::new();
        for text in of_package {
            let known = texts.iter().position(|known| *known == text);
            numbers.push(known.unwrap_or(texts.len()) + 1);
            if known.is_none() {
                texts.push(text);
            }
        }
        let licence = package["license"].as_str().unwrap_or("see the texts");
        let numbers: Vec<String> = numbers.iter().map(|number| format!("[{number}]")).collect();
        let numbers = if numbers.is_empty() { without_text(package) } else { numbers.join(" ") };
        writeln!(list, "{name}: {licence}  {numbers}").context("memory takes everything")?;
    }
    for (number, text) in (1..).zip(&texts) {
        write!(list, "\n{:-<72}\n[{number}]\n\n{}\n", "", text.trim_end()).context("memory takes everything")?;
    }
    Ok(list)
}

/// The crate has no text: its authors are named.
fn without_text(package: &Value) -> String {
    let authors: Vec<&str> = package["authors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let authors = if authors.is_empty() { "its repository".to_owned() } else { authors.join(", ") };
    format!("(no text in the crate; of {authors})")
}

fn folder_of(package: &Value) -> Result<PathBuf> {
    let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
    Ok(Path::new(manifest).parent().context("a manifest without a folder")?.to_owned())
}

/// The texts of a crate, by the names of their files.
fn texts_of(folder: &Path) -> Result<Vec<String>> {
    let what = || format!("failed to list `{}`", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let path = entry.with_context(what)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).with_context(|| format!("failed to read `{}`", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each text once, each crate with the numbers of its own; our crates are no others'.
    #[test]
    fn texts_are_given_once() {
        let folder = std::env::temp_dir().join(format!("memscope-licences-{}", std::process::id()));
        let crate_of = |name: &str, files: &[(&str, &str)]| {
            fs::create_dir_all(folder.join(name)).expect("a folder");
            for (file, text) in files {
                fs::write(folder.join(name).join(file), text).expect("written");
            }
            let manifest = folder.join(name).join("Cargo.toml");
            let package =
                json!({ "license": "MIT", "manifest_path": manifest, "source": "registry", "authors": ["C"] });
            (name.to_owned(), package)
        };
        let mut packages = BTreeMap::from([
            crate_of("a 1.0.0", &[("LICENSE-MIT", "of A\r\n"), ("license-zlib.txt", "shared\n"), ("lib.rs", "no")]),
            crate_of("b 2.0.0", &[("COPYING", "shared\n")]),
            crate_of("c 3.0.0", &[]),
        ]);
        packages.insert("memscope-user 1.0.0".to_owned(), json!({ "source": null }));
        let text = text(&packages).expect("a text");
        fs::remove_dir_all(&folder).expect("removed");
        let (list, texts) = text.split_once("\n---").expect("texts");
        let lines: Vec<&str> = list.lines().skip(2).collect();
        assert_eq!(lines, ["a 1.0.0: MIT  [1] [2]", "b 2.0.0: MIT  [2]", "c 3.0.0: MIT  (no text in the crate; of C)"]);
        assert_eq!((texts.matches("of A\n").count(), texts.matches("shared\n").count()), (1, 1));
    }

    /// The real list: what must be given out with the program's parts is in it.
    #[test]
    fn texts_of_our_parts() {
        let text = text(&sbom::packages().expect("packages")).expect("a text");
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        for (name, licence) in [("blazesym ", "BSD-3-Clause"), ("aya ", "MIT OR Apache-2.0"), ("tokio ", "MIT")] {
            let line = line(name);
            assert!(line.contains(licence) && line.ends_with(']'), "{name}: {line}");
        }
        assert!(text.contains("Redistributions in binary form"));
        assert_eq!(line("memscope-user"), "");
    }

    /// `deny.toml` allows the licence of each part, and all parts are from crates.io. `./x deny` holds all crates to it, with tests' and those
    /// that only build.
    #[test]
    fn licences_and_sources_are_allowed() {
        const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
        let policy = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
        let policy: toml::Table = policy.parse().expect("TOML");
        let allowed: Vec<spdx::Licensee> = policy["licenses"]["allow"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|licence| spdx::Licensee::parse(licence.as_str().expect("a text")).expect("a licence"))
            .collect();
        let is_allowed = |expression: &str| {
            let expression = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX).expect("an expression");
            expression.evaluate(|wanted| allowed.iter().any(|licence| licence.satisfies(wanted)))
        };
        let packages = sbom::packages().expect("packages");
        for (name, package) in packages.iter().filter(|(_, package)| !package["source"].is_null()) {
            assert!(is_allowed(package["license"].as_str().expect("a licence")), "{name}: {}", package["license"]);
            assert_eq!(package["source"], CRATES_IO, "{name}");
        }
        assert!(
            !is_allowed("GPL-3.0-only") && !is_allowed("MIT AND GPL-3.0-only") && is_allowed("GPL-3.0-only OR MIT")
        );
    }
}
