//! Offsets of the fields in the interpreter's structs, by version. From the debug information of release builds for
//! 64-bit machines (3.8 to 3.12); from 3.13 on from the interpreter itself (`_Py_DebugOffsets`).

use memscope_common::{
    PythonLayout,
    python::{CODE_FROM, CODE_WORDS, FRAME_BYTES, LAYOUT_ENTRIES, LAYOUT_TEXTS, NONE, STATE_BYTES},
};

/// What starts the table of an interpreter that describes itself.
pub(crate) const COOKIE: [u8; 8] = *b"xdebugpy";
/// Bytes read of the table.
pub(crate) const TABLE_BYTES: usize = 8 * TABLE_WORDS;
const TABLE_WORDS: usize = 52;

/// The structs of one interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// In `_PyRuntime`: the newest interpreter.
    pub(crate) interpreters: u64,
    /// In an interpreter: the one made before it.
    pub(crate) next_interpreter: u64,
    /// In an interpreter: the newest state of a thread.
    pub(crate) threads: u64,
    /// In a thread's state: the one made before it.
    pub(crate) next_thread: u64,
    /// In a thread's state: its interpreter.
    pub(crate) interpreter: u64,
    /// The layout for the kernel side; fields that depend on the process are 0.
    pub(crate) layout: PythonLayout,
}

const fn bits(from: u32, to: u32) -> u32 {
    (1 << (to + 1)) - (1 << from)
}

/// Up to 3.10 frames are objects.
const fn objects(version: u8, last: u16) -> Offsets {
    let layout = PythonLayout {
        code_words: bits(1, 14),
        thread_id: 176,
        frame: 24,
        current_frame: NONE,
        frame_from: 24,
        frame_len: 88,
        code: 8,
        back: 0,
        last: last - 24,
        owner: NONE,
        instructions: NONE,
        first_line: 40,
        file: 104,
        name: 112,
        lines: 120,
        ascii_at: 48,
        text_at: 72,
        entry: NONE,
        version,
        flags: LAYOUT_TEXTS | LAYOUT_ENTRIES,
        ..PythonLayout::EMPTY
    };
    Offsets { interpreters: 32, next_interpreter: 0, threads: 8, next_thread: 8, interpreter: 16, layout }
}

/// All but `co_flags` and `_co_warmup`, which share a word, and the second one changes.
const WORDS_3_11: u32 = bits(1, 4) | bits(6, 16);

const PYTHON_3_11: PythonLayout = PythonLayout {
    code_words: WORDS_3_11,
    thread_id: 152,
    frame: 56,
    current_frame: 8,
    frame_from: 0,
    frame_len: 72,
    code: 32,
    back: 48,
    last: 56,
    owner: NONE,
    instructions: 184,
    first_line: 72,
    file: 112,
    name: 128,
    lines: 136,
    ascii_at: 48,
    text_at: 72,
    entry: 68,
    version: 11,
    flags: LAYOUT_TEXTS,
    ..PythonLayout::EMPTY
};

/// `co_version`, a number of its own, and the fields for display.
const WORDS_3_12: u32 = 1 << 7 | 1 << 10 | 1 << 13 | 1 << 15 | 1 << 16;

const PYTHON_3_12: PythonLayout = PythonLayout {
    code_words: WORDS_3_12,
    thread_id: 136,
    frame: 56,
    current_frame: 0,
    code: 0,
    back: 8,
    last: 56,
    owner: 70,
    instructions: 192,
    first_line: 68,
    ascii_at: 40,
    text_at: 56,
    entry: NONE,
    version: 12,
    flags: 0,
    ..PYTHON_3_11
};

/// The structs of a version that does not describe itself.
pub(crate) const fn of_version(minor: u8) -> Option<Offsets> {
    const fn newer(threads: u64, layout: PythonLayout) -> Offsets {
        Offsets { interpreters: 40, next_interpreter: 0, threads, next_thread: 8, interpreter: 16, layout }
    }
    match minor {
        8 | 9 => Some(objects(minor, 104)),
        10 => Some(objects(minor, 96)),
        11 => Some(newer(16, PYTHON_3_11)),
        12 => Some(newer(72, PYTHON_3_12)),
        _ => None,
    }
}

/// The structs of an interpreter that describes itself: from the table at the start of `_PyRuntime`.
pub(crate) fn of_table(bytes: &[u8]) -> Result<Offsets, String> {
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let word = |at: usize| words.get(at).copied().ok_or_else(|| "its table of offsets is cut off".to_owned());
    if word(0)? != u64::from_le_bytes(COOKIE) {
        return Err("it has no table of offsets".to_owned());
    }
    let minor = minor(word(1)?)?;
    if word(2)? != 0 {
        return Err(format!("it is a free-threaded build of Python 3.{minor}, which is not supported"));
    }
    // Words of the table: of the runtime's part 3, then those of interpreter, thread, frame and code. From 3.14 on the
    // interpreter has three more, and the frame two.
    let (thread, frame_words) = match minor {
        13 => (19, 6),
        14 => (22, 8),
        _ => return Err(format!("it is Python 3.{minor}, which is not known")),
    };
    let frame = thread + 9;
    let code = frame + frame_words;
    let small = |at: usize| u16::try_from(word(at)?).map_err(|_| "its table of offsets makes no sense".to_owned());
    let owner = small(frame + 5)?;
    let layout = PythonLayout {
        thread_id: small(thread + 5)?,
        frame: small(thread + 4)?,
        current_frame: NONE,
        frame_len: (owner & !7).saturating_add(8),
        back: small(frame + 1)?,
        code: small(frame + 2)?,
        last: small(frame + 3)?,
        owner,
        file: small(code + 1)?,
        name: small(code + 3)?,
        lines: small(code + 4)?,
        first_line: small(code + 5)?,
        instructions: small(code + 9)?,
        version: minor,
        ..PYTHON_3_12
    };
    let offsets = Offsets {
        interpreters: word(5)?,
        next_interpreter: word(8)?,
        threads: word(9)?,
        next_thread: word(thread + 2)?,
        interpreter: word(thread + 3)?,
        layout,
    };
    if is_usable(&offsets) { Ok(offsets) } else { Err("its table of offsets makes no sense".to_owned()) }
}

/// Minor version out of a version number.
pub(crate) fn minor(version: u64) -> Result<u8, String> {
    let (major, minor) = ((version >> 24) as u8, (version >> 16) as u8);
    if major == 3 { Ok(minor) } else { Err(format!("it is Python {major}.{minor}, which is not known")) }
}

/// Whether everything lies where it is read.
fn is_usable(offsets: &Offsets) -> bool {
    const CODE_BYTES: u16 = 8 * CODE_WORDS as u16;
    const MAX: u64 = 1 << 20;
    let Offsets { layout, .. } = offsets;
    let in_state = |offset: u16| offset.is_multiple_of(8) && offset < STATE_BYTES as u16;
    let in_frame = |offset: u16| offset.is_multiple_of(8) && offset < layout.frame_len;
    let in_code = |offset: u16| offset.is_multiple_of(8) && (CODE_FROM..CODE_FROM + CODE_BYTES).contains(&offset);
    // What identifies the code must be where this version has it.
    let same_code = (layout.file, layout.name, layout.lines, layout.first_line)
        == (PYTHON_3_12.file, PYTHON_3_12.name, PYTHON_3_12.lines, PYTHON_3_12.first_line);
    in_state(layout.thread_id)
        && in_state(layout.frame)
        && usize::from(layout.frame_len) <= FRAME_BYTES
        && [layout.back, layout.code, layout.last].into_iter().all(in_frame)
        && [layout.file, layout.name, layout.lines].into_iter().all(in_code)
        && same_code
        && [offsets.interpreters, offsets.next_interpreter, offsets.threads].into_iter().all(|at| at < MAX)
        && [offsets.next_thread, offsets.interpreter].into_iter().all(|at| at < MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As read out of Python 3.13.0: runtime, interpreter, thread, frame, code.
    const PYTHON_3_13: [&[u64]; 5] = [
        &[283_320, 608, 632],
        &[194_968, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0, 7768, 7760],
        &[304, 0, 8, 16, 72, 152, 160, 232, 32],
        &[80, 8, 0, 56, 72, 70],
        &[208, 112, 120, 128, 136, 68, 52, 96, 104, 200],
    ];

    /// The same of 3.14, which has more words: the needed ones, 0 for others.
    const PYTHON_3_14: [&[u64]; 5] = [
        &[0, 0, 808],
        &[0, 0, 7264, 7344, 7352, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 8, 16, 72, 152, 160, 0, 0],
        &[88, 8, 0, 56, 80, 74, 64, 72],
        &[0, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0],
    ];

    fn table(minor: u8) -> Vec<u64> {
        let parts = if minor == 13 { PYTHON_3_13 } else { PYTHON_3_14 };
        let mut words = vec![u64::from_le_bytes(COOKIE), 3 << 24 | u64::from(minor) << 16 | 0xf0, 0];
        words.extend(parts.concat());
        words
    }

    fn of(words: &[u64]) -> Result<Offsets, String> {
        of_table(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    #[test]
    fn interpreters_describe_themselves() {
        let offsets = of(&table(13)).expect("usable");
        assert_eq!((offsets.interpreters, offsets.next_interpreter, offsets.threads), (632, 7264, 7344));
        assert_eq!((offsets.next_thread, offsets.interpreter), (8, 16));
        let layout = offsets.layout;
        assert_eq!((layout.frame, layout.thread_id, layout.current_frame), (72, 152, NONE));
        assert_eq!((layout.code, layout.back, layout.last, layout.owner, layout.frame_len), (0, 8, 56, 70, 72));
        assert_eq!((layout.file, layout.name, layout.lines, layout.first_line), (112, 128, 136, 68));
        assert_eq!((layout.instructions, layout.version, layout.flags), (200, 13, 0));
        let layout = of(&table(14)).expect("usable").layout;
        assert_eq!((layout.owner, layout.frame_len, layout.instructions), (74, 80, 208));
        assert_eq!((layout.frame, layout.thread_id, layout.flags), (72, 152, 0));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let refused = |change: fn(&mut Vec<u64>)| {
            let mut words = table(13);
            change(&mut words);
            of(&words).expect_err("refused")
        };
        assert!(refused(|words| words[1] = 3 << 24 | 15 << 16).contains("Python 3.15"));
        assert!(refused(|words| words[1] = 4 << 24).contains("Python 4.0"));
        assert!(refused(|words| words[2] = 1).contains("free-threaded"));
        assert!(refused(|words| words.truncate(30)).contains("cut off"));
        assert!(refused(|words| words[23] = 1 << 40).contains("no sense"));
        assert!(refused(|words| words[23] = 200).contains("no sense"));
        assert!(refused(|words| words[0] = 0).contains("no table"));
    }

    #[test]
    fn known_versions_read_what_is_there() {
        for minor in 8..=12 {
            let offsets = of_version(minor).expect("known");
            assert_eq!(offsets.layout.version, minor);
            let layout = offsets.layout;
            assert!(layout.thread_id < STATE_BYTES as u16 && usize::from(layout.frame_len) <= FRAME_BYTES);
            assert!([layout.back, layout.code, layout.last].iter().all(|at| at + 8 <= layout.frame_len));
        }
        assert_eq!(of_version(7), None);
        assert_eq!(of_version(13), None);
    }
}
