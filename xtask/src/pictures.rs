//! `pictures`: the screens in the readmes, as today's program prints them for the recording of the demo. A test holds them against it
//! (`tests/tests/exports.rs`).

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::{
    build,
    project::{program, root, target, tool},
};

/// Pages with the screen, behind this line.
const PAGES: [&str; 2] = ["README.md", "README.zh-CN.md"];
const BEGIN: &str = "$ memscope-bpf demo\n";
const END: &str = "\n```";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "usage: ./x pictures");
    build::run()?;
    let screen = screen()?;
    for page in PAGES {
        let path = root().join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{page}`"))?;
        if let Some(renewed) = replaced(&text, &screen) {
            fs::write(&path, renewed).with_context(|| format!("cannot write `{page}`"))?;
            eprintln!("{page}");
        }
    }
    Ok(())
}

/// What an installed program shows: one that is not in a source tree.
fn screen() -> Result<String> {
    let place = target().join("pictures");
    fs::create_dir_all(&place).with_context(|| format!("cannot create `{}`", place.display()))?;
    let elsewhere = std::env::temp_dir().join(format!("memscope-bpf-{}", std::process::id()));
    fs::copy(tool(), &elsewhere).context("cannot copy the program")?;
    let made = program(&elsewhere).arg("demo").env("LC_ALL", "C.UTF-8").current_dir(&place).output();
    fs::remove_file(&elsewhere).context("cannot remove the copy")?;
    let made = made.context("cannot run the program")?;
    ensure!(made.status.success(), "the demo failed: {}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).context("the screen is no text")
}

/// The page with this screen, if it has one.
fn replaced(text: &str, screen: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{after}", screen.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screens_are_replaced() {
        let page = "a\n```text\n$ memscope-bpf demo\nold\nlines\n```\nb ```c```\n";
        let expected = "a\n```text\n$ memscope-bpf demo\nnew\n\n line\n```\nb ```c```\n";
        assert_eq!(replaced(page, "new\n\n line\n").as_deref(), Some(expected));
        assert_eq!(replaced("no screen", "new"), None);
    }
}
