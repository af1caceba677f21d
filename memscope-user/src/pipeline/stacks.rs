//! The texts behind the ids of stacks.
//!
//! Stacks and symbols are filed as they arrive, code objects in time order, and a call's ids are looked up in the
//! call's turn. So the order in which several processors' records arrive does not matter.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU64;

use memscope_common::PythonFrame;

use super::mixed::{self, NativeFrame};
use super::recent::Recent;
use crate::capture::{Function, Symbol};
use crate::decode::{self, CodeText, Frames};
use crate::hash::HashMap;
use crate::model::{CutStacks, Kept, Name, Stack, StackEnd, Stacks, end_text};
use crate::python;

/// Fewest stacks kept, unless they are very deep. Stacks in use are not forgotten.
const MAX_STACKS: usize = 128 << 10;
/// Fewest frames kept of the stacks.
const MAX_FRAMES: usize = 16 << 20;
/// Fewest addresses with kept symbols.
const MAX_SYMBOLS: usize = 512 << 10;
/// Fewest code objects kept of one process.
const MAX_CODES: usize = 16 << 10;

/// Placeholder of a stack without a record.
const LOST: &str = "<lost>";
/// Stands for a code object that never came.
const UNKNOWN_CODE: &str = "<unknown code>";

/// A code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    file: String,
    name: String,
    first_line: u32,
    version: u8,
    lines: Option<Box<[u8]>>,
}

impl Code {
    pub(super) fn of(code: &decode::Code<'_>) -> Self {
        Self {
            file: text(code.file),
            name: text(code.name),
            first_line: code.first_line,
            version: code.version,
            lines: code.lines.map(Box::from),
        }
    }

    /// As msMemScope writes it (contract §3.2); `?` for an unknown line.
    fn frame(&self, last_instruction: u32) -> String {
        let line = self
            .lines
            .as_deref()
            .and_then(|lines| python::line(self.version, lines, self.first_line, last_instruction));
        let line = line.map_or_else(|| Cow::Borrowed("?"), |line| Cow::Owned(line.to_string()));
        format!("{}({line}): {}", self.file, self.name)
    }
}

/// A text of Python; a cut one ends with `…`.
fn text(text: CodeText<'_>) -> String {
    let mut out = python::text(text.bytes, text.kind);
    if text.cut {
        out.push('…');
    }
    out
}

/// Code objects of one process, by address and fingerprint.
#[derive(Clone, Debug)]
pub(super) struct Codes(Recent<(u64, u32), std::sync::Arc<Code>>);

impl Default for Codes {
    fn default() -> Self {
        Self(Recent::new(MAX_CODES))
    }
}

impl Codes {
    pub(super) fn insert(&mut self, address: u64, fingerprint: u32, code: std::sync::Arc<Code>) {
        self.0.insert((address, fingerprint), code);
    }
}

/// The contents of a stack's record.
#[derive(Debug)]
struct Filed {
    generation: u64,
    end: StackEnd,
    frames: FiledFrames,
}

#[derive(Debug)]
enum FiledFrames {
    Native(Box<[u64]>),
    Python(Box<[PythonFrame]>),
}

/// The symbol at an address.
#[derive(Debug)]
struct Place {
    /// Innermost first.
    lines: Box<[String]>,
    /// See [`NativeFrame`].
    evaluates: bool,
}

/// Which native stack a call has.
#[derive(Debug)]
pub(super) struct NativeOf {
    pub(super) id: NonZeroU64,
    /// Row and name of its function, if that is not on the stack any more: it comes first, only with its name.
    pub(super) returned: Option<(u16, Name)>,
}

impl NativeOf {
    /// Row 0 is none.
    fn key(&self) -> (NonZeroU64, u16) {
        (self.id, self.returned.as_ref().map_or(0, |(row, _)| *row))
    }
}

/// Which Python stack a call has.
#[derive(Clone, Copy, Debug)]
pub(super) struct PythonOf<'a> {
    pub(super) id: NonZeroU64,
    /// Part of the key: after a fork, code objects of one process are not those of the other.
    pub(super) pid: u32,
    /// Code objects of the process.
    pub(super) codes: Option<&'a Codes>,
}

/// A native and a Python stack, by their keys.
type Both = ((NonZeroU64, u16), (u32, NonZeroU64));

/// All stacks of a trace.
#[derive(Debug)]
pub(super) struct StackTable {
    /// Owns the stacks below.
    pub(super) kept: Kept,
    filed: Recent<NonZeroU64, Filed>,
    /// Frames of stacks filed since the oldest were forgotten.
    young_frames: usize,
    /// By generation and address.
    symbols: Recent<(u64, u64), Place>,
    native: Recent<(NonZeroU64, u16), Stack>,
    python: Recent<(u32, NonZeroU64), Stack>,
    /// `None`: stacks are not merged. Those that cannot be merged are `None` inside.
    mixed: Option<Recent<Both, Option<Stack>>>,
    /// Calls with a stack that never had a record.
    pub(super) lost: u64,
    /// Calls with a stack that ends early, by its kind and reason.
    cut: BTreeMap<(&'static str, StackEnd), u64>,
}

impl StackTable {
    /// Without any stack. `mixed`: stacks of calls that have both are merged, too.
    pub(super) fn new(mixed: bool, kept: Kept) -> Self {
        Self {
            kept,
            filed: Recent::new(MAX_STACKS),
            young_frames: 0,
            symbols: Recent::new(MAX_SYMBOLS),
            native: Recent::new(MAX_STACKS),
            python: Recent::new(MAX_STACKS),
            mixed: mixed.then(|| Recent::new(MAX_STACKS)),
            lost: 0,
            cut: BTreeMap::new(),
        }
    }

    /// Keeps stacks in a further run from here on. Gives the owner of those before; `None`: there is no further run.
    pub(super) fn renew(&mut self) -> Option<Kept> {
        let next = self.kept.next()?;
        (self.native, self.python) = (Recent::new(MAX_STACKS), Recent::new(MAX_STACKS));
        self.mixed = self.mixed.as_ref().map(|_| Recent::new(MAX_STACKS));
        Some(std::mem::replace(&mut self.kept, next))
    }

    /// Calls with stacks that end early.
    pub(super) fn cut(&self) -> Vec<CutStacks> {
        let line = |(&(kind, end), &count): (&(&'static str, StackEnd), &u64)| {
            end_text(end).map(|reason| CutStacks { kind, reason, count })
        };
        self.cut.iter().filter_map(line).collect()
    }

    /// Takes a stack's record.
    pub(super) fn file(&mut self, stack: &decode::Stack<'_>) {
        let frames = match stack.frames {
            Frames::Native(_) => FiledFrames::Native(stack.frames.addresses().collect()),
            Frames::Python(_) => FiledFrames::Python(stack.frames.python().collect()),
        };
        self.young_frames += match &frames {
            FiledFrames::Native(frames) => frames.len(),
            FiledFrames::Python(frames) => frames.len(),
        };
        if self.young_frames > MAX_FRAMES {
            self.filed.age();
            self.young_frames = 0;
        }
        self.filed.insert(stack.id, Filed { generation: stack.generation, end: stack.end, frames });
    }

    /// Takes symbols.
    pub(super) fn symbols(&mut self, generation: u64, symbols: &[Symbol]) {
        for symbol in symbols {
            let evaluates = symbol.functions.iter().any(|f| !f.inlined && mixed::evaluates(&f.name));
            self.symbols.insert((generation, symbol.address), Place { lines: lines(symbol), evaluates });
        }
    }

    /// The stacks of a call.
    pub(super) fn find(&mut self, native: Option<&NativeOf>, python: Option<PythonOf<'_>>) -> Stacks {
        let mut stacks =
            Stacks { native: native.map(|of| self.native(of)), python: python.map(|of| self.python(of)), mixed: None };
        for (kind, stack) in [("C", stacks.native), ("Python", stacks.python)] {
            if let Some(end) = stack.map(Stack::end).filter(|end| ends_early(*end)) {
                *self.cut.entry((kind, end)).or_default() += 1;
            }
        }
        if let (Some(native), Some(python), true) = (native, python, self.mixed.is_some()) {
            stacks.mixed = self.mixed(native, python);
        }
        stacks
    }

    fn native(&mut self, of: &NativeOf) -> Stack {
        let NativeOf { id, returned } = of;
        let key = of.key();
        if let Some(known) = self.native.refresh(&key) {
            return *known;
        }
        let own = returned.as_ref().map(|(_, name)| name.as_str());
        let Some(Filed { generation, end, frames: FiledFrames::Native(addresses) }) = self.filed.refresh(id) else {
            self.lost += 1;
            return self.kept.stack(own.into_iter().chain([LOST]), StackEnd::Root);
        };
        let mut texts: Vec<Cow<'_, str>> = own.map(Cow::Borrowed).into_iter().collect();
        for address in addresses {
            match self.symbols.get(&(*generation, *address)) {
                Some(place) => texts.extend(place.lines.iter().map(|line| Cow::Borrowed(line.as_str()))),
                None => texts.push(Cow::Owned(format!("[{address:#x}]"))),
            }
        }
        let stack = self.kept.stack(texts.iter().map(AsRef::as_ref), *end);
        // Symbols in use must not be forgotten before the stacks that use them.
        for address in addresses {
            self.symbols.refresh(&(*generation, *address));
        }
        self.native.insert(key, stack);
        stack
    }

    fn python(&mut self, PythonOf { id, pid, codes }: PythonOf<'_>) -> Stack {
        if let Some(known) = self.python.refresh(&(pid, id)) {
            return *known;
        }
        let Some(Filed { end, frames: FiledFrames::Python(frames), .. }) = self.filed.refresh(&id) else {
            self.lost += 1;
            return self.kept.stack([LOST], StackEnd::Root);
        };
        let code = |frame: &PythonFrame| codes.and_then(|codes| codes.0.get(&(frame.address(), frame.fingerprint)));
        let mut texts: HashMap<PythonPlace, Cow<'static, str>> = HashMap::default();
        let mut complete = true;
        for frame in frames {
            texts.entry(place(frame)).or_insert_with(|| {
                let known = code(frame).map(|code| Cow::Owned(code.frame(frame.last_instruction)));
                complete &= known.is_some();
                known.unwrap_or(Cow::Borrowed(UNKNOWN_CODE))
            });
        }
        let text = |frame| texts.get(&place(frame)).map_or(UNKNOWN_CODE, AsRef::as_ref);
        let stack = self.kept.stack(frames.iter().map(text), *end);
        // The code object may still come.
        if complete {
            self.python.insert((pid, id), stack);
        }
        stack
    }

    /// Both in one; both were found before.
    fn mixed(&mut self, native: &NativeOf, python: PythonOf<'_>) -> Option<Stack> {
        let key = (native.key(), (python.pid, python.id));
        if let Some(known) = self.mixed.as_mut()?.refresh(&key) {
            return *known;
        }
        let merged =
            self.merge(native, python).map(|(lines, end)| self.kept.stack(lines.iter().map(String::as_str), end));
        // As above.
        if self.python.get(&key.1).is_some() {
            self.mixed.as_mut()?.insert(key, merged);
        }
        merged
    }

    fn merge(&self, native: &NativeOf, python: PythonOf<'_>) -> Option<(Vec<String>, StackEnd)> {
        let Some(Filed { generation, end, frames: FiledFrames::Native(addresses) }) = self.filed.get(&native.id) else {
            return None;
        };
        let Some(Filed { end: python_end, frames: FiledFrames::Python(frames), .. }) = self.filed.get(&python.id)
        else {
            return None;
        };
        let own = native.returned.as_ref().map(|(_, name)| [name.as_str().to_owned()]);
        let nameless: Vec<[String; 1]> = addresses.iter().map(|address| [format!("[{address:#x}]")]).collect();
        let own = own.iter().map(|lines| NativeFrame { lines, evaluates: false });
        let others = addresses.iter().zip(&nameless).map(|(address, nameless)| {
            self.symbols.get(&(*generation, *address)).map_or(
                NativeFrame { lines: nameless, evaluates: false },
                |Place { lines, evaluates }| NativeFrame { lines, evaluates: *evaluates },
            )
        });
        let lines = self.python.get(&(python.pid, python.id))?.frames();
        if lines.len() != frames.len() {
            return None;
        }
        let frames: Vec<mixed::PythonFrame<'_>> = lines
            .iter()
            .zip(frames)
            .map(|(line, frame)| mixed::PythonFrame { line, is_entry: frame.is_entry() })
            .collect();
        mixed::merge((&own.chain(others).collect::<Vec<_>>(), *end), (&frames, *python_end))
    }
}

/// Whether frames may be missing, other than by the requested depth.
const fn ends_early(end: StackEnd) -> bool {
    match end {
        StackEnd::Root | StackEnd::Depth | StackEnd::NotPython | StackEnd::OneOfSeveral => false,
        StackEnd::Fault
        | StackEnd::NoRule
        | StackEnd::NoUnwindInfo
        | StackEnd::NoProgress
        | StackEnd::Busy
        | StackEnd::BadState
        | StackEnd::NoInterpreter => true,
    }
}

type PythonPlace = (u64, u32, u32);

const fn place(frame: &PythonFrame) -> PythonPlace {
    (frame.address(), frame.fingerprint, frame.last_instruction)
}

/// Lines of an address, as glibc writes them (contract §3.2): `module(function+0x12) [0x7f…]`. Functions inlined there
/// have a line each before it.
fn lines(symbol: &Symbol) -> Box<[String]> {
    let Symbol { address, module, module_offset, functions } = symbol;
    if functions.is_empty() {
        let line = match module.as_str() {
            "" => format!("[{address:#x}]"),
            module => format!("{module}(+{module_offset:#x}) [{address:#x}]"),
        };
        return Box::new([line]);
    }
    let line = |function: &Function| {
        let Function { name, offset, source, inlined } = function;
        let source = source.as_ref().map(|(file, line)| format!(" at {file}:{line}")).unwrap_or_default();
        if *inlined {
            return format!("{module}({name}) [inlined]{source}");
        }
        format!("{module}({name}+{offset:#x}) [{address:#x}]{source}")
    };
    functions.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, offset: u64) -> Function {
        Function { name: name.to_owned(), offset, source: None, inlined: false }
    }

    /// As `backtrace_symbols` of glibc 2.36 printed these kinds of addresses.
    #[test]
    fn lines_are_those_of_glibc() {
        let of = |module: &str, functions: &[Function]| {
            let functions = functions.to_vec();
            lines(&Symbol { address: 0x7f12_3456, module: module.to_owned(), module_offset: 0x2456, functions })
                .join("\n")
        };
        assert_eq!(of("libc.so.6", &[function("qsort", 0x1f)]), "libc.so.6(qsort+0x1f) [0x7f123456]");
        assert_eq!(of("libc.so.6", &[]), "libc.so.6(+0x2456) [0x7f123456]");
        assert_eq!(of("", &[]), "[0x7f123456]");
        let source = Some(("/src/a.cpp".to_owned(), 7));
        let inlined = Function { source: source.clone(), inlined: true, ..function("size", 0) };
        let around = Function { source, ..function("f(int)", 4) };
        assert_eq!(
            of("app", &[inlined, around]),
            "app(size) [inlined] at /src/a.cpp:7\napp(f(int)+0x4) [0x7f123456] at /src/a.cpp:7"
        );
    }
}
