//! Call stacks as a trie: what two stacks have in common is there once.

use crate::hash::HashMap;
use crate::model::{Stack, StackEnd, end_text};
use crate::text::frame::{Frame, OwnedFrame};

/// Nodes at most.
const MAX_NODES: usize = 200_000;
/// Bytes of the texts of frames at most.
const MAX_TEXT: usize = 4 << 20;

/// The trie. Node 0 is the root, and stands for no stack; a stack is the node of its innermost frame.
#[derive(Debug)]
pub(super) struct Trie {
    /// Node of the caller.
    pub(super) parent: Vec<u32>,
    /// Number of the frame.
    pub(super) frame: Vec<u32>,
    /// The frames.
    pub(super) frames: Vec<OwnedFrame>,
    /// Stacks of which inner frames are left out, since there was no room.
    pub(super) cut: u64,
    children: HashMap<(u32, u32), u32>,
    numbers: HashMap<OwnedFrame, u32>,
    stacks: HashMap<Stack, u32>,
    text: usize,
    room: (usize, usize),
}

impl Trie {
    pub(super) fn new() -> Self {
        Self::with_room(MAX_NODES, MAX_TEXT)
    }

    fn with_room(nodes: usize, text: usize) -> Self {
        let root = Frame { name: "", file: "", line: 0, python: false };
        Self {
            parent: vec![0],
            frame: vec![0],
            frames: vec![root.into()],
            cut: 0,
            children: HashMap::default(),
            numbers: HashMap::default(),
            stacks: HashMap::default(),
            text: 0,
            room: (nodes, text),
        }
    }

    /// The node of a stack. What finds no room ends at its last frame that does.
    pub(super) fn node(&mut self, stack: Option<Stack>) -> u32 {
        let Some(stack) = stack else { return 0 };
        if let Some(known) = self.stacks.get(&stack) {
            return *known;
        }
        let frames = stack.frames();
        let why = end_frame(stack.end()).filter(|_| !frames.is_empty());
        let mut node = 0;
        let outermost_first = why.into_iter().chain(frames.iter().rev().map(|text| Frame::of(text)));
        for frame in outermost_first {
            let Some(child) = self.child(node, frame.into()) else {
                self.cut += 1;
                break;
            };
            node = child;
        }
        self.stacks.insert(stack, node);
        node
    }

    fn child(&mut self, parent: u32, frame: OwnedFrame) -> Option<u32> {
        let known = self.numbers.get(&frame).copied();
        if let Some(child) = known.and_then(|number| self.children.get(&(parent, number))) {
            return Some(*child);
        }
        let bytes = if known.is_some() { 0 } else { frame.name.len() + frame.file.len() };
        if self.parent.len() >= self.room.0 || self.text + bytes > self.room.1 {
            return None;
        }
        let number = known.unwrap_or_else(|| {
            self.text += bytes;
            self.frames.push(frame.clone());
            self.numbers.insert(frame, self.frames.len() as u32 - 1);
            self.frames.len() as u32 - 1
        });
        let child = self.parent.len() as u32;
        self.parent.push(parent);
        self.frame.push(number);
        self.children.insert((parent, number), child);
        Some(child)
    }
}

/// Stands for the callers of a stack that is cut, or not certain.
pub(super) fn end_frame(end: StackEnd) -> Option<Frame<'static>> {
    let file = if end == StackEnd::OneOfSeveral { "[uncertain]" } else { "[truncated]" };
    end_text(end).map(|why| Frame { name: why, file, line: 0, python: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StackEnd;

    fn stack(frames: &[&str], end: StackEnd) -> Stack {
        Stack::keep(frames.iter().copied(), end)
    }

    fn path(trie: &Trie, mut node: u32) -> Vec<&str> {
        let mut names = Vec::new();
        while node != 0 {
            names.push(trie.frames[trie.frame[node as usize] as usize].name.as_ref());
            node = trie.parent[node as usize];
        }
        names
    }

    /// main → f → g and main → f → h: two stacks, four nodes below the root.
    #[test]
    fn common_callers_are_there_once() {
        let mut trie = Trie::new();
        let g = trie.node(Some(stack(&["g", "f", "main"], StackEnd::Root)));
        let h = trie.node(Some(stack(&["h", "f", "main"], StackEnd::Root)));
        assert_eq!((trie.parent.len(), trie.node(None)), (5, 0));
        assert_eq!((path(&trie, g), path(&trie, h)), (vec!["g", "f", "main"], vec!["h", "f", "main"]));
        assert_eq!(trie.node(Some(stack(&["g", "f", "main"], StackEnd::Root))), g);
        // A cut one is another place, and marked.
        let cut = trie.node(Some(stack(&["g", "f", "main"], StackEnd::Fault)));
        assert_eq!(path(&trie, cut)[3], "memory of the program could not be read");
    }

    /// Beyond the limit the innermost frames are dropped, and counted.
    #[test]
    fn a_full_trie_cuts_inner_frames() {
        let mut trie = Trie::with_room(3, 100);
        let node = trie.node(Some(stack(&["trie c", "trie b", "trie a"], StackEnd::Root)));
        assert_eq!((path(&trie, node), trie.cut), (vec!["trie b", "trie a"], 1));
        let mut trie = Trie::with_room(100, 10);
        let node = trie.node(Some(stack(&["trie c", "trie b", "trie a"], StackEnd::Root)));
        assert_eq!((path(&trie, node), trie.cut), (vec!["trie a"], 1));
    }
}
