//! Patterns of frames: `PLACE: NAME`, with `*` for anything.
//!
//! A place is the end of a path, from a slash on (`torch/optim/*.py` matches every installation's), a name all of a
//! function's name. Frames are the texts of the contract (§3.2): `file(line): name` and `module(symbol+0x…) [0x…]`.

/// Longest pattern that users may write.
const MAX_BYTES: usize = 512;

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    place: Box<str>,
    name: Box<str>,
    /// Where the last part of the name begins.
    last: usize,
}

/// The parts of a frame's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    place: &'a str,
    name: &'a str,
}

impl Pattern {
    /// A pattern of Python frames.
    pub(super) fn python(text: &str) -> Result<Self, String> {
        let (place, name) = text.split_once(": ").ok_or_else(|| {
            format!("`{text}` is no pattern of a Python frame; write `FILE: NAME`, such as `torch/optim/*.py: *.step`")
        })?;
        Self::of(text, place, name)
    }

    /// A pattern of native frames; without a module it means every one.
    pub(super) fn native(text: &str) -> Result<Self, String> {
        let (place, name) = text.split_once(": ").unwrap_or(("*", text));
        Self::of(text, place, name)
    }

    fn of(text: &str, place: &str, name: &str) -> Result<Self, String> {
        let (place, name) = (place.trim(), name.trim());
        if place.is_empty() || name.is_empty() || text.len() > MAX_BYTES {
            return Err(format!(
                "`{}` is no pattern; write `FILE: NAME`, at most {MAX_BYTES} bytes, with `*` for anything",
                text.chars().take(80).collect::<String>()
            ));
        }
        let last = name.rfind('.').map_or(0, |at| at + 1);
        Ok(Self { place: place.into(), name: name.into(), last })
    }

    /// Whether the pattern matches the frame. Before Python 3.11 frames have names without their class or function
    /// (`qualified` is false): then only the last part of the pattern's name counts.
    pub(super) fn matches(&self, frame: Frame<'_>, qualified: bool) -> bool {
        let is_last = || !qualified && glob(&self.name[self.last..], frame.name);
        (glob(&self.name, frame.name) || is_last()) && self.is_at(frame.place)
    }

    fn is_at(&self, place: &str) -> bool {
        if glob(&self.place, place) {
            return true;
        }
        place.match_indices('/').any(|(at, _)| glob(&self.place, &place[at + 1..]))
    }
}

/// Whether a Python frame's name starts with its class or function.
pub(super) fn is_qualified(frame: Frame<'_>) -> bool {
    frame.name.contains('.')
}

/// `file(line): name`.
pub(super) fn python_frame(text: &str) -> Option<Frame<'_>> {
    let (head, name) = text.rsplit_once("): ")?;
    let (place, line) = head.rsplit_once('(')?;
    let is_line = line == "?" || line.bytes().all(|byte| byte.is_ascii_digit());
    is_line.then_some(Frame { place, name })
}

/// `module(symbol+0x…) [0x…]`, or a function's name alone.
pub(super) fn native_frame(text: &str) -> Frame<'_> {
    let Some((place, rest)) = text.split_once('(') else { return Frame { place: "", name: text } };
    let inner = rest.rsplit_once(") [").map_or(rest, |(inner, _)| inner);
    let name = inner.rsplit_once("+0x").map_or(inner, |(name, _)| name);
    Frame { place, name }
}

/// File of a native frame's module, without its path.
pub(super) fn native_module(text: &str) -> &str {
    let place = native_frame(text).place;
    place.rsplit_once('/').map_or(place, |(_, file)| file)
}

/// Whether a text matches a pattern; `*` matches any characters, or none.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    // The last letter settles most texts.
    if pattern.last().is_some_and(|last| *last != b'*' && text.last() != Some(last)) {
        return false;
    }
    let (mut at, mut place) = (0, 0);
    // Where to continue when the text behind the last star does not match: the star takes one more character.
    let mut star = None;
    while place < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(byte) if *byte == text[place] => (at, place) = (at + 1, place + 1),
            _ => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                (at, place) = (star_at + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("a*c", "ac"),
            ("a*c", "abcbc"),
            ("*b*", "abc"),
            ("a**c", "abc"),
            ("*.step", "Adam.step"),
        ] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a", ""), ("a*c", "abcb"), ("*.step", "step"), ("a", "ab"), ("*ab", "aab_")]
        {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn frames_are_taken_apart() {
        let python = |text| python_frame(text).map(|frame| (frame.place, frame.name));
        assert_eq!(python("/a (1)/b.py(12): f.<locals>.g"), Some(("/a (1)/b.py", "f.<locals>.g")));
        assert_eq!(python("b.py(?): f"), Some(("b.py", "f")));
        assert_eq!((python("b.py: f"), python("b.py(x): f"), python("")), (None, None, None));
        let native = |text| (native_frame(text).place, native_frame(text).name);
        assert_eq!(native("libx.so(f(int, g<h>)+0x1f) [0x7f00]"), ("libx.so", "f(int, g<h>)"));
        assert_eq!(native("/usr/lib/libx.so(+0x1f) [0x7f00]"), ("/usr/lib/libx.so", ""));
        assert_eq!(native("halMemAlloc"), ("", "halMemAlloc"));
        assert_eq!(native("[0x9999]"), ("", "[0x9999]"));
        assert_eq!(native_module("/usr/lib/libx.so(+0x1f) [0x7f00]"), "libx.so");
        assert_eq!((native_module("libx.so.1(f+0x1) [0x1]"), native_module("[0x9999]")), ("libx.so.1", ""));
    }

    fn is(pattern: &str, frame: &str, qualified: bool) -> bool {
        Pattern::python(pattern).expect("valid").matches(python_frame(frame).expect("a frame"), qualified)
    }

    /// A file is the end of a path, at a slash; a name is whole, unless frames have only its last part.
    #[test]
    fn files_and_names() {
        let step = "torch/optim/*.py: *.step";
        assert!(is(step, "/usr/lib/python3/torch/optim/adamw.py(7): AdamW.step", true));
        assert!(is(step, "torch/optim/_multi_tensor/x.py(7): X.step", true));
        assert!(!is(step, "/usr/lib/mytorch/optim/adamw.py(7): AdamW.step", true));
        assert!(!is(step, "/usr/lib/torch/optim/adamw.py(7): step", true));
        assert!(is(step, "/usr/lib/torch/optim/adamw.py(7): step", false));
        assert!(!is(step, "/usr/lib/torch/optim/adamw.py(7): substep", false));
        assert!(is("*: f", "/any/where.py(1): f", true));
    }

    #[test]
    fn native_patterns() {
        let is = |pattern: &str, frame| Pattern::native(pattern).expect("valid").matches(native_frame(frame), true);
        let engine =
            "libtorch_cpu.so(torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)+0x10) [0x1]";
        assert!(is("torch::autograd::Engine::*", engine) && is("libtorch*: *thread_main*", engine));
        assert!(!is("libtorch.so: *", engine) && !is("thread_main", engine));
        assert!(is("libhccl*: *", "/usr/local/lib64/libhccl.so(+0x12) [0x1]"));
    }

    #[test]
    fn mistakes_are_reported() {
        for bad in ["", "f", "a.py:f", ": f", "a.py: "] {
            assert!(Pattern::python(bad).is_err(), "{bad}");
        }
        assert!(Pattern::native("").is_err() && Pattern::native(&"x".repeat(600)).is_err());
    }
}
