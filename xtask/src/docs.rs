//! `docs`: the documentation as a site (mdBook), and what `check` holds of all pages: links lead somewhere, the contents have every
//! page, and words that readers stumble over are not used.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    project::{program, root, run as run_command},
    setup,
};

/// Words for which docs/glossary.md or plain English has a better one, each on a line with what to write; whole words, in small
/// letters. A unit test holds the help of every command to the same list.
const WORDS: &str = include_str!("../../docs/words.txt");
/// Pages with their own history: entries stay as they were written.
const HISTORY: &str = "CHANGELOG.md";
/// Pages of the site.
const PAGES: &str = "docs";
const CONTENTS: &str = "docs/SUMMARY.md";

/// `docs`: the site, in `target/book`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "usage: ./x docs");
    check()?;
    run_command(program(setup::mdbook()?).args(["build", PAGES]))
}

/// Fails with every place.
pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    let pages = pages(root())?;
    for page in &pages {
        let text = read(page)?;
        let name = page.strip_prefix(root()).unwrap_or(page).display().to_string();
        wrong.extend(dead_links(page, &text)?.into_iter().map(|link| format!("{name}: no such target: {link}")));
        if name != HISTORY {
            wrong.extend(words(&text).into_iter().map(|what| format!("{name}{what}")));
        }
    }
    wrong.extend(missing(&pages)?);
    ensure!(wrong.is_empty(), "documentation:\n  {}", wrong.join("\n  "));
    Ok(())
}

fn read(page: &Path) -> Result<String> {
    fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))
}

/// Markdown of the repository, but for what is built or fetched.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_ours = !name.starts_with('.') && name != "target" && name != "node_modules";
        if path.is_dir() && !path.is_symlink() && is_ours {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Pages of the site that its contents leave out.
fn missing(pages: &[PathBuf]) -> Result<Vec<String>> {
    let contents = read(&root().join(CONTENTS))?;
    let listed: BTreeSet<&str> = links(&contents).into_iter().collect();
    let of_site = pages.iter().filter_map(|page| page.strip_prefix(root().join(PAGES)).ok());
    let is_listed = |page: &Path| listed.contains(&*page.to_string_lossy()) || page == Path::new("SUMMARY.md");
    let left_out = of_site.filter(|page| !is_listed(page));
    Ok(left_out.map(|page| format!("{CONTENTS}: {} is not listed", page.display())).collect())
}

/// Links of a page that lead nowhere: missing files, and headings that their page does not have.
fn dead_links(page: &Path, text: &str) -> Result<Vec<String>> {
    let mut dead = Vec::new();
    for link in links(text) {
        // Elsewhere, or an item of a crate's documentation.
        if link.contains("::") || link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
        if leaves_site(page, &target) {
            dead.push(format!("{link} (the site has the pages of `{PAGES}` alone)"));
            continue;
        }
        let leads = target.exists() && (heading.is_empty() || headings(&read(&target)?).contains(heading));
        if !leads {
            dead.push(link.to_owned());
        }
    }
    Ok(dead)
}

/// Whether the link of a page of the site leads out of it.
fn leaves_site(page: &Path, target: &Path) -> bool {
    let site = root().join(PAGES);
    page.starts_with(&site) && target.canonicalize().is_ok_and(|target| !target.starts_with(&site))
}

/// Targets of links outside of code.
fn links(text: &str) -> Vec<&str> {
    let targets = |line| str::split(line, "](").skip(1).filter_map(|rest| rest.split_once(')'));
    prose(text).flat_map(|(_, line)| targets(line)).map(|(target, _)| target).collect()
}

/// Lines with their numbers, without blocks of code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Names of the headings of a page, as GitHub and mdBook make them, and of its anchors.
fn headings(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    let anchors = |line| str::split(line, "<a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let anchors = prose(text).flat_map(|(_, line)| anchors(line)).map(|(anchor, _)| anchor.to_owned());
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| name(line)).chain(anchors).collect()
}

/// Words of the list, each with its line and what to write.
fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Names in code are what they are.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        let letters = |c: char| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
        let line: String = line.chars().map(letters).collect();
        let line = format!(" {} ", line.split_whitespace().collect::<Vec<_>>().join(" "));
        for (word, better) in WORDS.lines().filter_map(|line| line.split_once(": ")) {
            if line.contains(&format!(" {word} ")) {
                found.push(format!(":{number}: `{word}`: write {better}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Of `it`, in 2 parts\nSee [a](other.md#x) and [b](#of-it-in-2-parts).\n```sh\n[c](no.md) told\n```\n## Bound\nIt is Told,\nso\n";

    #[test]
    fn links_and_headings() {
        assert_eq!(links(PAGE), ["other.md#x", "#of-it-in-2-parts"]);
        assert_eq!(headings(PAGE), ["bound", "of-it-in-2-parts"].map(str::to_owned).into());
        let folder = std::env::temp_dir().join(format!("memscope-docs-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let page = folder.join("page.md");
        fs::write(&page, PAGE).expect("a page");
        assert_eq!(dead_links(&page, PAGE).expect("read"), ["other.md#x"]);
        fs::write(folder.join("other.md"), "# Y\n").expect("a page");
        assert_eq!(dead_links(&page, PAGE).expect("read"), ["other.md#x"]);
        fs::write(folder.join("other.md"), "# X\n").expect("a page");
        assert!(dead_links(&page, PAGE).expect("read").is_empty());
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn words_are_found_in_prose_alone() {
        assert_eq!(words(PAGE), [":7: `told`: write reported, shown, counted"]);
        assert_eq!(words("So  Many of them\nretold, foretells").len(), 1);
    }

    #[test]
    fn our_pages() {
        check().expect("all links and words");
    }
}
