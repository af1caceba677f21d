//! Frames: what functions keep while they run, by thread.

use super::{
    Python,
    layout::{Layout, of_object},
    types::Builtin,
};
use crate::holders::source::Mapping;

/// Most interpreters, threads and frames read.
const MAX_INTERPRETERS: usize = 64;
const MAX_THREADS: usize = 4096;
const MAX_FRAMES: usize = 2000;
/// No function has more variables, or room for more values.
const MAX_VARIABLES: u64 = 100_000;
const MAX_STACK: u64 = 10_000;

/// Variables and values of a function that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::holders) struct Frame {
    /// The first variable.
    pub(in crate::holders) start: u64,
    /// Behind the last value.
    pub(in crate::holders) end: u64,
    pub(in crate::holders) code: u64,
}

/// The meaning of a place in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::holders) enum Variable {
    Named(String),
    /// On the evaluation stack: above its top there are left-overs.
    Unnamed,
}

/// What threads of Python run.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Frames, by address.
    pub(super) frames: Vec<Frame>,
    /// What `pthread_self` gives in each thread: a place on its stack.
    pub(super) threads: Vec<u64>,
    /// The words that hold the threads' current contexts, by address, with the number of the thread; 0 if it is not known.
    pub(super) contexts: Vec<(u64, u32)>,
}

impl Python<'_> {
    /// Reads the states of all threads.
    pub(super) fn read_running(&self) -> Running {
        let structs = &self.layout.structs;
        let Running { mut frames, mut threads, mut contexts } = Running::default();
        let mut context_at = None;
        let mut interpreter = self.memory.word_or_0(self.runtime.wrapping_add(structs.interpreters));
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut thread = self.memory.word_or_0(interpreter.wrapping_add(structs.threads));
            while thread != 0 && threads.len() < MAX_THREADS {
                let id = thread.wrapping_add(structs.layout.thread_id.into());
                threads.push(self.memory.word_or_0(id));
                context_at = context_at.or_else(|| self.find_context(thread));
                contexts.extend(context_at.map(|at| (thread.wrapping_add(at), self.thread_number(id))));
                if self.layout.frames_are_objects() {
                    self.frame_objects(thread, &mut frames);
                } else {
                    self.plain_frames(thread, &mut frames);
                }
                thread = self.memory.word_or_0(thread.wrapping_add(structs.next_thread));
            }
            interpreter = self.memory.word_or_0(interpreter.wrapping_add(structs.next_interpreter));
        }
        frames.sort_unstable_by_key(|frame| frame.start);
        contexts.sort_unstable();
        Running { frames, threads, contexts }
    }

    /// Where in the state of a thread its current context is, which differs from version to version: the one word that leads to an object of that
    /// type. A thread without context variables has none.
    fn find_context(&self, thread: u64) -> Option<u64> {
        const WORDS: usize = 64;
        let words = self.memory.words(thread, WORDS)?;
        let is_context = |word: u64| {
            let is_object = word.is_multiple_of(8) && self.memory.mapping(word).is_some_and(Mapping::is_anonymous);
            is_object && self.type_of(word).is_some_and(|ty| ty.builtin == Builtin::Context)
        };
        Some(words.iter().position(|word| is_context(*word))? as u64 * 8)
    }

    /// The kernel's number of a thread: behind what `pthread_self` gives, from 3.11 on.
    fn thread_number(&self, id: u64) -> u32 {
        if self.layout.frames_are_objects() { 0 } else { self.memory.word_or_0(id.wrapping_add(8)) as u32 }
    }

    /// The number of the thread with its current context at a place; 0 if it is not known.
    pub(in crate::holders) fn context_at(&self, place: u64) -> Option<u32> {
        let contexts = &self.running.borrow().contexts;
        let at = contexts.binary_search_by_key(&place, |context| context.0).ok()?;
        Some(contexts[at].1)
    }

    /// Up to 3.10.
    fn frame_objects(&self, thread: u64, frames: &mut Vec<Frame>) -> Option<()> {
        const BACK: u64 = 24;
        const CODE: u64 = 32;
        let mut object = self.memory.word(thread.wrapping_add(self.layout.structs.layout.frame.into()))?;
        for _ in 0..MAX_FRAMES {
            let ty = self.type_of(object).filter(|ty| ty.builtin == Builtin::Frame)?;
            let code = self.memory.word(object.checked_add(CODE)?)?;
            let start = object.checked_add(ty.basic_size)?.checked_sub(8)?;
            frames.push(Frame { start, end: start + self.old_variables(code)? * 8, code });
            object = self.memory.word(object + BACK)?;
        }
        None
    }

    /// Local variables, those of inner functions and those from outside. Values on the stack follow; they are no
    /// variables.
    fn old_variables(&self, code: u64) -> Option<u64> {
        let tuple_len = |at: u64| {
            let tuple = self.memory.word(code.checked_add(at)?)?;
            self.memory.word(tuple.checked_add(16)?)
        };
        let [_, outer, inner] = Layout::CODE_OLD_NAMES;
        let locals = self.memory.half(code.checked_add(Layout::CODE_OLD_LOCALS)?)?;
        Some(u64::from(locals).min(MAX_VARIABLES) + tuple_len(outer)?.min(MAX_STACK) + tuple_len(inner)?.min(MAX_STACK))
    }

    /// From 3.11 on.
    fn plain_frames(&self, thread: u64, frames: &mut Vec<Frame>) -> Option<()> {
        let layout = &self.layout.structs.layout;
        let mut frame = self.memory.word(thread.wrapping_add(layout.frame.into()))?;
        if layout.current_frame != memscope_common::python::NONE {
            frame = self.memory.word(frame.checked_add(layout.current_frame.into())?)?;
        }
        for _ in 0..MAX_FRAMES {
            if frame == 0 {
                return Some(());
            }
            if let Some(code) = self.code_of_frame(frame) {
                let (variables, _, stack) = self.layout.code_counts();
                let count = u64::from(self.memory.half(code + variables)?).min(MAX_VARIABLES)
                    + u64::from(self.memory.half(code + stack)?).min(MAX_STACK);
                let start = frame.checked_add(self.layout.frame_locals())?;
                frames.push(Frame { start, end: start + count * 8, code });
            }
            frame = self.memory.word(frame.checked_add(layout.back.into())?)?;
        }
        None
    }

    /// The code that a frame runs, if it is a frame.
    pub(in crate::holders) fn code_of_frame(&self, frame: u64) -> Option<u64> {
        // The lowest bits may be marks.
        let code = self.memory.word(frame.checked_add(self.layout.frame_code())?)? & !3;
        self.type_of(code).is_some_and(|ty| ty.builtin == Builtin::Code).then_some(code)
    }

    /// The variable at a place in a frame, counted from its first one.
    pub(in crate::holders) fn variable(&self, code: u64, at: u64) -> Variable {
        let name = if self.layout.frames_are_objects() {
            self.old_name(code, at)
        } else {
            let names = self.memory.word(code + Layout::CODE_NAMES);
            names.and_then(|names| self.tuple_text(names, at))
        };
        name.map_or(Variable::Unnamed, Variable::Named)
    }

    fn old_name(&self, code: u64, at: u64) -> Option<String> {
        let word = |at: u64| self.memory.word(code.checked_add(at)?);
        let [locals, outer, inner] = Layout::CODE_OLD_NAMES;
        let inner_count = self.memory.word(word(inner)?.checked_add(16)?)?;
        let local_count = self.memory.half(code + Layout::CODE_OLD_LOCALS)?.into();
        let Some(behind) = at.checked_sub(local_count) else { return self.tuple_text(word(locals)?, at) };
        match behind.checked_sub(inner_count) {
            None => self.tuple_text(word(inner)?, behind),
            Some(at) => self.tuple_text(word(outer)?, at),
        }
    }

    /// The name of a variable that a function has from outside.
    pub(in crate::holders) fn outer_variable(&self, code: u64, at: u64) -> Option<String> {
        if self.layout.frames_are_objects() {
            let [_, outer, _] = Layout::CODE_OLD_NAMES;
            return self.tuple_text(self.memory.word(code.checked_add(outer)?)?, at);
        }
        let (all, outer, _) = self.layout.code_counts();
        let first = self.memory.half(code.checked_add(all)?)?.checked_sub(self.memory.half(code + outer)?)?;
        self.tuple_text(self.memory.word(code + Layout::CODE_NAMES)?, at.checked_add(first.into())?)
    }

    fn tuple_text(&self, tuple: u64, at: u64) -> Option<String> {
        let count = self.memory.word(tuple.checked_add(of_object::SIZE)?)?;
        let items = self.layout.tuple_items();
        let place = (at < count.min(MAX_VARIABLES)).then(|| tuple.checked_add(items + at * 8)).flatten()?;
        self.text(self.memory.word(place)?)
    }

    /// `serve() server.py:88`: name, file and first line of a function.
    pub(in crate::holders) fn code_text(&self, code: u64) -> String {
        let layout = &self.layout.structs.layout;
        let text = |at: u16| {
            let object = self.memory.word(code.wrapping_add(at.into()));
            object.and_then(|object| self.text(object)).unwrap_or_else(|| "?".to_owned())
        };
        let file = text(layout.file);
        let line = self.memory.half(code.wrapping_add(layout.first_line.into())).unwrap_or(0);
        format!("{}() {}:{line}", text(layout.name), file.rsplit('/').next().unwrap_or_default())
    }
}
