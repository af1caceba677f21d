//! The frames of a call stack that are the user's own code.

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
pub(super) struct UserFrame {
    /// Where: `server.py:15`, or the name of a library or program.
    pub(super) at: String,
    /// The function; empty if unknown.
    pub(super) function: String,
}

/// The user's frames of a place, innermost first, at most `most`; of a place without any the innermost ones that there are. Python's, if
/// there are any.
pub(super) fn of(stacks: Stacks, most: usize) -> Vec<UserFrame> {
    let Some(stack) = stacks.best() else { return Vec::new() };
    let frames = stack.frames();
    let own: Vec<UserFrame> =
        frames.iter().filter(|frame| is_users(frame)).take(most).map(|frame| UserFrame::of(frame)).collect();
    if own.is_empty() { frames.iter().take(most).map(|frame| UserFrame::of(frame)).collect() } else { own }
}

fn is_users(frame: &str) -> bool {
    match python_parts(frame) {
        Some((path, ..)) => !PACKAGES.iter().any(|part| path.contains(part)),
        // `library(function+0x1) [0x2]`; the traced function itself has no library.
        None => frame.contains('(') && !LIBRARIES.iter().any(|name| frame.starts_with(name)),
    }
}

/// Path, line and function of `path(line): function`.
fn python_parts(frame: &str) -> Option<(&str, &str, &str)> {
    let (place, function) = frame.split_once("): ")?;
    let (path, line) = place.rsplit_once('(')?;
    line.bytes().all(|byte| byte.is_ascii_digit()).then_some((path, line, function))
}

impl UserFrame {
    fn of(frame: &str) -> Self {
        if let Some((path, line, function)) = python_parts(frame) {
            let file = path.rsplit('/').next().unwrap_or(path);
            return Self { at: format!("{file}:{line}"), function: function.to_owned() };
        }
        let (library, rest) = frame.split_once('(').unwrap_or((frame, ""));
        let function = rest.split(['+', ')']).next().unwrap_or_default();
        Self { at: library.to_owned(), function: function.to_owned() }
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
