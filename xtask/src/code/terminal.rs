//! Holds that one file writes to stdout and stderr: it cleans what it writes. The lints of `memscope-user` refuse the plain ways; this
//! refuses the ways around them, and files that switch them off.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use syn::{
    Attribute, ItemFn, ItemMod, LitStr, Macro, Path, UseTree,
    visit::{self, Visit},
};

use super::source::{self, Source, is_for_tests};
use crate::project::root;

/// Files that may write there, each with a reason.
const MAY: &[(&str, &str)] =
    &[("cli/terminal.rs", "this is the place"), ("usage/helper.rs", "a pipe to the tracer that started it")];

/// Macros that write.
const MACROS: &[&str] = &["print", "println", "eprint", "eprintln", "dbg"];
/// Lints that refuse to write.
const LINTS: &[&str] = &["print_stdout", "print_stderr", "disallowed_methods"];
/// Files that are the streams.
const FILES: &[&str] =
    &["/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/console", "/proc/self/fd/1", "/proc/self/fd/2"];
/// Names of their descriptors.
const DESCRIPTORS: &[&str] = &["STDOUT_FILENO", "STDERR_FILENO"];
/// Functions that give the streams, by module and name.
const STREAMS: &[(&str, &str)] = &[("io", "stdout"), ("io", "stderr"), ("stdio", "stdout"), ("stdio", "stderr")];
/// Functions of C that write to a stream without being given one, or to a descriptor.
const WRITERS: &[&str] = &["puts", "putchar", "printf", "perror", "psignal", "dprintf", "vdprintf", "write", "writev"];

/// Fails with every place.
pub(crate) fn check() -> Result<()> {
    let found = breaches(&source::read(&root().join("memscope-user/src"))?, MAY);
    ensure!(found.is_empty(), "what is written to terminals goes through `cli/terminal.rs`:\n  {}", found.join("\n  "));
    Ok(())
}

fn breaches(sources: &[Source], may: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut unused: BTreeSet<&str> = may.iter().map(|(path, _)| *path).collect();
    for source in sources.iter().filter(|source| !source.is_test) {
        let mut ways = Ways::default();
        ways.visit_file(&source.syntax);
        let path = source.path.display().to_string();
        if may.iter().any(|(allowed, _)| *allowed == path) {
            if !ways.found.is_empty() {
                unused.remove(&*path);
            }
        } else {
            found.extend(ways.found.into_iter().map(|way| format!("{path}: {way}")));
        }
    }
    found.extend(unused.into_iter().map(|path| format!("{path} may write there, and does not")));
    found
}

/// What of a file writes.
#[derive(Default)]
struct Ways {
    found: BTreeSet<String>,
}

impl Ways {
    /// Text of a macro, which is no syntax yet: names are parted by blanks there.
    fn take_tokens(&mut self, text: &str) {
        let plain: String = text.split_whitespace().collect();
        for (module, name) in STREAMS {
            self.take(plain.contains(&format!("{module}::{name}(")), &format!("{module}::{name}"));
        }
        for name in MACROS {
            let called = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '!' && c != ' ');
            let is_call = |words: &str| words.trim_start().trim_end() == format!("{name} !");
            self.take(called.into_iter().any(is_call), &format!("{name}!"));
        }
        for name in FILES.iter().chain(DESCRIPTORS) {
            self.take(plain.contains(name), name);
        }
    }

    fn take(&mut self, is_there: bool, what: &str) {
        if is_there {
            self.found.insert(format!("`{what}`"));
        }
    }
}

impl<'a> Visit<'a> for Ways {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        let switches = ["allow", "expect", "warn"].iter().any(|name| attribute.path().is_ident(name));
        if let (true, Ok(list)) = (switches, attribute.meta.require_list()) {
            let text = list.tokens.to_string();
            for lint in LINTS {
                self.take(text.contains(lint), lint);
            }
        }
    }

    fn visit_macro(&mut self, item: &'a Macro) {
        let name = item.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        self.take(MACROS.contains(&&*name), &format!("{name}!"));
        self.take_tokens(&item.tokens.to_string());
    }

    fn visit_path(&mut self, path: &'a Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let (last, module) = (names.last().map_or("", |name| name), names.iter().rev().nth(1).map_or("", |name| name));
        self.take(STREAMS.contains(&(module, last)), &format!("{module}::{last}"));
        self.take(DESCRIPTORS.contains(&last), last);
        self.take(matches!(module, "libc" | "unistd") && WRITERS.contains(&last), &format!("{module}::{last}"));
        visit::visit_path(self, path);
    }

    /// Imported names hide where they come from.
    fn visit_use_tree(&mut self, tree: &'a UseTree) {
        if let UseTree::Path(path) = tree {
            let module = path.ident.to_string();
            let mut leaves = Vec::new();
            names_of(&path.tree, &mut leaves);
            for name in leaves {
                self.take(STREAMS.contains(&(&module, &name)), &format!("{module}::{name}"));
                self.take(DESCRIPTORS.contains(&&*name), &name);
                self.take(
                    matches!(&*module, "libc" | "unistd") && WRITERS.contains(&&*name),
                    &format!("{module}::{name}"),
                );
            }
        }
        visit::visit_use_tree(self, tree);
    }

    fn visit_lit_str(&mut self, text: &'a LitStr) {
        let text = text.value();
        for file in FILES {
            self.take(text == **file, file);
        }
    }
}

/// What a part of a `use` names at once.
fn names_of(tree: &UseTree, found: &mut Vec<String>) {
    match tree {
        UseTree::Name(name) => found.push(name.ident.to_string()),
        UseTree::Rename(name) => found.push(name.ident.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|item| names_of(item, found)),
        UseTree::Path(_) | UseTree::Glob(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{breaches, check, source};

    /// Make sure that the code itself passes.
    #[test]
    fn the_code_passes() {
        check().expect("one place");
    }

    fn look(files: &[(&str, &str)], may: &[(&str, &str)]) -> Vec<String> {
        let read = |(path, text): &(&str, &str)| source::parse(Path::new(path), (*text).to_owned()).expect("Rust");
        breaches(&files.iter().map(read).collect::<Vec<_>>(), may)
    }

    /// Make sure that each way around the one place is seen.
    #[test]
    fn ways_around_are_seen() {
        for (text, way) in [
            ("fn a() { println!(\"x\"); }", "`println!`"),
            ("fn a() { std::eprint!(\"x\"); }", "`eprint!`"),
            ("fn a() { let x = dbg!(1); }", "`dbg!`"),
            ("fn a() { vec![{ eprintln!(\"x\"); 1 }]; }", "`eprintln!`"),
            ("fn a() { writeln!(std::io::stderr(), \"x\"); }", "`io::stderr`"),
            ("fn a() { io::stdout().lock().write_all(b\"x\"); }", "`io::stdout`"),
            ("use std::io::{self, stderr as out};", "`io::stderr`"),
            ("fn a() { File::create(\"/dev/tty\"); }", "`/dev/tty`"),
            ("fn a() { unsafe { libc::write(2, p, 1) }; }", "`libc::write`"),
            ("use nix::unistd::write;", "`unistd::write`"),
            ("const OUT: i32 = libc::STDERR_FILENO;", "`STDERR_FILENO`"),
            ("#[expect(clippy::print_stdout, reason = \"x\")] fn a() {}", "`print_stdout`"),
            ("#![allow(clippy::disallowed_methods)]", "`disallowed_methods`"),
            ("impl A { fn a(&self) { print!(\"x\") } }", "`print!`"),
        ] {
            let found = look(&[("a.rs", text)], &[]);
            assert!(found.contains(&format!("a.rs: {way}")), "{text}: {found:?}");
            assert_eq!(look(&[("a.rs", text)], &[("a.rs", "here")]), Vec::<String>::new(), "{text}");
        }
    }

    /// Make sure that what writes elsewhere passes, and tests, too.
    #[test]
    fn other_writing_passes() {
        for text in [
            "fn a(out: &mut dyn Write) { writeln!(out, \"println\"); out.write_all(b\"x\"); }",
            "/// Like `println!`.\nfn a() { terminal::print_line(\"x\"); }",
            "#[cfg(test)] mod tests { fn a() { println!(\"x\"); } }",
            "#[test] fn a() { eprintln!(\"x\"); }",
            "fn a() { command.stdout(Stdio::piped()); let said = output.stderr; }",
            "fn a() { format!(\"{}\", stderr) }",
        ] {
            assert_eq!(look(&[("a.rs", text)], &[]), Vec::<String>::new(), "{text}");
        }
    }

    /// An unneeded permission is a breach.
    #[test]
    fn permissions_are_needed() {
        assert_eq!(look(&[("a.rs", "fn a() {}")], &[("a.rs", "once")]), ["a.rs may write there, and does not"]);
    }
}
