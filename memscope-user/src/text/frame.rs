//! Frames of call stacks, apart into function, file and line.

/// A frame without what differs between calls of one function: addresses and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Frame<'a> {
    /// Function; of code without a name its place in the module, `+0x25e2`.
    pub(crate) name: &'a str,
    /// File of the source, or module; empty where it is not known.
    pub(crate) file: &'a str,
    /// Line of the source; 0 where it is not known.
    pub(crate) line: u32,
    /// It is one of Python.
    pub(crate) python: bool,
}

impl<'a> Frame<'a> {
    /// The parts of a frame's text, as stacks have it.
    #[must_use]
    pub(crate) fn of(text: &'a str) -> Self {
        if let Some((place, name)) = text.split_once("): ")
            && let Some((file, line)) = place.rsplit_once('(')
        {
            return Self { name, file, line: line.parse().unwrap_or(0), python: true };
        }
        // `module(function+0x12) [0x7f…] at file:7`: addresses and offsets are of one call and one process.
        let call = text.find(") [").map_or(text, |end| &text[..=end]);
        let Some((file, name)) = call.strip_suffix(')').and_then(|call| call.split_once('(')) else {
            return Self { name: text, file: "", line: 0, python: false };
        };
        let name = if name.starts_with("+0x") { name } else { name.rfind("+0x").map_or(name, |end| &name[..end]) };
        Self { name, file, line: 0, python: false }
    }
}

/// A frame that does not need its text any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnedFrame {
    pub(crate) name: Box<str>,
    pub(crate) file: Box<str>,
    pub(crate) line: u32,
    pub(crate) python: bool,
}

impl From<Frame<'_>> for OwnedFrame {
    fn from(Frame { name, file, line, python }: Frame<'_>) -> Self {
        Self { name: name.into(), file: file.into(), line, python }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_parts() {
        let native = |name, file| Frame { name, file, line: 0, python: false };
        let python = |name, file, line| Frame { name, file, line, python: true };
        let cases = [
            ("libc.so.6(qsort+0x1f) [0x7f12]", native("qsort", "libc.so.6")),
            ("app(operator()(int)+0x4) [0x1] at a.cpp:7", native("operator()(int)", "app")),
            ("app(size) [inlined] at a.cpp:7", native("size", "app")),
            ("[vdso](+0x5) [0x1]", native("+0x5", "[vdso]")),
            ("halMemAlloc", native("halMemAlloc", "")),
            ("/x/a (y).py(12): f.<locals>.<lambda>", python("f.<locals>.<lambda>", "/x/a (y).py", 12)),
            ("/x/a.py(?): f", python("f", "/x/a.py", 0)),
            ("", native("", "")),
        ];
        for (text, frame) in cases {
            assert_eq!(Frame::of(text), frame, "{text}");
        }
    }
}
