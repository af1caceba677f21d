//! The frames of a call stack that are the user's own code.

use super::frame::Frame;
use crate::model::Stacks;

/// Parts of paths of Python files that are not the user's: the interpreter's library and installed packages.
const PACKAGES: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python", "<frozen "];
/// Begins of names of libraries that are not the user's: Ascend's, frameworks', the system's.
const LIBRARIES: [&str; 19] = [
    "libacl",
    "libascend",
    "libatb",
    "libruntime",
    "libhccl",
    "libopapi",
    "libnnopbase",
    "libtorch",
    "libc10",
    "libpython",
    "python",
    "libc.so",
    "libc-",
    "libstdc++",
    "libpthread",
    "ld-linux",
    "libffi",
    "libmindspore",
    "_C.",
];

/// A frame of the user's code, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserFrame {
    /// Where: `server.py:15`, or the name of a library or program.
    pub(crate) at: String,
    /// The function; empty if unknown.
    pub(crate) function: String,
}

/// The user's frames of a place, innermost first, at most `most`; of a place without any the innermost ones that there are. Python's, if
/// there are any.
pub(crate) fn of(stacks: Stacks, most: usize) -> Vec<UserFrame> {
    let Some(stack) = stacks.best() else { return Vec::new() };
    let texts = stack.frames();
    let frames: Vec<Frame<'_>> = texts.iter().map(|text| Frame::of(text)).collect();
    let short = |frame: &Frame<'_>| UserFrame::of(*frame);
    let own: Vec<UserFrame> = frames.iter().filter(|frame| is_users(frame)).take(most).map(short).collect();
    if own.is_empty() { frames.iter().take(most).map(short).collect() } else { own }
}

/// File and line of the innermost frame of the user's own code, where that is Python.
#[cfg(feature = "cli")]
pub(crate) fn line_of(stacks: Stacks) -> Option<(String, u32)> {
    let texts = stacks.best()?.frames();
    let own = texts.iter().map(|text| Frame::of(text)).find(is_users)?;
    (own.python && own.line > 0).then(|| (own.file.to_owned(), own.line))
}

fn is_users(frame: &Frame<'_>) -> bool {
    if frame.python {
        return !PACKAGES.iter().any(|part| frame.file.contains(part));
    }
    // The traced function itself has no library.
    !frame.file.is_empty() && !LIBRARIES.iter().any(|name| frame.file.starts_with(name))
}

impl UserFrame {
    fn of(Frame { name, file, line, python }: Frame<'_>) -> Self {
        if python {
            let file = file.rsplit('/').next().unwrap_or(file);
            return Self { at: format!("{file}:{line}"), function: name.to_owned() };
        }
        if file.is_empty() {
            return Self { at: name.to_owned(), function: String::new() };
        }
        // A place in a library without a name means nothing to a reader.
        let function = if name.starts_with("+0x") { "" } else { name };
        Self { at: file.to_owned(), function: function.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Stack, StackEnd};

    fn frames(python: &[&'static str], native: &[&'static str]) -> Vec<(String, String)> {
        let keep =
            |frames: &[&'static str]| (!frames.is_empty()).then(|| Stack::keep(frames.iter().copied(), StackEnd::Root));
        let stacks = Stacks { native: keep(native), python: keep(python), mixed: None };
        of(stacks, 2).into_iter().map(|frame| (frame.at, frame.function)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(at, function)| ((*at).to_owned(), (*function).to_owned())).collect()
    }

    /// Frames of packages and of the interpreter are left out, unless there are no others.
    #[test]
    fn python_of_the_user() {
        let adam = "/usr/lib/python3/dist-packages/torch/optim/adam.py(777): _multi_tensor_adam";
        let frozen = "<frozen importlib>(4): _load";
        let own = "/home/u/my (old) run/train.py(15): Trainer.step";
        assert_eq!(
            frames(&[adam, own, frozen, "main.py(3): <module>"], &["f"]),
            pairs(&[("train.py:15", "Trainer.step"), ("main.py:3", "<module>")])
        );
        assert_eq!(
            frames(&[adam, frozen], &[]),
            pairs(&[("adam.py:777", "_multi_tensor_adam"), ("<frozen importlib>:4", "_load")])
        );
    }

    /// The same of libraries, by the begins of their names.
    #[test]
    fn native_of_the_user() {
        let native = [
            "halMemAlloc",
            "libruntime.so(+0x25f5) [0x7f13d19625f5]",
            "serve(keep_here+0x13) [0x559b]",
            "serve(main+0x1) [0x5]",
        ];
        assert_eq!(frames(&[], &native), pairs(&[("serve", "keep_here"), ("serve", "main")]));
        assert_eq!(frames(&[], &native[..2]), pairs(&[("halMemAlloc", ""), ("libruntime.so", "")]));
        assert_eq!(frames(&[], &[]), []);
    }
}
