//! Reads texts that a BPF program could not read.
//!
//! A literal that was never touched is not in memory, and a BPF program cannot wait for the page. Its record carries
//! the address instead, and the text is read here, a moment later. Only from mappings that the process cannot write:
//! their text is unchanged since the call.

use memscope_common::record::{
    CALL_TEXT_AT, CALL_TEXT_FAULT, CALL_TEXT_MORE, CallRecord, Header, Kind, MAX_TEXT_PARTS, TEXT_CHUNK, TEXT_TEXT_AT,
    TextRecord,
};

use crate::os::{
    maps::{self, Line},
    memory::Memory,
};

/// Text bytes in one record.
const CHUNK: usize = TEXT_CHUNK - 1;

/// The record with its text, in as many parts as the text needs; `None` if no text is missing, or it is unreadable.
pub(super) fn with_text(record: &[u8], read: impl FnOnce(u32, u64, usize) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let word = |at: usize| record.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let kind = word(std::mem::offset_of!(Header, kind))?;
    let first = if kind == Kind::Enter as u16 || kind == Kind::Return as u16 {
        let flags = *record.get(std::mem::offset_of!(CallRecord, flags))?;
        (flags & CALL_TEXT_FAULT != 0).then_some(0)?
    } else if kind == Kind::Text as u16 {
        let flags = word(std::mem::offset_of!(TextRecord, flags))?;
        (flags & u16::from(CALL_TEXT_FAULT) != 0).then_some(())?;
        usize::from(word(std::mem::offset_of!(TextRecord, part))?)
    } else {
        return None;
    };
    let text_at = if first == 0 { CALL_TEXT_AT } else { TEXT_TEXT_AT };
    let address = u64::from_le_bytes(record.get(text_at..text_at + 8)?.try_into().ok()?);
    let pid_at = std::mem::offset_of!(Header, tgid);
    let pid = u32::from_le_bytes(record.get(pid_at..pid_at + 4)?.try_into().ok()?);
    let parts = (MAX_TEXT_PARTS + 1).checked_sub(first)?;
    // One byte more than fits shows whether the text continues.
    let text = read(pid, address, parts * CHUNK + 1)?;
    Some(rewrite(record, first, &text))
}

fn rewrite(record: &[u8], first: usize, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.len() + text.len() + TEXT_TEXT_AT * MAX_TEXT_PARTS);
    let mut rest = text;
    for part in first..=MAX_TEXT_PARTS {
        let (chunk, tail) = rest.split_at(rest.len().min(CHUNK));
        rest = tail;
        let flags = if rest.is_empty() { 0 } else { CALL_TEXT_MORE };
        let start = out.len();
        let text_at = if part == 0 { CALL_TEXT_AT } else { TEXT_TEXT_AT };
        out.extend_from_slice(&record[..if part == 0 { CALL_TEXT_AT } else { size_of::<Header>() }]);
        out.resize(start + text_at, 0);
        out.extend_from_slice(chunk);
        let len = (out.len() - start) as u16;
        let mut put = |at: usize, bytes: &[u8]| out[start + at..start + at + bytes.len()].copy_from_slice(bytes);
        put(std::mem::offset_of!(Header, len), &len.to_le_bytes());
        if part == 0 {
            put(std::mem::offset_of!(CallRecord, flags), &[flags]);
            put(std::mem::offset_of!(CallRecord, text_len), &(chunk.len() as u32).to_le_bytes());
        } else {
            put(std::mem::offset_of!(Header, kind), &(Kind::Text as u16).to_le_bytes());
            put(std::mem::offset_of!(TextRecord, part), &(part as u16).to_le_bytes());
            put(std::mem::offset_of!(TextRecord, flags), &u16::from(flags).to_le_bytes());
            put(std::mem::offset_of!(TextRecord, text_len), &(chunk.len() as u32).to_le_bytes());
        }
        if rest.is_empty() {
            break;
        }
    }
    out
}

/// The C string at `address` of a live process, at most `limit` bytes, from memory that the process cannot write.
pub(super) fn text_of_process(pid: u32, address: u64, limit: usize) -> Option<Vec<u8>> {
    let maps = maps::read(pid).ok()?;
    let end = maps::lines(&maps).find_map(|line| end_of_constant(&line, address))?;
    let mut text = vec![0; limit.min((end - address) as usize)];
    let read = Memory::open(pid).and_then(|memory| memory.read_some(address, &mut text)).ok()?;
    text.truncate(read);
    let nul = text.iter().position(|byte| *byte == 0);
    match nul {
        Some(len) => text.truncate(len),
        // The mapping ends before the text does: it was no C string.
        None if text.len() < limit => return None,
        None => {}
    }
    Some(text)
}

/// End of a mapping, if it holds `address` and is a read-only file.
fn end_of_constant(line: &Line<'_>, address: u64) -> Option<u64> {
    let constant = line.readable && !line.writable && line.id.inode != 0;
    (constant && (line.start..line.end).contains(&address)).then_some(line.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Body, Records};

    /// A mark with its text not in memory.
    fn faulted(kind: Kind, part: u16) -> Vec<u8> {
        let text_at = if part == 0 { CALL_TEXT_AT } else { TEXT_TEXT_AT };
        let mut record = vec![0; text_at + 8];
        record[8..12].copy_from_slice(&7_u32.to_le_bytes());
        record[16..18].copy_from_slice(&(kind as u16).to_le_bytes());
        record[20..22].copy_from_slice(&((text_at + 8) as u16).to_le_bytes());
        if part == 0 {
            record[34] = CALL_TEXT_FAULT;
            record[36] = 8;
        } else {
            record[24..26].copy_from_slice(&part.to_le_bytes());
            record[26] = CALL_TEXT_FAULT;
            record[28] = 8;
        }
        record[text_at..].copy_from_slice(&0x5000_u64.to_le_bytes());
        record
    }

    fn texts(records: &[u8]) -> Vec<(Vec<u8>, bool)> {
        Records::new(records)
            .map(|record| match record.expect("valid").body {
                Body::Call(call) => (call.text.to_vec(), call.text_more),
                Body::TextPart(part) => (part.text.to_vec(), part.more),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn short_text_is_put_into_the_record() {
        let mended = with_text(&faulted(Kind::Enter, 0), |pid, address, limit| {
            assert_eq!((pid, address, limit), (7, 0x5000, 8 * 127 + 1));
            Some(b"step start".to_vec())
        });
        assert_eq!(texts(&mended.expect("mended")), [(b"step start".to_vec(), false)]);
    }

    #[test]
    fn long_text_goes_on_in_parts_and_is_cut_at_the_maximum() {
        let mended = with_text(&faulted(Kind::Enter, 0), |_, _, limit| Some(vec![b'x'; limit])).expect("mended");
        let parts = texts(&mended);
        assert_eq!(parts.len(), 8);
        assert!(parts.iter().all(|(text, more)| text.len() == 127 && *more));
    }

    #[test]
    fn a_later_part_is_mended_too() {
        let mended = with_text(&faulted(Kind::Text, 2), |_, _, _| Some(vec![b'y'; 130])).expect("mended");
        assert_eq!(texts(&mended), [(vec![b'y'; 127], true), (vec![b'y'; 3], false)]);
    }

    #[test]
    fn nothing_is_made_up() {
        assert_eq!(with_text(&faulted(Kind::Enter, 0), |_, _, _| None), None);
        assert_eq!(with_text(&faulted(Kind::Fork, 0), |_, _, _| Some(Vec::new())), None);
        for len in 0..CALL_TEXT_AT + 8 {
            assert_eq!(with_text(&faulted(Kind::Enter, 0)[..len], |_, _, _| Some(Vec::new())), None);
        }
    }

    #[test]
    fn only_constant_file_mappings_are_read() {
        static CONSTANT: &std::ffi::CStr = c"a text that stays";
        let own = std::process::id();
        let address = CONSTANT.as_ptr().expose_provenance() as u64;
        assert_eq!(text_of_process(own, address, 100), Some(CONSTANT.to_bytes().to_vec()));
        let on_heap = std::ffi::CString::new("changes").expect("no NUL");
        assert_eq!(text_of_process(own, on_heap.as_ptr().expose_provenance() as u64, 100), None);
        let end = |line: &str, address| end_of_constant(&maps::line(line.as_bytes()).expect("a line"), address);
        assert_eq!(end("1000-2000 r--p 00000000 08:02 17 /x", 0x1fff), Some(0x2000));
        assert_eq!(end("1000-2000 r--p 00000000 08:02 17 /x", 0x2000), None);
        assert_eq!(end("1000-2000 rw-p 00000000 08:02 17 /x", 0x1000), None);
        assert_eq!(end("1000-2000 r--p 00000000 00:00 0 ", 0x1000), None);
    }
}
