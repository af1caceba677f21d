//! Holds the table of docs/architecture.md, which folder may know which, against the code, and refuses circles.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Result, ensure};

use super::{
    graph::{self, Edges},
    source,
};
use crate::project::root;

const PAGE: &str = "docs/architecture.md";
/// Begins the table on it.
const HEAD: &str = "| folder | may know |";

/// Edges that close a circle of folders and are known to, with the reason. Each has to go.
const KNOWN: &[(&str, &str, &str)] = &[];

/// Circles of files of the kernel side that are known, each with a reason. Each has to go.
const KNOWN_FILES: &[&str] = &[];

/// Rooms in which no circle of files is left.
const WITHOUT_CIRCLES: &[&str] = &["daemon", "follow", "kernel", "locate", "os", "ring", "watch"];

/// Folders that a folder may know.
#[derive(Debug, PartialEq, Eq)]
enum May {
    /// All but these.
    AllBut(BTreeSet<String>),
    These(BTreeSet<String>),
}

/// Fails with every breach.
pub(crate) fn check() -> Result<()> {
    let user = source::read(&root().join("memscope-user/src"))?;
    let page = fs::read_to_string(root().join(PAGE))?;
    let folders: BTreeSet<String> = user
        .iter()
        .filter(|source| !source.is_test && source.path.iter().count() > 1)
        .filter_map(|s| s.module.first())
        .cloned()
        .collect();
    let mut breaches = breaches(&graph::of_folders(&user), &folders, &table(&page), KNOWN);
    let mut files = graph::of_files(&user);
    files.retain(|(from, _), _| WITHOUT_CIRCLES.contains(&from.split("::").next().unwrap_or_default()));
    let ebpf = source::read(&root().join("memscope-ebpf/src"))?;
    for edges in [files, graph::of_files(&ebpf)] {
        let circles = graph::circles(&edges).into_iter().filter(|circle| !KNOWN_FILES.contains(&&*circle.join(" ")));
        let circles: Vec<_> = circles.collect();
        breaches.extend(circles.iter().map(|circle| format!("circle of files: {}", circle.join(", "))));
    }
    ensure!(breaches.is_empty(), "folders and {PAGE} (\"may know\"):\n  {}", breaches.join("\n  "));
    Ok(())
}

/// The page's table: a folder, and those that it may know, in backticks, or `all`, maybe but some.
fn table(page: &str) -> BTreeMap<String, May> {
    let mut found = BTreeMap::new();
    let rows = page.lines().skip_while(|line| *line != HEAD).take_while(|line| line.starts_with('|'));
    for line in rows.filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, folder, may, _] = cells[..] else { continue };
        let names: BTreeSet<String> = may.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let may = if may.starts_with("all") { May::AllBut(names) } else { May::These(names) };
        found.insert(folder.trim_matches('`').to_owned(), may);
    }
    found
}

/// `folders`: those with a folder of their own; files beside them are tools, which all may know and which know only each other.
fn breaches(
    edges: &Edges,
    folders: &BTreeSet<String>,
    table: &BTreeMap<String, May>,
    known: &[(&str, &str, &str)],
) -> Vec<String> {
    let mut found = Vec::new();
    for ((from, to), files) in edges {
        let may = match table.get(from) {
            Some(May::AllBut(names)) => !names.contains(to),
            Some(May::These(names)) => names.contains(to) || !folders.contains(to),
            None => !folders.contains(from) && !folders.contains(to),
        };
        if !may {
            let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
            found.push(format!("`{from}` may not know `{to}`: {}", files.join(", ")));
        }
    }
    for folder in folders.iter().filter(|folder| !table.contains_key(*folder)) {
        found.push(format!("`{folder}` is not on the page"));
    }
    for (from, may) in table {
        let May::These(names) = may else { continue };
        for to in names.iter().filter(|to| !edges.contains_key(&(from.clone(), (*to).clone()))) {
            found.push(format!("the page lets `{from}` know `{to}`, which it does not use"));
        }
    }
    let mut rest = edges.clone();
    for (from, to, _) in known {
        if rest.remove(&((*from).to_owned(), (*to).to_owned())).is_none() {
            found.push(format!("`{from}` → `{to}` is listed as part of a circle and is not used any more"));
        }
    }
    found.extend(graph::circles(&rest).iter().map(|circle| format!("circle of folders: {}", circle.join(", "))));
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const PAGE: &str = "| place | what |\n|---|---|\n| `memscope-user/src/low/` | the `ground` |\n\n\
        | folder | may know |\n|---|---|\n| `low` | nothing |\n| `high` | `low` |\n| `top` | all but `idle` |\n\n| `other` | all |\n";

    /// What is wrong with files of these texts, by the page above.
    fn look(files: &[(&str, &str)], known: &[(&str, &str, &str)]) -> Vec<String> {
        let read = |(path, text): &(&str, &str)| source::parse(Path::new(path), (*text).to_owned()).expect("Rust");
        let sources: Vec<_> = files.iter().map(read).collect();
        let folders = ["low", "high", "top"].map(str::to_owned).into();
        breaches(&graph::of_folders(&sources), &folders, &table(PAGE), known)
    }

    const LOW: (&str, &str) = ("low/mod.rs", "use crate::tool::Tool;");
    const HIGH: (&str, &str) = ("high/mod.rs", "use crate::{low::Ground, tool::Tool};");
    const TOP: (&str, &str) = ("top/mod.rs", "use crate::{high::Floor, low::Ground};");
    const TOOL: (&str, &str) = ("tool.rs", "");

    #[test]
    fn the_table_is_read_from_the_page() {
        let table = table(PAGE);
        assert_eq!(table.keys().collect::<Vec<_>>(), ["high", "low", "top"]);
        assert_eq!(table["high"], May::These(["low".to_owned()].into()));
        assert_eq!(
            (&table["low"], &table["top"]),
            (&May::These(BTreeSet::new()), &May::AllBut(["idle".to_owned()].into()))
        );
    }

    #[test]
    fn code_as_on_the_page_passes() {
        assert_eq!(look(&[LOW, HIGH, TOP, TOOL], &[]), Vec::<String>::new());
    }

    /// One step off the page each: a folder that looks up, with the circle that it closes; a tool that knows a folder; a permission
    /// without a use.
    #[test]
    fn each_breach_is_found() {
        let up = ("low/mod.rs", "fn f(_: crate::high::Floor) {}");
        let expected = ["`low` may not know `high`: low/mod.rs", "circle of folders: high, low"];
        assert_eq!(look(&[up, HIGH, TOP, TOOL], &[]), expected);
        let known = [("low", "high", "a reason")];
        assert_eq!(look(&[up, HIGH, TOP, TOOL], &known), [expected[0]]);
        let stale = ["`low` → `high` is listed as part of a circle and is not used any more"];
        assert_eq!(look(&[LOW, HIGH, TOP, TOOL], &known), stale);
        let tool = ("tool.rs", "use crate::low::Ground;");
        let closed = "circle of folders: low, tool";
        assert_eq!(look(&[LOW, HIGH, TOP, tool], &[]), ["`tool` may not know `low`: tool.rs", closed]);
        let roof = ("top/mod.rs", "use crate::{high::Floor, idle::Rest};");
        let files = [LOW, HIGH, roof, TOOL, ("idle.rs", "")];
        assert_eq!(look(&files, &[]), ["`top` may not know `idle`: top/mod.rs"]);
        let idle = ["the page lets `high` know `low`, which it does not use"];
        assert_eq!(look(&[LOW, ("high/mod.rs", ""), TOP, TOOL], &[]), idle);
    }
}
