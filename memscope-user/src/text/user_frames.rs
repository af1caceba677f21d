//! The frames of a call stack that are the user's own code.

use super::frame::Frame;
use crate::model::Stacks;

/// Parts of paths of Python files that are not the user's: the interpreter's library and installed packages.
const PACKAGES: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python", "<frozen "];
/// Parts of paths of packages that allocate for others.
const FRAMEWORKS: [&str; 3] = ["-packages/torch/", "-packages/torch_npu/", "-packages/mindspore/"];
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

/// The user's frames of a place, innermost first, at most `most`; of a place without any those of packages that use a framework, as in a
/// server that is all installed; else the innermost ones. Python's, if there are any.
pub(crate) fn of(stacks: Stacks, most: usize) -> Vec<UserFrame> {
    let Some(stack) = stacks.best() else { return Vec::new() };
    let texts = stack.frames();
    let frames: Vec<Frame<'_>> = texts.iter().map(|text| Frame::of(text)).collect();
    let chosen = |is_meant: &dyn Fn(usize) -> bool| -> Vec<UserFrame> {
        (0..frames.len()).filter(|at| is_meant(*at)).take(most).map(|at| UserFrame::of(frames[at])).collect()
    };
    let kinds: [&dyn Fn(usize) -> bool; 3] = [&|at| is_users(&frames, at), &|at| is_of_package(&frames[at]), &|_| true];
    kinds.into_iter().map(chosen).find(|chosen| !chosen.is_empty()).unwrap_or_default()
}

/// File and line of the innermost frame of the user's own code, where that is Python.
#[cfg(feature = "cli")]
pub(crate) fn line_of(stacks: Stacks) -> Option<(String, u32)> {
    let texts = stacks.best()?.frames();
    let frames: Vec<Frame<'_>> = texts.iter().map(|text| Frame::of(text)).collect();
    let own = (0..frames.len()).find(|at| is_users(&frames, *at)).map(|at| frames[at])?;
    (own.python && own.line > 0).then(|| (own.file.to_owned(), own.line))
}

fn is_users(frames: &[Frame<'_>], at: usize) -> bool {
    let frame = &frames[at];
    if frame.python {
        return !is_installed(frame) && !starts_package(frames, at);
    }
    // The traced function itself has no library.
    !frame.file.is_empty() && !LIBRARIES.iter().any(|name| frame.file.starts_with(name))
}

fn is_installed(frame: &Frame<'_>) -> bool {
    PACKAGES.iter().any(|part| frame.file.contains(part))
}

/// An installed package, but neither a framework nor the interpreter's library.
fn is_of_package(frame: &Frame<'_>) -> bool {
    frame.python && frame.file.contains("-packages/") && !FRAMEWORKS.iter().any(|part| frame.file.contains(part))
}

/// A line without anything of the user's: the script of a command that a package has installed (`bin/vllm`), and what the interpreter's
/// library starts a process with.
fn starts_package(frames: &[Frame<'_>], at: usize) -> bool {
    let (frame, Some(called)) = (&frames[at], at.checked_sub(1).map(|at| &frames[at])) else { return false };
    if frame.name != "<module>" || !is_installed(called) {
        return false;
    }
    let is_command = frame.file.rsplit_once("/bin/").is_some_and(|(_, name)| !name.contains(['/', '.']));
    is_command || (frame.file == "<string>" && called.file.contains("/multiprocessing/"))
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

    /// A server that is all installed: its own package counts, not the framework that it calls, nor the line that starts it.
    #[test]
    fn python_of_an_installed_server() {
        let torch = "/opt/lib/python3.11/site-packages/torch/functional.py(9): zeros";
        let runner = "/opt/lib/python3.11/site-packages/vllm_ascend/worker/model_runner_v1.py(2795): Runner.allocate";
        let worker = "/opt/lib/python3.11/site-packages/vllm_ascend/worker/worker.py(520): NPUWorker.initialize";
        let wanted =
            pairs(&[("model_runner_v1.py:2795", "Runner.allocate"), ("worker.py:520", "NPUWorker.initialize")]);
        let spawn = "/usr/lib/python3.11/multiprocessing/spawn.py(122): spawn_main";
        assert_eq!(frames(&[torch, runner, worker, spawn, "<string>(1): <module>"], &[]), wanted);
        assert_eq!(frames(&[torch, runner, worker, "/opt/bin/vllm(8): <module>"], &[]), wanted);
        // The user's own: a line that is given to the interpreter, and scripts.
        for own in ["<string>(1): <module>", "/opt/bin/serve.py(8): <module>", "/opt/bin/serve(8): main"] {
            assert_eq!(frames(&[torch, own], &[]).len(), 1, "{own}");
        }
        assert_eq!(frames(&["/opt/bin/serve(8): <module>"], &[]), pairs(&[("serve:8", "<module>")]));
        assert_eq!(
            frames(&[torch, spawn], &[]),
            pairs(&[("functional.py:9", "zeros"), ("spawn.py:122", "spawn_main")])
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
