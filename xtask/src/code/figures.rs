//! Measures the repository's code: `./x check --figures`. Product code, without what is compiled for tests alone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use syn::{
    Attribute, Block, Expr, Fields, FnArg, ImplItem, ImplItemFn, Item, ItemFn, ItemMod, Signature, Visibility,
    spanned::Spanned as _,
    visit::{self, Visit},
};

use super::{
    graph,
    source::{self, Source, is_for_tests},
};
use crate::project::root;

/// Crates, by the folders of their sources.
const CRATES: [&str; 6] =
    ["memscope-user/src", "memscope-ebpf/src", "memscope-common/src", "xtask/src", "python/src", "bench/src"];
/// All of it is for tests.
const TESTS: &str = "tests";
/// The simulation's and the suite's other languages.
const OTHER: [&str; 4] = ["c", "h", "cpp", "py"];

pub(crate) fn print() -> Result<()> {
    let (mut product, mut tests) = (0, 0);
    for folder in CRATES {
        let sources = source::read(&root().join(folder))?;
        let measured = Measured::of(&sources);
        product += measured.product_lines;
        tests += measured.test_lines;
        println!("{folder}\n{}", measured.text());
        let folders = graph::of_folders(&sources);
        println!("  folders                {} edges, circles: {}", folders.len(), list(&graph::circles(&folders)));
        let files = graph::of_files(&sources);
        println!("  files                  {} edges, circles: {}", files.len(), list(&graph::circles(&files)));
    }
    let rust = tests + lines(&root().join(TESTS), "rs")?;
    let mut all = rust;
    for extension in OTHER {
        all += lines(&root().join(TESTS), extension)?;
    }
    let ratio = |tests: usize| tests as f64 / product as f64;
    println!("repository\n  tests to product lines {:.2} in Rust, {:.2} with C and Python", ratio(rust), ratio(all));
    Ok(())
}

fn lines(folder: &Path, extension: &str) -> Result<usize> {
    source::files(folder, extension)?.iter().map(|path| Ok(fs::read_to_string(path)?.lines().count())).sum()
}

fn list(circles: &[Vec<String>]) -> String {
    if circles.is_empty() {
        "none".to_owned()
    } else {
        circles.iter().map(|circle| circle.join(" ")).collect::<Vec<_>>().join("; ")
    }
}

/// Middle, nine tenths, most.
fn spread(mut values: Vec<usize>) -> String {
    values.sort_unstable();
    let at = |tenths: usize| values.get((values.len() * tenths / 10).min(values.len().saturating_sub(1)));
    let number = |value: Option<&usize>| value.map_or_else(|| "-".to_owned(), ToString::to_string);
    format!("{} / {} / {}", number(at(5)), number(at(9)), number(values.last()))
}

#[derive(Default)]
struct Measured {
    files: Vec<usize>,
    /// Files of more than 500 lines.
    long_files: Vec<(usize, PathBuf)>,
    functions: Vec<Function>,
    documented: usize,
    public: usize,
    product_lines: usize,
    test_lines: usize,
    file: PathBuf,
    /// Lines of inline tests in this file.
    inline_tests: usize,
}

struct Function {
    name: String,
    file: PathBuf,
    lines: usize,
    parameters: usize,
    nesting: usize,
}

impl Measured {
    fn of(sources: &[Source]) -> Self {
        let mut measured = Self::default();
        for source in sources {
            let lines = source.lines();
            if source.is_test {
                measured.test_lines += lines;
                continue;
            }
            measured.file.clone_from(&source.path);
            measured.inline_tests = 0;
            measured.visit_file(&source.syntax);
            measured.files.push(lines);
            if lines > 500 {
                measured.long_files.push((lines, source.path.clone()));
            }
            measured.test_lines += measured.inline_tests;
            measured.product_lines += lines - measured.inline_tests;
        }
        measured
    }

    fn text(&self) -> String {
        let of = |value: fn(&Function) -> usize| spread(self.functions.iter().map(value).collect());
        let over = |most: usize| self.functions.iter().filter(|function| function.lines > most).count();
        let long: Vec<String> = self
            .functions
            .iter()
            .filter(|function| function.lines > 60)
            .map(|function| format!("\n      {} {} {}", function.lines, function.file.display(), function.name))
            .collect();
        let files: Vec<String> =
            self.long_files.iter().map(|(lines, path)| format!("\n      {lines} {}", path.display())).collect();
        let many = self.functions.iter().filter(|function| function.parameters > 5).count();
        let wide = self.functions.iter().map(|function| function.parameters).max().unwrap_or_default();
        format!(
            "  files                  {}\n  lines per file         {}\n  files over 500 lines   {}{}\n  functions              {}\n  \
             lines per function     {}\n  over 100 / 60 lines    {} / {}{}\n  parameters             {}; over 5: {many}, most {wide}\n  \
             nesting                {}\n  public, documented     {} of {}\n  lines, product / tests {} / {}",
            self.files.len(),
            spread(self.files.clone()),
            files.len(),
            files.concat(),
            self.functions.len(),
            of(|function| function.lines),
            over(100),
            over(60),
            long.concat(),
            of(|function| function.parameters),
            of(|function| function.nesting),
            self.documented,
            self.public,
            self.product_lines,
            self.test_lines,
        )
    }

    fn function(&mut self, signature: &Signature, block: &Block) {
        let first = signature.fn_token.span.start().line;
        let last = block.brace_token.span.close().end().line;
        let mut nesting = Nesting::default();
        nesting.visit_block(block);
        self.functions.push(Function {
            name: signature.ident.to_string(),
            file: self.file.clone(),
            lines: last - first + 1,
            parameters: signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).count(),
            nesting: nesting.deepest,
        });
    }

    fn public(&mut self, visibility: &Visibility, attributes: &[Attribute]) {
        if matches!(visibility, Visibility::Public(_)) {
            self.count(attributes);
        }
    }

    fn count(&mut self, attributes: &[Attribute]) {
        self.public += 1;
        self.documented += usize::from(attributes.iter().any(|attribute| attribute.path().is_ident("doc")));
    }

    fn fields(&mut self, fields: &Fields) {
        // Of tuples the type says what they hold.
        for field in fields.iter().filter(|field| field.ident.is_some()) {
            self.public(&field.vis, &field.attrs);
        }
    }
}

impl<'ast> Visit<'ast> for Measured {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(item) => {
                self.public(&item.vis, &item.attrs);
                self.fields(&item.fields);
            }
            Item::Enum(item) => {
                self.public(&item.vis, &item.attrs);
                if matches!(item.vis, Visibility::Public(_)) {
                    item.variants.iter().for_each(|variant| self.count(&variant.attrs));
                }
            }
            Item::Trait(item) => self.public(&item.vis, &item.attrs),
            Item::Const(item) => self.public(&item.vis, &item.attrs),
            Item::Static(item) => self.public(&item.vis, &item.attrs),
            Item::Type(item) => self.public(&item.vis, &item.attrs),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if is_for_tests(&item.attrs) {
            let first = item.attrs.first().map_or_else(|| item.span(), syn::spanned::Spanned::span);
            self.inline_tests += item.span().end().line - first.start().line + 1;
        } else {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.public(&item.vis, &item.attrs);
            self.function(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if let ImplItem::Const(item) = item {
            self.public(&item.vis, &item.attrs);
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.public(&item.vis, &item.attrs);
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
}

/// How deep loops and decisions lie in each other. `else if` is no deeper than its `if`.
#[derive(Default)]
struct Nesting {
    depth: usize,
    deepest: usize,
}

impl Nesting {
    fn inside(&mut self, visit: impl FnOnce(&mut Self)) {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        visit(self);
        self.depth -= 1;
    }
}

impl<'ast> Visit<'ast> for Nesting {
    fn visit_item(&mut self, _: &'ast Item) {}

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::If(branch) => {
                self.inside(|inner| {
                    inner.visit_expr(&branch.cond);
                    inner.visit_block(&branch.then_branch);
                });
                match branch.else_branch.as_ref().map(|(_, other)| &**other) {
                    Some(other @ Expr::If(_)) => self.visit_expr(other),
                    Some(other) => self.inside(|inner| inner.visit_expr(other)),
                    None => {}
                }
            }
            Expr::Match(_) | Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_) => {
                self.inside(|inner| visit::visit_expr(inner, expression));
            }
            _ => visit::visit_expr(self, expression),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//! A file.
/// A thing.
pub struct Thing {
    /// Documented.
    pub one: u8,
    pub two: u8,
    own: u8,
}

impl Thing {
    /// Deep.
    pub fn deep(&self, a: u8, b: u8) -> u8 {
        for _ in 0..a {
            if b > 0 {
                return 1;
            } else if a > 1 {
                match b { _ => {} }
            }
        }
        0
    }
}

fn short() {}

#[cfg(test)]
mod tests {
    #[test]
    fn not_counted() {}
}
";

    /// Counted by hand: two functions of 10 and 1 lines, the deeper one three deep; of four public items three have a sentence; the
    /// tests take five of 30 lines.
    #[test]
    fn a_file_is_measured() {
        let sources = [source::parse(Path::new("thing.rs"), TEXT.to_owned()).expect("Rust")];
        let measured = Measured::of(&sources);
        let functions: Vec<_> =
            measured.functions.iter().map(|f| (f.name.as_str(), f.lines, f.parameters, f.nesting)).collect();
        assert_eq!(functions, [("deep", 10, 2, 3), ("short", 1, 0, 0)]);
        assert_eq!((measured.documented, measured.public), (3, 4));
        assert_eq!((measured.product_lines, measured.test_lines), (25, 5));
    }

    #[test]
    fn spreads_are_middle_nine_tenths_and_most() {
        assert_eq!(spread((1..=10).rev().collect()), "6 / 10 / 10");
        assert_eq!(spread(vec![7]), "7 / 7 / 7");
        assert_eq!(spread(Vec::new()), "- / - / -");
    }
}
