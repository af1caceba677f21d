//! The key of a place: the same on every host and in every process that runs the same code.

use crate::{
    agent::series::Place,
    digest::sha256,
    text::user_frames::{self, UserFrame},
};

/// Longest text of a place's frames in a row; the key is of all of them.
const MAX_FRAMES_BYTES: usize = 16 << 10;
const UNKNOWN: &str = "[unknown]";

/// A place as a row has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceText {
    /// Its key.
    pub key: i64,
    /// `native`, `python`, `size`.
    pub kind: &'static str,
    /// The innermost frame of the user's code, or the size.
    pub place: String,
    /// All frames, innermost first, a line each; empty where the place is a size.
    pub frames: String,
}

impl PlaceText {
    /// What a place is.
    #[must_use]
    pub fn of(place: &Place) -> Self {
        let Some(stack) = place.stacks.best() else {
            let key = key_of("size", &place.size_bytes.to_string());
            return Self { key, kind: "size", place: short(place), frames: String::new() };
        };
        let kind = if Some(stack) == place.stacks.python { "python" } else { "native" };
        let frames: Vec<String> = stack.frames().iter().map(|frame| lasting(frame)).collect();
        let mut frames = frames.join("\n");
        let key = key_of(kind, &frames);
        frames.truncate(frames.floor_char_boundary(MAX_FRAMES_BYTES));
        Self { key, kind, place: short(place), frames }
    }
}

/// A place in short: the innermost frame of the user's code, or the size.
#[must_use]
pub fn short(place: &Place) -> String {
    if place.stacks.best().is_none() {
        return format!("{} B", place.size_bytes);
    }
    let own = user_frames::of(place.stacks, 1).pop();
    own.map_or_else(String::new, |UserFrame { at, function }| match function.as_str() {
        "" => lasting(&at),
        function => format!("{at} {function}"),
    })
}

/// The first 64 bits of SHA-256 over the kind and, on lines of their own, the frames; signed, since some engines have no unsigned numbers.
fn key_of(kind: &str, text: &str) -> i64 {
    let digest = sha256(format!("{kind}\n{text}").as_bytes());
    digest.first_chunk().map_or(0, |first| i64::from_be_bytes(*first))
}

/// A frame without what differs between two runs of the same code: addresses, and offsets into memory that is no file. What stays is the
/// module with the function and the offset in it, or the offset in the module; of Python file, line and function.
fn lasting(frame: &str) -> String {
    if frame.starts_with("[0x") && frame.ends_with(']') {
        // Nothing was mapped there.
        return UNKNOWN.to_owned();
    }
    let Some((call, rest)) = frame.split_once(") [0x") else { return frame.to_owned() };
    if call.starts_with("[anon](") {
        return "[anon]".to_owned();
    }
    let line = rest.split_once(']').map_or("", |(_, line)| line);
    format!("{call}){line}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Stack, StackEnd, Stacks};

    fn keep(frames: &[&str]) -> Option<Stack> {
        (!frames.is_empty()).then(|| Stack::keep(frames.iter().copied(), StackEnd::Root))
    }

    fn native(frames: &[&str]) -> Place {
        Place { stacks: Stacks { native: keep(frames), ..Stacks::default() }, size_bytes: 0 }
    }

    fn python(frames: &[&str], native: &[&str]) -> Place {
        Place { stacks: Stacks { python: keep(frames), native: keep(native), mixed: None }, size_bytes: 0 }
    }

    /// The same code at other addresses has the same key; another offset, function or order of frames has another one.
    #[test]
    fn keys_do_not_depend_on_addresses() {
        let one =
            native(&["halMemAlloc", "libruntime.so(+0x25f5) [0x7f13d19625f5]", "serve(main+0x1) [0x5577] at a.cpp:7"]);
        let other =
            native(&["halMemAlloc", "libruntime.so(+0x25f5) [0x7fffd19625f5]", "serve(main+0x1) [0x1] at a.cpp:7"]);
        assert_ne!(one, other);
        assert_eq!(PlaceText::of(&one), PlaceText::of(&other));
        let text = PlaceText::of(&one);
        assert_eq!(text.frames, "halMemAlloc\nlibruntime.so(+0x25f5)\nserve(main+0x1) at a.cpp:7");
        assert_eq!((text.kind, text.place.as_str()), ("native", "serve main"));
        for further in [
            native(&["halMemAlloc", "libruntime.so(+0x25f6) [0x7f13d19625f6]", "serve(main+0x1) [0x5577] at a.cpp:7"]),
            native(&["halMemAlloc", "serve(main+0x1) [0x5577] at a.cpp:7", "libruntime.so(+0x25f5) [0x7f13d19625f5]"]),
            python(&["halMemAlloc", "libruntime.so(+0x25f5)", "serve(main+0x1) at a.cpp:7"], &[]),
        ] {
            assert_ne!(PlaceText::of(&further).key, text.key, "{further:?}");
        }
    }

    /// Code that is in no file has no offset that lasts.
    #[test]
    fn memory_without_a_file_has_no_offset() {
        let one = native(&["f(g+0x1) [0x2]", "[anon](+0x50) [0x7f50]", "[0x7f99]"]);
        let other = native(&["f(g+0x1) [0x3]", "[anon](+0x90) [0x7f90]", "[0x1234]"]);
        assert_eq!(PlaceText::of(&one), PlaceText::of(&other));
        assert_eq!(PlaceText::of(&one).frames, "f(g+0x1)\n[anon]\n[unknown]");
    }

    /// Frames of Python count alone where there are any: two places that differ in native frames have one key.
    #[test]
    fn python_comes_first() {
        let frames = ["/usr/lib/python3/dist-packages/torch/a.py(7): empty", "/srv/train.py(15): step"];
        let (one, other) = (python(&frames, &["f(g+0x1) [0x2]"]), python(&frames, &["f(h+0x1) [0x2]"]));
        assert_eq!(PlaceText::of(&one), PlaceText::of(&other));
        assert_eq!((PlaceText::of(&one).kind, PlaceText::of(&one).place.as_str()), ("python", "train.py:15 step"));
    }

    /// Keys are in files that stay: these are of `sha256sum`, the first 16 digits as a signed number.
    #[test]
    fn keys_never_change() {
        let size = Place { stacks: Stacks::default(), size_bytes: 512 };
        let text = PlaceText::of(&size);
        assert_eq!((text.kind, text.place.as_str(), text.frames.as_str()), ("size", "512 B", ""));
        assert_eq!(text.key, SIZE_512);
        assert_eq!(PlaceText::of(&native(&["halMemAlloc", "serve(main+0x1) [0x5]"])).key, NATIVE);
    }

    /// A long stack is cut in its row, not in its key.
    #[test]
    fn rows_are_bounded() {
        let lines: Vec<String> = (0..40).map(|line| format!("/srv/{}.py({line}): f", "ä".repeat(400))).collect();
        let frames: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (whole, shorter) = (PlaceText::of(&python(&frames, &[])), PlaceText::of(&python(&frames[..39], &[])));
        assert!(whole.frames.len() <= MAX_FRAMES_BYTES);
        assert_eq!(whole.frames, shorter.frames);
        assert_ne!(whole.key, shorter.key);
    }

    const SIZE_512: i64 = -4_665_452_857_589_510_423;
    const NATIVE: i64 = 3_383_290_429_232_237_284;
}
