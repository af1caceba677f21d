//! Native and Python frames of one call as one stack.
//!
//! The interpreter runs Python frames in one of its native functions. Python code that calls Python code stays in the
//! same native frame (from 3.11 on); a call from C gets a new one. So the native frames of that function and the Python
//! frames called from C are equal in number and order, and each native one is replaced by the Python frames it ran. If
//! the numbers differ the stacks are not merged: a wrong place is worse than none.

use memscope_common::StackEnd;

use crate::model::end_text;

/// A native frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeFrame<'a> {
    /// Its lines, innermost first.
    pub(super) lines: &'a [String],
    /// It is the interpreter's, and runs Python frames.
    pub(super) evaluates: bool,
}

/// A Python frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct PythonFrame<'a> {
    /// Its line.
    pub(super) line: &'a str,
    /// C has called it.
    pub(super) is_entry: bool,
}

/// Whether this is the interpreter's function, or a part that a compiler has split off.
pub(super) fn evaluates(function: &str) -> bool {
    const EVALUATION: &str = "_PyEval_EvalFrameDefault";
    function.strip_prefix(EVALUATION).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The frames of both, innermost first, and the end of the merged stack. Where one of them ends early, a line has the
/// reason, and the other one continues. `None`: the native frames cannot be matched to Python frames.
pub(super) fn merge(
    native: (&[NativeFrame<'_>], StackEnd),
    python: (&[PythonFrame<'_>], StackEnd),
) -> Option<(Vec<String>, StackEnd)> {
    let ((native, native_end), (python, python_end)) = (native, python);
    let evaluations = native.iter().filter(|frame| frame.evaluates).count();
    let entries = python.iter().filter(|frame| frame.is_entry).count();
    let fits = match (native_end, python_end) {
        (StackEnd::Root, StackEnd::Root) => {
            evaluations == entries && python.last().is_none_or(|outermost| outermost.is_entry)
        }
        (StackEnd::Root, StackEnd::Depth) => evaluations > entries,
        (_, StackEnd::Root) => evaluations <= entries,
        (StackEnd::Depth, StackEnd::Depth) => true,
        _ => false,
    };
    if !fits {
        return None;
    }
    let mut lines = Vec::new();
    let mut rest = python;
    let mut is_cut = python_end == StackEnd::Depth;
    for frame in native {
        if !frame.evaluates {
            lines.extend_from_slice(frame.lines);
            continue;
        }
        let (group, further) = first_group(rest);
        lines.extend(group.iter().map(|frame| frame.line.to_owned()));
        rest = further;
        if group.last().is_none_or(|outermost| !outermost.is_entry) {
            // Behind the last known Python frame.
            if std::mem::take(&mut is_cut) {
                lines.push(gap("Python", python_end));
            }
            lines.extend_from_slice(frame.lines);
        }
    }
    if native_end != StackEnd::Root && !rest.is_empty() {
        lines.push(gap("C", native_end));
        lines.extend(rest.iter().map(|frame| frame.line.to_owned()));
        return Some((lines, python_end));
    }
    Some((lines, native_end))
}

/// The frames that one native frame has run, and all others.
fn first_group<'a, 'b>(frames: &'a [PythonFrame<'b>]) -> (&'a [PythonFrame<'b>], &'a [PythonFrame<'b>]) {
    let len = frames.iter().position(|frame| frame.is_entry).map_or(frames.len(), |at| at + 1);
    frames.split_at(len)
}

/// Placeholder of unknown frames.
fn gap(of: &str, end: StackEnd) -> String {
    format!("<further frames of {of}: {}>", end_text(end).unwrap_or("not known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: StackEnd = StackEnd::Root;
    const DEPTH: StackEnd = StackEnd::Depth;

    /// Native frames by their letters, `E` for the interpreter's; Python frames as well, upper case where C has called them.
    fn merged(native: (&str, StackEnd), python: (&str, StackEnd)) -> Option<(String, StackEnd)> {
        let lines: Vec<[String; 1]> = native.0.chars().map(|letter| [letter.to_string()]).collect();
        let frames: Vec<NativeFrame<'_>> =
            lines.iter().map(|line| NativeFrame { lines: line, evaluates: line[0] == "E" }).collect();
        let texts: Vec<String> = python.0.chars().map(|letter| letter.to_string()).collect();
        let python_frames: Vec<PythonFrame<'_>> =
            texts.iter().map(|line| PythonFrame { line, is_entry: line.chars().all(char::is_uppercase) }).collect();
        let merged = merge((&frames, native.1), (&python_frames, python.1))?;
        Some((merged.0.iter().map(|line| if line.len() > 1 { "|" } else { line }).collect(), merged.1))
    }

    fn whole(text: &str) -> (String, StackEnd) {
        (text.to_owned(), WHOLE)
    }

    #[test]
    fn python_frames_stand_where_they_run() {
        assert_eq!(merged(("maEbcEm", WHOLE), ("pqRsT", WHOLE)), Some(whole("mapqRbcsTm")));
        assert_eq!(merged(("aEEb", WHOLE), ("PQ", WHOLE)), Some(whole("aPQb")));
        assert_eq!(merged(("ab", WHOLE), ("", WHOLE)), Some(whole("ab")));
    }

    #[test]
    fn what_does_not_fit_is_left() {
        assert_eq!(merged(("aEb", WHOLE), ("PQ", WHOLE)), None);
        assert_eq!(merged(("aEEb", WHOLE), ("P", WHOLE)), None);
        // The outermost frame belongs to none.
        assert_eq!(merged(("aEb", WHOLE), ("Pq", WHOLE)), None);
        assert_eq!(merged(("aEEEb", DEPTH), ("PQ", WHOLE)), None);
        assert_eq!(merged(("aEb", WHOLE), ("", StackEnd::NotPython)), None);
        assert_eq!(merged(("aEb", WHOLE), ("P", StackEnd::OneOfSeveral)), None);
        assert_eq!(merged(("aEb", WHOLE), ("P", StackEnd::BadState)), None);
        // The interpreter runs more frames than are known: with equal numbers none would be left out.
        assert_eq!(merged(("aEb", WHOLE), ("P", DEPTH)), None);
    }

    /// Python frames further out than the last native one come behind a gap.
    #[test]
    fn native_frames_end_early() {
        assert_eq!(merged(("aEb", DEPTH), ("pQrST", WHOLE)), Some(whole("apQb|rST")));
        assert_eq!(merged(("aEb", StackEnd::NoRule), ("pQ", WHOLE)), Some(("apQb".to_owned(), StackEnd::NoRule)));
    }

    /// Native frames further out than the last Python one are shown as they are.
    #[test]
    fn python_frames_end_early() {
        assert_eq!(merged(("aEbEcEd", WHOLE), ("pQr", DEPTH)), Some(whole("apQbr|EcEd")));
        assert_eq!(merged(("aEbEc", WHOLE), ("pQ", DEPTH)), Some(whole("apQb|Ec")));
        assert_eq!(merged(("aEb", DEPTH), ("pQr", DEPTH)), Some(("apQb|r".to_owned(), DEPTH)));
    }

    #[test]
    fn function_of_the_interpreter() {
        assert!(evaluates("_PyEval_EvalFrameDefault"));
        assert!(evaluates("_PyEval_EvalFrameDefault.cold"));
        assert!(!evaluates("_PyEval_EvalFrameDefaultly"));
        assert!(!evaluates("PyEval_EvalFrame"));
    }
}
