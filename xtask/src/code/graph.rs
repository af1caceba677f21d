//! Which module uses which, by `use` lines and by paths that begin with `crate`, `self` or `super`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use syn::{
    ImplItem, Item, ItemMod, ItemUse, Macro, UseTree,
    visit::{self, Visit},
};

use super::source::{Module, Source, is_for_tests};

/// Who uses whom, and in which files.
pub(crate) type Edges = BTreeMap<(String, String), BTreeSet<PathBuf>>;

/// Edges between folders at the top of a crate, or the files there.
pub(crate) fn of_folders(sources: &[Source]) -> Edges {
    let tops: BTreeSet<&str> = sources.iter().filter_map(|source| source.module.first()).map(String::as_str).collect();
    edges(sources, |module| module.first().filter(|name| tops.contains(name.as_str())).cloned())
}

/// Edges between files, by their modules. A module is a part of the one around it: between those two there is no edge.
pub(crate) fn of_files(sources: &[Source]) -> Edges {
    let files: BTreeSet<&[String]> = sources.iter().map(|source| source.module.as_slice()).collect();
    let mut edges = edges(sources, |module| {
        let len = (0..=module.len()).rev().find(|len| files.contains(&module[..*len]))?;
        // What lies in the crate's root itself is for all.
        (len > 0).then(|| module[..len].join("::"))
    });
    let is_part = |part: &str, of: &str| part.strip_prefix(of).is_some_and(|rest| rest.starts_with("::"));
    edges.retain(|(from, to), _| !is_part(from, to) && !is_part(to, from));
    edges
}

fn edges(sources: &[Source], name: impl Fn(&[String]) -> Option<String>) -> Edges {
    let modules: BTreeSet<&[String]> = sources.iter().map(|source| source.module.as_slice()).collect();
    let mut edges = Edges::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let Some(from) = name(&source.module) else { continue };
        let mut uses = Uses { modules: &modules, module: source.module.clone(), found: BTreeSet::new() };
        uses.visit_file(&source.syntax);
        for to in uses.found.iter().filter_map(|module| name(module)).filter(|to| *to != from) {
            edges.entry((from.clone(), to)).or_default().insert(source.path.clone());
        }
    }
    edges
}

/// Groups that reach each other, of two and more.
pub(crate) fn circles(edges: &Edges) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().insert(to);
    }
    let reach = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut queue: Vec<&str> = next.get(from).into_iter().flatten().copied().collect();
        while let Some(name) = queue.pop() {
            if seen.insert(name) {
                queue.extend(next.get(name).into_iter().flatten().copied());
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|name| (*name, reach(name))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (name, all) in &reached {
        let circle: Vec<String> = all
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(name)))
            .map(|other| (*other).to_owned())
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

struct Uses<'a> {
    modules: &'a BTreeSet<&'a [String]>,
    module: Module,
    /// Full paths.
    found: BTreeSet<Vec<String>>,
}

impl Uses<'_> {
    /// Takes a path as it is written here. `child`: it may begin with a module of this one.
    fn take(&mut self, path: &[String], child: bool) {
        let mut full = self.module.clone();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => {
                full.clear();
                rest = &path[1..];
            }
            Some("self" | "super") => {
                while let Some((head, tail)) = rest.split_first()
                    && matches!(head.as_str(), "self" | "super")
                {
                    if head == "super" {
                        full.pop();
                    }
                    rest = tail;
                }
            }
            Some(name) if child && self.modules.contains([&*full, &[name.to_owned()]].concat().as_slice()) => {}
            _ => return,
        }
        full.extend_from_slice(rest);
        self.found.insert(full);
    }

    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(path.ident.to_string())),
            UseTree::Name(name) if name.ident == "self" => self.take(before, true),
            UseTree::Name(name) => self.take(&with(name.ident.to_string()), true),
            UseTree::Rename(name) => self.take(&with(name.ident.to_string()), true),
            UseTree::Glob(_) => self.take(before, true),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Const(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.take(&names, false);
        visit::visit_path(self, path);
    }

    /// Arguments of macros are not parsed: their paths are found by the word that they begin with.
    fn visit_macro(&mut self, item: &'ast Macro) {
        let text = item.tokens.to_string();
        for (at, _) in text.match_indices("crate ::") {
            let path = text[at..].split("::").map(str::trim);
            let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            let names: Vec<String> = path.take_while(is_name).map(str::to_owned).collect();
            self.take(&names, false);
        }
        visit::visit_macro(self, item);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::code::source::parse;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| parse(Path::new(path), (*text).to_owned()).expect("Rust")).collect()
    }

    fn names(edges: &Edges) -> Vec<String> {
        edges.keys().map(|(from, to)| format!("{from} {to}")).collect()
    }

    /// Each way to write a path counts, and none of those in tests.
    #[test]
    fn uses_are_found_however_they_are_written() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f; fn own() {}"),
            ("a/mod.rs", "use crate::{b::{self, Thing as Other}, own}; mod inner; pub use inner::Own;"),
            ("a/inner.rs", "use super::super::c::*; use super::Own; mod deep { use super::super::super::d::D; }"),
            ("b.rs", "fn f() -> crate::e::E { println!(\"{}\", crate::f::value()) }"),
            ("c.rs", "#[cfg(test)] mod tests { use crate::a::Own; } #[test] fn t() { crate::a::own(); }"),
            ("d.rs", "use std::a::Own; use other::crate_name;"),
            ("e.rs", ""),
            ("f.rs", ""),
        ];
        let sources = sources(&files);
        assert_eq!(names(&of_folders(&sources)), ["a b", "a c", "a d", "b e", "b f"]);
        let files = ["a b", "a::inner c", "a::inner d", "b e", "b f"];
        assert_eq!(names(&of_files(&sources)), files);
    }

    #[test]
    fn circles_are_groups_that_reach_each_other() {
        let edges = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(from, to)| (((*from).into(), (*to).into()), BTreeSet::new())).collect::<Edges>()
        };
        assert_eq!(circles(&edges(&[("a", "b"), ("b", "c"), ("a", "c")])), Vec::<Vec<String>>::new());
        let two = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")];
        assert_eq!(circles(&edges(&two)), [vec!["a", "b", "c"], vec!["d", "e"]]);
    }
}
