//! Measures the repository's code: `./x check --figures`. Product code, without what is compiled for tests alone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
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
/// The longest file, but for [`LONG_FILES`] of the repository.
const FILE_LINES: usize = 500;
const LONG_FILES: usize = 5;
/// The longest function.
const FUNCTION_LINES: usize = 60;
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

/// Refuses long functions, more than a few long files, and folders that know each other in a circle.
pub(crate) fn check() -> Result<()> {
    let crates = CRATES.iter().map(|folder| Ok((*folder, source::read(&root().join(folder))?)));
    let breaches = breaches(&crates.collect::<Result<Vec<_>>>()?);
    if breaches.is_empty() { Ok(()) } else { bail!("{}", breaches.join("\n")) }
}

fn breaches(crates: &[(&str, Vec<Source>)]) -> Vec<String> {
    let (mut breaches, mut long_files) = (Vec::new(), Vec::new());
    for (folder, sources) in crates {
        let measured = Measured::of(sources);
        let long = measured.long_functions().map(|it| format!("{folder}/{} has {} lines", it.place(), it.lines));
        breaches.extend(long);
        long_files.extend(measured.long_files.iter().map(|(_, path)| format!("{folder}/{}", path.display())));
        let circles = graph::circles(&graph::of_folders(sources));
        breaches.extend(circles.iter().map(|circle| format!("{folder} has a circle: {}", circle.join(", "))));
    }
    if long_files.len() > LONG_FILES {
        breaches.push(format!("more than {LONG_FILES} files have over {FILE_LINES} lines: {}", long_files.join(", ")));
    }
    breaches
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

impl Function {
    fn place(&self) -> String {
        format!("{} {}", self.file.display(), self.name)
    }
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
            if lines > FILE_LINES {
                measured.long_files.push((lines, source.path.clone()));
            }
            measured.test_lines += measured.inline_tests;
            measured.product_lines += lines - measured.inline_tests;
        }
        measured
    }

    fn long_functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| function.lines > FUNCTION_LINES)
    }

    fn text(&self) -> String {
        let of = |value: fn(&Function) -> usize| spread(self.functions.iter().map(value).collect());
        let over = |most: usize| self.functions.iter().filter(|function| function.lines > most).count();
        let long: Vec<String> =
            self.long_functions().map(|function| format!("\n      {} {}", function.lines, function.place())).collect();
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
            over(FUNCTION_LINES),
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

    /// A function of 61 lines in a file of 501, and two folders that know each other; five such files are few.
    #[test]
    fn breaches_are_named() {
        let parse = |path: &str, text: String| source::parse(Path::new(path), text).expect("Rust");
        let long = format!("fn long() {{\n{}}}\n{}", "    f();\n".repeat(59), "// line\n".repeat(440));
        let file = |name: &str| parse(name, long.clone());
        let names = ["a.rs", "b.rs", "c.rs", "d.rs", "e.rs", "f.rs"];
        let few = vec![("x/src", names[..5].iter().map(|name| file(name)).collect::<Vec<_>>())];
        let said = breaches(&few);
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[0], "x/src/a.rs long has 61 lines");
        let many = vec![("x/src", names.map(file).into())];
        assert_eq!(
            breaches(&many).last().map(String::as_str),
            Some(
                "more than 5 files have over 500 lines: x/src/a.rs, x/src/b.rs, x/src/c.rs, x/src/d.rs, x/src/e.rs, x/src/f.rs"
            )
        );
        let circle = vec![(
            "y/src",
            vec![
                parse("one.rs", "use crate::other::f;\n".to_owned()),
                parse("other.rs", "use crate::one::g;\n".to_owned()),
            ],
        )];
        assert_eq!(breaches(&circle), ["y/src has a circle: one, other"]);
        assert_eq!(breaches(&[("z/src", vec![parse("fine.rs", "fn short() {}\n".to_owned())])]), [""; 0]);
    }

    #[test]
    fn spreads_are_middle_nine_tenths_and_most() {
        assert_eq!(spread((1..=10).rev().collect()), "6 / 10 / 10");
        assert_eq!(spread(vec![7]), "7 / 7 / 7");
        assert_eq!(spread(Vec::new()), "- / - / -");
    }
}
