//! Places that are the same in every process.

use crate::hash::HashMap;
use crate::model::{Stack, Stacks};

/// Most places in the cache; when full, it is emptied.
const MAX_REMEMBERED: usize = 1 << 18;

/// Leaves the addresses out of stacks.
#[derive(Debug, Default)]
pub(in crate::analyses) struct Places(HashMap<Stacks, Stacks>);

impl Places {
    /// The place of a stack: the same wherever the kernel has put the modules.
    pub(in crate::analyses) fn of(&mut self, stacks: Stacks) -> Stacks {
        if stacks.native.is_none() && stacks.mixed.is_none() {
            return stacks;
        }
        if let Some(known) = self.0.get(&stacks) {
            return *known;
        }
        let (native, mixed) = (stacks.native.map(everywhere), stacks.mixed.map(everywhere));
        let place = Stacks { native, mixed, ..stacks };
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(stacks, place);
        place
    }
}

/// The stack as it is in every process.
fn everywhere(stack: Stack) -> Stack {
    let frames: Vec<String> = stack.frames().iter().map(|text| without_address(text)).collect();
    stack.keep_beside(frames.iter().map(String::as_str), stack.end())
}

/// `module(function+0x12) [0x7f…] at file:line` without the part in brackets, and `[0x7f…]` without the number.
fn without_address(frame: &str) -> String {
    if frame.starts_with("[0x") {
        return "[unknown]".to_owned();
    }
    let Some((head, tail)) = frame.rsplit_once(") [0x") else { return frame.to_owned() };
    let rest = tail.split_once(']').map_or("", |(_, rest)| rest);
    format!("{head}){rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StackEnd;

    #[test]
    fn addresses_are_left_out() {
        for (frame, place) in [
            ("libc.so.6(qsort+0x1f) [0x7f123456]", "libc.so.6(qsort+0x1f)"),
            ("app(f(int)+0x4) [0x7f123456] at /src/a.cpp:7", "app(f(int)+0x4) at /src/a.cpp:7"),
            ("app(size) [inlined] at a.cpp:7", "app(size) [inlined] at a.cpp:7"),
            ("[0x7f123456]", "[unknown]"),
            ("halMemAlloc", "halMemAlloc"),
            ("<lost>", "<lost>"),
        ] {
            assert_eq!(without_address(frame), place);
        }
    }

    /// The same code of two processes is one place; Python stays as it is, and so does why a stack ends.
    #[test]
    fn processes_have_places_in_common() {
        let mut places = Places::default();
        let python = Some(Stack::keep(["a.py(3): f"], StackEnd::Root));
        let at = |text: &str, end| {
            let native = Some(Stack::keep([text, "main"], end));
            Stacks { native, python, mixed: Some(Stack::keep([text, "a.py(3): f", "main"], end)) }
        };
        let one = places.of(at("x(f+0x1) [0x10]", StackEnd::Root));
        assert_eq!(one, places.of(at("x(f+0x1) [0x20]", StackEnd::Root)));
        assert_ne!(one, places.of(at("x(f+0x2) [0x10]", StackEnd::Root)));
        assert_ne!(one, places.of(at("x(f+0x1) [0x10]", StackEnd::Depth)));
        assert_eq!(one.python, python);
        let alone = Stacks { python, ..Stacks::default() };
        assert_eq!(places.of(alone), alone);
    }
}
