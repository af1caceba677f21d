//! Layout of a process that runs Python: found by user space, used by the programs.

/// Layout of a process's interpreter. Offsets are in bytes; [`NONE`]: no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonLayout {
    /// Number of this interpreter, never used again: process numbers are.
    pub space: u64,
    /// Address of `PyCode_Type`, the type of all code objects.
    pub code_type: u64,
    /// Address of the pointer to the newest interpreter.
    pub interpreters: u64,
    /// The first interpreter: while it is the newest, it is the only one.
    pub first_interpreter: u64,
    /// When a code object was freed last, if frees are seen ([`LAYOUT_FREES`]). Written by the kernel side.
    pub freed_ns: u64,
    /// From the thread pointer to the value of `pthread_self`.
    pub self_at: i32,
    /// From the thread pointer to the pointer to the thread-specific values, among them the thread's state.
    pub block_at: i32,
    /// Offset of the thread's state among those values.
    pub value_at: u32,
    /// Bit n: word n of a code object (from [`CODE_FROM`] on) never changes and is part of its
    /// fingerprint.
    pub code_words: u32,
    /// In the thread's state: its `pthread_self`.
    pub thread_id: u16,
    /// In the thread's state: its frame, or the pointer that leads to it.
    pub frame: u16,
    /// Behind that pointer: the frame.
    pub current_frame: u16,
    /// Offset from which a frame is read.
    pub frame_from: u16,
    /// Bytes read of a frame, at most [`FRAME_BYTES`].
    pub frame_len: u16,
    /// In those bytes: the code.
    pub code: u16,
    /// In those bytes: the next frame.
    pub back: u16,
    /// In those bytes: the instruction.
    pub last: u16,
    /// In those bytes: the frame's owner.
    pub owner: u16,
    /// In a code object: its instructions, if frames have addresses.
    pub instructions: u16,
    /// In a code object: line of its `def`.
    pub first_line: u16,
    /// In a code object: its source file.
    pub file: u16,
    /// In a code object: its name.
    pub name: u16,
    /// In a code object: its line table.
    pub lines: u16,
    /// In an ASCII text: its characters.
    pub ascii_at: u16,
    /// In another text: its characters.
    pub text_at: u16,
    /// In those bytes of a frame: whether C called it, not other Python code.
    pub entry: u16,
    /// Minor version.
    pub version: u8,
    /// `LAYOUT_*` bits.
    pub flags: u8,
    /// Padding, zero.
    pub reserved: [u8; 4],
}
const _: () = assert!(size_of::<PythonLayout>() == 96);

impl PythonLayout {
    /// Nothing is known.
    pub const EMPTY: Self = Self {
        space: 0,
        code_type: 0,
        interpreters: 0,
        first_interpreter: 0,
        freed_ns: 0,
        self_at: 0,
        block_at: 0,
        value_at: 0,
        code_words: 0,
        thread_id: 0,
        frame: 0,
        current_frame: 0,
        frame_from: 0,
        frame_len: 0,
        code: 0,
        back: 0,
        last: 0,
        owner: 0,
        instructions: 0,
        first_line: 0,
        file: 0,
        name: 0,
        lines: 0,
        ascii_at: 0,
        text_at: 0,
        entry: 0,
        version: 0,
        flags: 0,
        reserved: [0; 4],
    };
}

/// As an offset: there is none.
pub const NONE: u16 = u16::MAX;

/// C calls every frame: Python code never calls Python code directly.
pub const LAYOUT_ENTRIES: u8 = 1;
/// Code objects have no number of their own: their texts are part of the fingerprint.
pub const LAYOUT_TEXTS: u8 = 1 << 1;
/// Frees of code objects are seen: until the next one, each is unchanged.
pub const LAYOUT_FREES: u8 = 1 << 2;

/// Bytes read of a thread's state.
pub const STATE_BYTES: usize = 184;
/// Most bytes read of a frame.
pub const FRAME_BYTES: usize = 96;
/// Offset from which a code object is read: the needed fields are adjacent.
pub const CODE_FROM: u16 = 8;
/// Eight-byte words read of a code object.
pub const CODE_WORDS: usize = 17;
/// Offset from which a text or line table is read: its length.
pub const TEXT_FROM: u64 = 16;
/// Eight-byte words read of a text or line table.
pub const TEXT_WORDS: usize = 16;
/// In those words: the state of a text.
pub const TEXT_STATE: usize = 2;
/// In those words: the first characters of an ASCII text, in versions with texts in their fingerprints.
pub const TEXT_CHARS: usize = 4;
/// As above, of a line table.
pub const LINES_WORD: usize = 2;
/// Bytes of a line table before its contents.
pub const LINES_AT: u64 = 32;

/// Lowest owner of frames that are no Python code, but lie between C and Python.
pub const OWNER_INTERPRETER: u8 = 3;

/// State of a text: bytes per character, whether they follow, and whether it is ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextState(u32);

impl TextState {
    /// From the word that has it.
    #[must_use]
    #[inline]
    pub const fn new(word: u64) -> Self {
        Self(word as u32)
    }

    /// Bytes per character.
    #[must_use]
    #[inline]
    pub const fn kind(self) -> u8 {
        (self.0 >> 2 & 7) as u8
    }

    /// The characters follow the object's head.
    #[must_use]
    #[inline]
    pub const fn is_compact(self) -> bool {
        self.0 >> 5 & 1 != 0
    }

    /// All characters are ASCII.
    #[must_use]
    #[inline]
    pub const fn is_ascii(self) -> bool {
        self.0 >> 6 & 1 != 0
    }
}

/// Adds a word to a hash.
#[must_use]
#[inline]
pub const fn mix(hash: u64, word: u64) -> u64 {
    // An odd number without pattern: every bit of the word changes the upper half, which is then
    // folded down.
    let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

/// Adds a code object's words to a hash, those alone that `which` names.
#[must_use]
#[inline]
pub fn mix_code(hash: u64, words: &[u64; CODE_WORDS], which: u32) -> u64 {
    // Two hashes at a time: each step of one waits for the step before it.
    let mut hashes = [hash, !hash];
    for (at, word) in words.iter().enumerate() {
        let taken = 0_u64.wrapping_sub(u64::from(which >> at & 1));
        hashes[at & 1] = mix(hashes[at & 1], word & taken);
    }
    mix(hashes[0], hashes[1])
}

/// Adds a text's length and first bytes to a hash: `len_bytes` from word `FIRST` on, as many as
/// were read. What lies behind is not part of it.
#[must_use]
#[inline]
pub fn mix_text<const FIRST: usize>(hash: u64, words: &[u64; TEXT_WORDS], len_bytes: u64) -> u64 {
    const PAIR_BYTES: u64 = 16;
    const { assert!((TEXT_WORDS - FIRST).is_multiple_of(2)) };
    let mut hashes = [mix(hash, words[0]), !hash];
    let mut left = len_bytes;
    for pair in words[FIRST..].as_chunks::<2>().0 {
        if left < PAIR_BYTES {
            let [first, second] = [head(pair[0], left), head(pair[1], left.saturating_sub(8))];
            return mix(mix(hashes[0], first), mix(hashes[1], second));
        }
        hashes = [mix(hashes[0], pair[0]), mix(hashes[1], pair[1])];
        left -= PAIR_BYTES;
    }
    mix(hashes[0], hashes[1])
}

/// The first bytes of a word.
#[inline]
const fn head(word: u64, bytes: u64) -> u64 {
    if bytes < 8 { word & !(u64::MAX << (bytes * 8)) } else { word }
}

/// Bytes from an address to the next place where a page can begin: those behind it may not be
/// there. Of larger pages it is one of these places, too.
#[must_use]
#[inline]
pub const fn text_room(address: u64) -> u64 {
    const SMALLEST_PAGE: u64 = 4096;
    SMALLEST_PAGE - address % SMALLEST_PAGE
}

/// Bytes of a text from [`TEXT_CHARS`] on, for [`mix_text`]. What is not ASCII has further fields
/// before its characters, which can change once: then it has another fingerprint.
#[must_use]
#[inline]
pub const fn text_bytes(words: &[u64; TEXT_WORDS]) -> u64 {
    let state = TextState::new(words[TEXT_STATE]);
    // Longer ones are hashed by their first bytes; the bound keeps the product small.
    (words[0] & 0xffff) * state.kind() as u64 + (1 - state.is_ascii() as u64) * 24
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::PythonLayout {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_words_count() {
        let mut words = [7; CODE_WORDS];
        let before = mix_code(1, &words, 0b101);
        words[1] = 8;
        assert_eq!(mix_code(1, &words, 0b101), before);
        words[2] = 8;
        assert_ne!(mix_code(1, &words, 0b101), before);
    }

    #[test]
    fn what_lies_behind_a_text_does_not_count() {
        let hash = |text: &[u8], len: u64| {
            let mut words = [0_u64; TEXT_WORDS];
            words[0] = 3;
            for (word, bytes) in words[TEXT_CHARS..].iter_mut().zip(text.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            mix_text::<TEXT_CHARS>(1, &words, len)
        };
        assert_eq!(hash(b"abc\0xxxx12345678", 3), hash(b"abc\0yyyyabcdefgh", 3));
        assert_ne!(hash(b"abc\0xxxx", 3), hash(b"abd\0xxxx", 3));
        assert_eq!(hash(b"12345678a.......", 9), hash(b"12345678axxxxxxx", 9));
        assert_ne!(hash(b"12345678a.......", 9), hash(b"12345678b.......", 9));
        assert_eq!(hash(b"12345678a.......", 8), hash(b"12345678b.......", 8));
        assert_eq!(hash(b"12345678", 0), hash(b"abcdefgh", 0));
        assert_ne!(hash(b"12345678", 1 << 20), hash(b"12345679", 1 << 20));
    }

    #[test]
    fn bytes_of_a_text_are_those_of_all_characters() {
        let mut words = [0_u64; TEXT_WORDS];
        words[0] = 5;
        words[TEXT_STATE] = 0b110_0101;
        assert_eq!(text_bytes(&words), 5);
        // Two bytes each, behind three fields.
        words[TEXT_STATE] = 0b010_1000;
        assert_eq!(text_bytes(&words), 24 + 10);
    }

    #[test]
    fn a_text_states_its_kind() {
        // interned 1, kind 2, compact, not ASCII.
        let state = TextState::new(0b010_1001);
        assert_eq!((state.kind(), state.is_compact(), state.is_ascii()), (2, true, false));
        // interned 1, kind 1, compact, ASCII.
        let state = TextState::new(0b110_0101);
        assert_eq!((state.kind(), state.is_compact(), state.is_ascii()), (1, true, true));
    }
}
