//! The source files of a crate, parsed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use syn::{Attribute, Item, Meta};

/// A module's names from the crate's root on.
pub(crate) type Module = Vec<String>;

/// One file.
pub(crate) struct Source {
    /// Its path below the crate's `src`.
    pub(crate) path: PathBuf,
    pub(crate) module: Module,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
    /// It is compiled for tests alone.
    pub(crate) is_test: bool,
}

impl Source {
    pub(crate) fn lines(&self) -> usize {
        self.text.lines().count()
    }
}

/// All files below a folder, those of modules for tests marked.
pub(crate) fn read(folder: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in files(folder, "rs")? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        sources.push(parse(path.strip_prefix(folder)?, text)?);
    }
    mark_tests(&mut sources);
    Ok(sources)
}

/// One file by its text.
pub(crate) fn parse(path: &Path, text: String) -> Result<Source> {
    let syntax = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    Ok(Source { path: path.to_owned(), module: module(path), text, syntax, is_test: false })
}

/// Files with this extension, in the order of their paths.
pub(crate) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the item is compiled for tests alone.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        Meta::NameValue(_) => false,
    })
}

fn module(path: &Path) -> Module {
    let mut names: Module = path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| matches!(name.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

fn mark_tests(sources: &mut [Source]) {
    let mut tests = BTreeSet::new();
    for source in &*sources {
        for item in &source.syntax.items {
            if let Item::Mod(item) = item
                && is_for_tests(&item.attrs)
            {
                let name = item.ident.to_string();
                tests.insert([source.module.as_slice(), &[name]].concat());
            }
        }
    }
    for source in sources {
        source.is_test = (1..=source.module.len()).any(|len| tests.contains(&source.module[..len]));
    }
}
