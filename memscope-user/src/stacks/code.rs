//! Completes code objects of Python that the kernel side could send only in part: the rest is read from the process,
//! which has gone on meanwhile. So the bytes count only if the code object is the same afterwards.

use memscope_common::{
    CodeRecord, Header, Kind, PythonLayout,
    python::{
        CODE_FROM, CODE_WORDS, LAYOUT_TEXTS, LINES_AT, LINES_WORD, TEXT_CHARS, TEXT_FROM, TEXT_STATE, TEXT_WORDS,
        TextState, mix, mix_code, mix_text, text_bytes, text_room,
    },
    stack::{CODE_FILE_CUT, CODE_LINES_CUT, CODE_NAME_CUT},
};

use crate::{follow::interpreters::Layouts, os::memory::Memory};

/// Bytes of a name at most; a longer one stays cut.
const MAX_NAME: usize = 8 << 10;
/// Bytes of a file's name: the longest path, with four bytes for each character.
const MAX_FILE: usize = 16 << 10;
/// Bytes of a record.
const MAX_RECORD: usize = u16::MAX as usize;

/// The whole record instead of one with parts missing. `None`: no part is missing, or the code object is gone, and the
/// record stays.
#[must_use]
pub fn complete(record: &[u8], layouts: &Layouts) -> Option<Vec<u8>> {
    let fields = Fields::of(record)?;
    let layout = layouts.get(fields.pid)?;
    let memory = Memory::open(fields.pid).ok()?;
    fields.complete(record, &layout, |address, to| memory.read(address, to))
}

/// The needed fields of a record.
struct Fields {
    pid: u32,
    code: u64,
    fingerprint: u32,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl Fields {
    /// Of a record of a code object with parts missing.
    fn of(record: &[u8]) -> Option<Self> {
        let kind = u16::from_le_bytes(array(record, std::mem::offset_of!(Header, kind))?);
        let flags = *record.get(std::mem::offset_of!(CodeRecord, flags))?;
        let is_cut = flags & (CODE_NAME_CUT | CODE_FILE_CUT | CODE_LINES_CUT) != 0;
        (kind == Kind::Code as u16 && is_cut && record.len() >= size_of::<CodeRecord>()).then_some(())?;
        Some(Self {
            pid: u32::from_le_bytes(array(record, std::mem::offset_of!(Header, tgid))?),
            code: u64::from_le_bytes(array(record, std::mem::offset_of!(CodeRecord, code))?),
            fingerprint: u32::from_le_bytes(array(record, std::mem::offset_of!(CodeRecord, fingerprint))?),
        })
    }

    fn complete(
        &self,
        record: &[u8],
        layout: &PythonLayout,
        read: impl Fn(u64, &mut [u8]) -> Option<()>,
    ) -> Option<Vec<u8>> {
        let object = Object { layout, read: &read, address: self.code };
        let words = object.words()?;
        let (name, name_kind) = object.text(&words, layout.name, MAX_NAME)?;
        let (file, file_kind) = object.text(&words, layout.file, MAX_FILE)?;
        let room = MAX_RECORD - size_of::<CodeRecord>() - name.len() - file.len();
        let lines = object.lines(&words, room)?;
        // The code object read here is the one in the call's frame.
        let same = |words| object.fingerprint(words) == Some(self.fingerprint);
        (same(&words) && same(&object.words()?)).then_some(())?;
        let mut out = record.get(..size_of::<CodeRecord>())?.to_vec();
        let cut = |cut: bool, flag: u8| if cut { flag } else { 0 };
        let flags = cut(name.cut, CODE_NAME_CUT) | cut(file.cut, CODE_FILE_CUT) | cut(lines.cut, CODE_LINES_CUT);
        let len = out.len() + name.len() + file.len() + lines.len();
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(std::mem::offset_of!(Header, len), &(len as u16).to_le_bytes());
        put(std::mem::offset_of!(CodeRecord, name_kind), &[name_kind]);
        put(std::mem::offset_of!(CodeRecord, file_kind), &[file_kind]);
        put(std::mem::offset_of!(CodeRecord, flags), &[flags]);
        put(std::mem::offset_of!(CodeRecord, name_len), &(name.len() as u16).to_le_bytes());
        put(std::mem::offset_of!(CodeRecord, file_len), &(file.len() as u16).to_le_bytes());
        put(std::mem::offset_of!(CodeRecord, lines_len), &(lines.len() as u16).to_le_bytes());
        for part in [name, file, lines] {
            out.extend(part.bytes);
        }
        Some(out)
    }
}

/// Bytes read.
struct Part {
    bytes: Vec<u8>,
    cut: bool,
}

impl Part {
    const fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Bytes as words of the process.
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// A code object in a process.
struct Object<'a, R> {
    layout: &'a PythonLayout,
    read: &'a R,
    address: u64,
}

impl<R: Fn(u64, &mut [u8]) -> Option<()>> Object<'_, R> {
    fn read_words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut bytes = vec![0; 8 * N];
        (self.read)(address, &mut bytes)?;
        Some(words(&bytes))
    }

    /// The head and first bytes of a text, as the kernel side reads them: short texts may end before an absent page,
    /// and unreadable bytes are zero.
    fn first_words(&self, address: u64) -> [u64; TEXT_WORDS] {
        let mut bytes = [0; 8 * TEXT_WORDS];
        if (self.read)(address, &mut bytes).is_none() {
            let room = usize::try_from(text_room(address)).unwrap_or(usize::MAX).min(bytes.len());
            bytes = [0; 8 * TEXT_WORDS];
            if (self.read)(address, &mut bytes[..room]).is_none() {
                bytes = [0; 8 * TEXT_WORDS];
            }
        }
        words(&bytes)
    }

    fn words(&self) -> Option<[u64; CODE_WORDS]> {
        self.read_words(self.address.wrapping_add(CODE_FROM.into()))
    }

    /// A pointer in the object.
    fn pointer(words: &[u64; CODE_WORDS], offset: u16) -> Option<u64> {
        words.get(usize::from(offset.checked_sub(CODE_FROM)? / 8)).copied()
    }

    fn part(&self, from: u64, len: u64, limit: usize) -> Option<Part> {
        let whole = usize::try_from(len).ok().filter(|len| *len <= limit);
        // Whole characters of any size.
        let mut bytes = vec![0; whole.unwrap_or(limit & !3)];
        (self.read)(from, &mut bytes)?;
        Some(Part { bytes, cut: whole.is_none() })
    }

    /// A text and its bytes per character.
    fn text(&self, words: &[u64; CODE_WORDS], offset: u16, limit: usize) -> Option<(Part, u8)> {
        let text = Self::pointer(words, offset)?;
        let head: [u64; TEXT_STATE + 1] = self.read_words(text.wrapping_add(TEXT_FROM))?;
        let state = TextState::new(head[TEXT_STATE]);
        if !state.is_compact() || !matches!(state.kind(), 1 | 2 | 4) {
            return None;
        }
        let at = if state.is_ascii() { self.layout.ascii_at } else { self.layout.text_at };
        let len = head[0].checked_mul(state.kind().into())?;
        Some((self.part(text.wrapping_add(at.into()), len, limit)?, state.kind()))
    }

    fn lines(&self, words: &[u64; CODE_WORDS], limit: usize) -> Option<Part> {
        let table = Self::pointer(words, self.layout.lines)?;
        let [len] = self.read_words(table.wrapping_add(TEXT_FROM))?;
        self.part(table.wrapping_add(LINES_AT), len, limit)
    }

    /// As the kernel side makes it.
    fn fingerprint(&self, words: &[u64; CODE_WORDS]) -> Option<u32> {
        let layout = self.layout;
        let mut hash = mix_code(0, words, layout.code_words);
        if layout.flags & LAYOUT_TEXTS != 0 {
            let text = |offset| Some(self.first_words(Self::pointer(words, offset)?.wrapping_add(TEXT_FROM)));
            let [name, file] = [text(layout.name)?, text(layout.file)?];
            hash = mix_text::<TEXT_CHARS>(hash, &name, text_bytes(&name));
            hash = mix(hash, mix_text::<TEXT_CHARS>(0, &file, text_bytes(&file)));
            let lines = text(layout.lines)?;
            hash = mix_text::<LINES_WORD>(hash, &lines, lines[0] & 0xffff);
        }
        Some(hash as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Body, decode};

    /// A code object, its texts and its table, as 3.12 lays them out.
    struct Process {
        bytes: Vec<u8>,
    }

    const CODE: u64 = 0x1000;
    const NAME: u64 = 0x2000;
    const FILE: u64 = 0x8000;
    const TABLE: u64 = 0x10000;

    impl Process {
        fn new(name: &str, file: &[u16], lines: &[u8]) -> Self {
            let mut process = Self { bytes: vec![0; 0x40000] };
            process.put(CODE + 92, &7_u32.to_le_bytes());
            for (at, pointer) in [(112, FILE), (128, NAME), (136, TABLE)] {
                process.put(CODE + at, &pointer.to_le_bytes());
            }
            process.put(NAME + 16, &(name.len() as u64).to_le_bytes());
            process.put(NAME + 32, &[0b110_0100]);
            process.put(NAME + 40, name.as_bytes());
            process.put(FILE + 16, &(file.len() as u64).to_le_bytes());
            process.put(FILE + 32, &[0b010_1000]);
            let file: Vec<u8> = file.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            process.put(FILE + 56, &file);
            process.put(TABLE + 16, &(lines.len() as u64).to_le_bytes());
            process.put(TABLE + 32, lines);
            process
        }

        fn put(&mut self, at: u64, bytes: &[u8]) {
            self.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }

        fn read(&self, address: u64, to: &mut [u8]) -> Option<()> {
            let from = self.bytes.get(usize::try_from(address).ok()?..)?.get(..to.len())?;
            to.copy_from_slice(from);
            Some(())
        }

        fn fingerprint(&self) -> u32 {
            let object =
                Object { layout: &LAYOUT, read: &|address, to: &mut [u8]| self.read(address, to), address: CODE };
            object.words().and_then(|words| object.fingerprint(&words)).expect("readable")
        }
    }

    const LAYOUT: PythonLayout = PythonLayout {
        code_words: 1 << 7 | 1 << 10 | 1 << 13 | 1 << 15 | 1 << 16,
        file: 112,
        name: 128,
        lines: 136,
        ascii_at: 40,
        text_at: 56,
        version: 12,
        space: 1,
        ..PythonLayout::EMPTY
    };
    /// A record without any of the parts.
    fn cut(fingerprint: u32) -> Vec<u8> {
        let mut record = vec![0; size_of::<CodeRecord>()];
        record[8..12].copy_from_slice(&77_u32.to_le_bytes());
        record[16..18].copy_from_slice(&(Kind::Code as u16).to_le_bytes());
        record[20..22].copy_from_slice(&(size_of::<CodeRecord>() as u16).to_le_bytes());
        record[24..32].copy_from_slice(&CODE.to_le_bytes());
        record[32..36].copy_from_slice(&fingerprint.to_le_bytes());
        record[40] = 12;
        record[43] = CODE_NAME_CUT | CODE_FILE_CUT | CODE_LINES_CUT;
        record
    }

    fn completed(process: &Process, record: &[u8]) -> Option<Vec<u8>> {
        Fields::of(record)?.complete(record, &LAYOUT, |address, to| process.read(address, to))
    }

    #[test]
    fn missing_parts_are_read() {
        let (name, lines) = ("n".repeat(1000), vec![0xe8; 20_000]);
        let process = Process::new(&name, &[0x6a21; 3000], &lines);
        let whole = completed(&process, &cut(process.fingerprint())).expect("completed");
        let Body::Code(code) = decode(&whole).expect("a record").body else { panic!("no code") };
        assert_eq!((code.address, code.version), (CODE, 12));
        assert_eq!((code.name.bytes, code.name.kind, code.name.cut), (name.as_bytes(), 1, false));
        assert_eq!((code.file.bytes.len(), code.file.kind, code.file.cut), (6000, 2, false));
        assert_eq!(code.lines, Some(&lines[..]));
    }

    #[test]
    fn what_does_not_fit_stays_cut() {
        let process = Process::new("n", &vec![0x6a21; 0x2001], &vec![1; 0x20000]);
        let whole = completed(&process, &cut(process.fingerprint())).expect("completed");
        assert!(whole.len() <= MAX_RECORD);
        let Body::Code(code) = decode(&whole).expect("a record").body else { panic!("no code") };
        assert_eq!((code.name.cut, code.file.cut, code.file.bytes.len()), (false, true, MAX_FILE));
        assert_eq!(code.lines, None);
    }

    #[test]
    fn another_code_object_at_the_address_does_not_count() {
        let mut process = Process::new("n", &[1], &[1]);
        let record = cut(process.fingerprint());
        assert!(completed(&process, &record).is_some());
        process.put(CODE + 92, &8_u32.to_le_bytes());
        assert_eq!(completed(&process, &record), None);
        process.bytes.truncate(0x1800);
        assert_eq!(completed(&process, &record), None);
    }

    /// The page behind a short line table comes and goes without effect: the code is the same.
    #[test]
    fn what_lies_behind_a_text_does_not_count() {
        const TABLE_AT: u64 = 0x20000 - 80;
        let layout = PythonLayout { flags: LAYOUT_TEXTS, ..LAYOUT };
        let mut process = Process::new("n", &[1], &[]);
        process.put(CODE + 136, &TABLE_AT.to_le_bytes());
        process.put(TABLE_AT + 16, &3_u64.to_le_bytes());
        process.put(TABLE_AT + 32, &[9, 8, 7]);
        let fingerprint = |process: &Process| {
            let read = |address, to: &mut [u8]| process.read(address, to);
            let object = Object { layout: &layout, read: &read, address: CODE };
            object.words().and_then(|words| object.fingerprint(&words)).expect("readable")
        };
        let whole = fingerprint(&process);
        process.put(0x20000, &[0xff; 4096]);
        assert_eq!(fingerprint(&process), whole);
        process.bytes.truncate(0x20000);
        assert_eq!(fingerprint(&process), whole);
        // Its own bytes do.
        process.put(TABLE_AT + 34, &[6]);
        assert_ne!(fingerprint(&process), whole);
    }

    #[test]
    fn whole_records_and_others_are_left_alone() {
        let process = Process::new("n", &[1], &[1]);
        let mut record = cut(process.fingerprint());
        record[43] = 0;
        assert_eq!(completed(&process, &record), None);
        record[43] = CODE_NAME_CUT;
        record[16] = Kind::Stack as u8;
        assert_eq!(completed(&process, &record), None);
        for len in 0..size_of::<CodeRecord>() {
            assert_eq!(completed(&process, &cut(process.fingerprint())[..len]), None);
        }
    }
}
