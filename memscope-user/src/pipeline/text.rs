//! Joins the parts of long texts, and makes texts out of bytes.
//!
//! Parts may be lost. A text that is not whole, for that reason or because it exceeds the kernel side's limit, ends
//! with `…`.

use memscope_common::record::{MAX_TEXT, MAX_TEXT_PARTS};

use super::item::{Called, Head};
use crate::decode::{Call, TextPart};
use crate::hash::HashMap;

/// Threads that may be in the middle of a text. More are only left behind by lost records: then all are cut.
const MAX_WAITING: usize = 1024;

/// Calls that wait for the rest of their text, by thread and row.
#[derive(Debug, Default)]
pub(super) struct Texts {
    waiting: HashMap<(u32, u16), Waiting>,
}

#[derive(Debug)]
struct Waiting {
    called: Called,
    bytes: Vec<u8>,
    part: u16,
}

impl Waiting {
    fn end(mut self, whole: bool) -> Called {
        self.called.text = Some(text(&self.bytes, whole));
        self.called
    }
}

impl Texts {
    /// Takes a call. Complete calls are pushed to `ready`: this one, unless its text continues.
    pub(super) fn call(&mut self, head: Head, call: &Call<'_>, wanted: bool, ready: &mut Vec<Called>) {
        let Call { phase, status, values, .. } = *call;
        let mut called = Called { head, phase, status, values, text: None };
        if !wanted || call.text_null {
            ready.push(called);
        } else if call.text_more {
            if self.waiting.len() >= MAX_WAITING {
                self.overdue(u64::MAX, ready);
            }
            let mut bytes = Vec::with_capacity(MAX_TEXT);
            bytes.extend_from_slice(call.text);
            let before = self.waiting.insert((head.tid, head.row), Waiting { called, bytes, part: 0 });
            ready.extend(before.map(|before| before.end(false)));
        } else {
            called.text = Some(text(call.text, !call.text_fault));
            ready.push(called);
        }
    }

    /// Takes a further part of a text; false when no call waits for it.
    pub(super) fn part(&mut self, head: Head, part: &TextPart<'_>, ready: &mut Vec<Called>) -> bool {
        let Some(mut waiting) = self.waiting.remove(&(head.tid, head.row)) else {
            return false;
        };
        let follows = part.part == waiting.part + 1;
        if follows {
            waiting.bytes.extend_from_slice(part.text);
            waiting.part = part.part;
        }
        if follows && part.more && usize::from(part.part) < MAX_TEXT_PARTS {
            self.waiting.insert((head.tid, head.row), waiting);
        } else {
            ready.push(waiting.end(follows && !part.more && !part.fault));
        }
        true
    }

    /// Gives up on the rest of texts older than `time_ns`.
    pub(super) fn overdue(&mut self, time_ns: u64, ready: &mut Vec<Called>) {
        if self.waiting.is_empty() {
            return;
        }
        let first = ready.len();
        ready.extend(
            self.waiting.extract_if(|_, waiting| waiting.called.head.time_ns < time_ns).map(|(_, cut)| cut.end(false)),
        );
        if let Some(new) = ready.get_mut(first..) {
            new.sort_unstable_by_key(|called| called.head.seq);
        }
    }
}

/// Valid UTF-8 out of any bytes. A character that the cut went through goes with it.
fn text(bytes: &[u8], whole: bool) -> String {
    if whole {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut text = String::with_capacity(bytes.len() + 3);
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() && chunks.peek().is_some() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text.push('…');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Body, Record, Records};
    use crate::testing::main;

    /// Texts of the calls in `bytes`, in the order in which they became complete.
    fn texts(bytes: &[u8]) -> Vec<Option<String>> {
        let (mut texts, mut ready) = (Texts::default(), Vec::new());
        for (seq, record) in Records::new(bytes).enumerate() {
            let Record { time_ns, pid, tid, row, body, .. } = record.expect("a record");
            let head = Head {
                time_ns,
                seq: seq as u64,
                pid,
                tid,
                row,
                outer: 0,
                stacks: crate::pipeline::StackIds::default(),
            };
            match body {
                Body::Call(call) => texts.call(head, &call, true, &mut ready),
                Body::TextPart(part) => assert!(texts.part(head, &part, &mut ready)),
                body => panic!("{body:?}"),
            }
        }
        texts.overdue(u64::MAX, &mut ready);
        ready.into_iter().map(|called| called.text).collect()
    }

    /// Bytes of the records of `bytes`, without record `lost`.
    fn without(bytes: &[u8], lost: usize) -> Vec<u8> {
        let records = Records::new(bytes).with_bytes().enumerate();
        records.filter(|(index, _)| *index != lost).flat_map(|(_, (bytes, _))| bytes.to_vec()).collect()
    }

    #[test]
    fn short_and_null_texts() {
        let bytes = [main(1).mark("héllo"), main(2).mark(""), main(3).null_mark()].concat();
        assert_eq!(texts(&bytes), [Some("héllo".to_owned()), Some(String::new()), None]);
    }

    #[test]
    fn parts_are_joined() {
        let long = "0123456789".repeat(30);
        assert_eq!(texts(&main(1).mark(&long)), [Some(long)]);
    }

    /// Whichever part is lost, what came before it is kept and marked as cut.
    #[test]
    fn lost_part_cuts() {
        let long = "a".repeat(127) + &"b".repeat(127) + &"c".repeat(10);
        let bytes = main(1).mark(&long);
        assert_eq!(texts(&without(&bytes, 1)), [Some("a".repeat(127) + "…")]);
        assert_eq!(texts(&without(&bytes, 2)), [Some("a".repeat(127) + &"b".repeat(127) + "…")]);
    }

    /// The thread's next long text ends the wait for the one before it.
    #[test]
    fn next_text_cuts() {
        let (first, second) = ("a".repeat(130), "b".repeat(130));
        let bytes = [without(&main(1).mark(&first), 1), main(2).mark(&second)].concat();
        assert_eq!(texts(&bytes), [Some("a".repeat(127) + "…"), Some(second)]);
    }

    /// The longest text that the kernel side takes is whole; a longer one is cut and marked.
    #[test]
    fn longest_text() {
        let longest = "x".repeat(MAX_TEXT);
        assert_eq!(texts(&main(1).mark(&longest)), [Some(longest.clone())]);
        let mut longer = main(1).mark(&longest);
        let last = longer.len() - 159;
        longer[last + 26] |= memscope_common::record::CALL_TEXT_MORE;
        assert_eq!(texts(&longer), [Some(longest + "…")]);
    }

    /// A cut within a character takes the whole character; other broken bytes are replaced.
    #[test]
    fn bytes_become_characters() {
        assert_eq!(text(b"a\xffb", true), "a\u{fffd}b");
        assert_eq!(text(b"a\xffb\xe2\x82", false), "a\u{fffd}b…");
        assert_eq!(text("€".as_bytes(), false), "€…");
    }
}
