//! Records that the session has to handle at once.

use memscope_common::{
    config::Wait,
    record::{Header, Kind, ProcessRecord, WAITS_HELD, WAITS_STOPPED, WITHHELD_ROOM},
};

/// A process waits for the session, or a new one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgent {
    /// [`Kind::Fork`], [`Kind::Exec`] or [`Kind::Library`].
    pub kind: Kind,
    /// The process that reports.
    pub pid: u32,
    /// The new process of a fork; otherwise 0.
    pub child: u32,
    /// It was sent `SIGSTOP` and waits for `SIGCONT`.
    pub stopped: bool,
    /// The wait of its thread, until released.
    pub held: Option<Wait>,
    /// Why it does not wait although it should: one of `WITHHELD_*`.
    pub withheld: Option<u32>,
}

/// Whether the session has to handle this record at once.
pub(super) fn urgency(record: &[u8]) -> Option<Urgent> {
    let kind = match u16_at(record, std::mem::offset_of!(Header, kind)) {
        kind if kind == Kind::Fork as u16 => Kind::Fork,
        kind if kind == Kind::Exec as u16 => Kind::Exec,
        kind if kind == Kind::Library as u16 => Kind::Library,
        _ => return None,
    };
    let waits = u32_at(record, std::mem::offset_of!(ProcessRecord, stopped));
    let pid = u32_at(record, std::mem::offset_of!(Header, tgid));
    let held = Wait {
        thread: u64::from(pid) << 32 | u64::from(u32_at(record, std::mem::offset_of!(Header, tid))),
        since_ns: u64_at(record, std::mem::offset_of!(Header, time_ns)),
    };
    Some(Urgent {
        kind,
        pid,
        child: if kind == Kind::Fork { u32_at(record, std::mem::offset_of!(ProcessRecord, child)) } else { 0 },
        stopped: waits == WAITS_STOPPED,
        held: (kind == Kind::Library && waits == WAITS_HELD).then_some(held),
        withheld: (kind != Kind::Fork && waits >= WITHHELD_ROOM).then_some(waits),
    })
}

pub(super) fn u16_at(record: &[u8], at: usize) -> u16 {
    record.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    record.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

pub(super) fn u64_at(record: &[u8], at: usize) -> u64 {
    record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record of the kernel side of this kind.
    pub(in super::super) fn record(kind: Kind) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
        bytes[16..18].copy_from_slice(&(kind as u16).to_le_bytes());
        bytes[20..22].copy_from_slice(&32_u16.to_le_bytes());
        bytes[24..28].copy_from_slice(&9_u32.to_le_bytes());
        bytes[28] = 1;
        bytes
    }

    #[test]
    fn only_process_records_are_urgent() {
        let fork = Urgent { kind: Kind::Fork, pid: 7, child: 9, stopped: true, held: None, withheld: None };
        assert_eq!(urgency(&record(Kind::Fork)), Some(fork));
        assert_eq!(urgency(&record(Kind::Exec)), Some(Urgent { kind: Kind::Exec, child: 0, ..fork }));
        assert_eq!(urgency(&record(Kind::Enter)), None);
        assert_eq!(urgency(&[1, 2, 3]), None);
    }

    /// A thread waits again as soon as it is let go: the answer is to the wait of its record, and to no later one.
    #[test]
    fn an_answer_is_to_one_wait() {
        let mut library = record(Kind::Library);
        library[0] = 5;
        library[12] = 8;
        library[28] = WAITS_HELD as u8;
        let held = Some(Wait { thread: 7 << 32 | 8, since_ns: 5 });
        assert_eq!(urgency(&library).map(|urgent| urgent.held), Some(held));
        library[28] = 0;
        assert_eq!(urgency(&library).map(|urgent| urgent.held), Some(None));
    }
}
