//! Hands batches on to a stage that may be busy for a while, without waiting for it.

use std::{
    sync::mpsc::{Receiver, RecvError, RecvTimeoutError, SyncSender, TryRecvError, TrySendError},
    time::Duration,
};

use crate::{
    capture::{Note, note_record},
    os::{clock::monotonic_ns, priority::Haste},
    ring::Batch,
};

/// Most bytes that wait for the next stage; then this stage waits, too.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// How soon the next stage is tried again.
const AGAIN: Duration = Duration::from_millis(5);

/// Processes batches, and forwards them. Batches that the next stage cannot take yet wait, and are joined to one.
pub(super) fn hand_on(batches: &Receiver<Batch>, to: &SyncSender<Batch>, mut work: impl FnMut(Vec<u8>) -> Vec<u8>) {
    let (mut waiting, mut haste): (Option<Batch>, _) = (None, Haste::new());
    loop {
        let next = match waiting {
            None => next_of(batches, &mut haste).map_err(RecvTimeoutError::from),
            Some(_) => batches.recv_timeout(AGAIN),
        };
        match next {
            Ok(Batch { bytes, watermark_ns }) => {
                haste.busy(bytes.len());
                let batch = Batch { bytes: work(bytes), watermark_ns };
                waiting = Some(match waiting {
                    None => batch,
                    Some(before) => joined(before, batch),
                });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // The receiver has gone if it is not taken.
                let _ = waiting.map(|rest| to.send(rest));
                return;
            }
        }
        let Some(batch) = waiting.take() else { continue };
        let sent = if batch.bytes.len() < MAX_WAITING_BYTES {
            to.try_send(batch)
        } else {
            to.send(batch).map_err(|error| TrySendError::Disconnected(error.0))
        };
        match sent {
            Ok(()) => {}
            Err(TrySendError::Full(batch)) => waiting = Some(batch),
            Err(TrySendError::Disconnected(_)) => return,
        }
    }
}

/// The next batch. A thread that finds one there at once is behind.
pub(super) fn next_of(batches: &Receiver<Batch>, haste: &mut Haste) -> Result<Batch, RecvError> {
    match batches.try_recv() {
        Err(TryRecvError::Empty) => {
            haste.rest();
            batches.recv()
        }
        Ok(batch) => Ok(batch),
        Err(TryRecvError::Disconnected) => Err(RecvError),
    }
}

/// Both in order. The first one's watermark stays where it was: records leave a few at a time, not those of a long wait at once.
fn joined(before: Batch, batch: Batch) -> Batch {
    let Batch { mut bytes, watermark_ns: mono_ns } = before;
    if mono_ns != 0 {
        bytes.extend(note_record(monotonic_ns(), 0, &Note::Watermark { mono_ns }));
    }
    bytes.extend(batch.bytes);
    Batch { bytes, watermark_ns: batch.watermark_ns }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    fn batch(bytes: &[u8], watermark_ns: u64) -> Batch {
        Batch { bytes: bytes.to_vec(), watermark_ns }
    }

    /// Without a receiver all batches are still processed, and queue up in order.
    #[test]
    fn work_does_not_wait() {
        let (sender, batches) = mpsc::sync_channel(0);
        let (to, output) = mpsc::sync_channel(1);
        let worker = thread::spawn(move || hand_on(&batches, &to, |bytes| bytes.iter().map(|byte| byte + 1).collect()));
        for (number, watermark_ns) in [(1, 7), (2, 0), (3, 9), (4, 0)] {
            sender.send(batch(&[number], watermark_ns)).expect("taken");
        }
        drop(sender);
        let batches: Vec<_> = output.iter().map(|batch| (batch.bytes, batch.watermark_ns)).collect();
        let [first, (bytes, last_ns)] = batches.as_slice() else { panic!("{batches:?}") };
        assert_eq!((first, *last_ns), (&(vec![2], 7), 0));
        assert!(bytes.starts_with(&[3, 4]) && bytes.ends_with(&[5]), "{bytes:?}");
        let notes: Vec<&[u8]> = crate::decode::notes(&bytes[2..]).collect();
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        let watermark = note_record(0, 0, &Note::Watermark { mono_ns: 9 });
        let header = size_of::<memscope_common::Header>();
        assert_eq!(note[header..], watermark[header..]);
        worker.join().expect("ended");
    }

    /// Waiting batches are forwarded when possible, whether or not more come.
    #[test]
    fn nothing_stays() {
        let (sender, batches) = mpsc::channel();
        let (to, output) = mpsc::sync_channel(1);
        thread::spawn(move || hand_on(&batches, &to, |bytes| bytes));
        for number in 0..3 {
            sender.send(batch(&[number], 0)).expect("taken");
        }
        let mut bytes = Vec::new();
        while bytes.len() < 3 {
            bytes.extend(output.recv().expect("a batch").bytes);
        }
        assert_eq!(bytes, [0, 1, 2]);
    }

    /// At the bound, the sender has to wait.
    #[test]
    fn what_waits_is_bounded() {
        let (sender, batches) = mpsc::sync_channel(0);
        let (to, output) = mpsc::sync_channel(0);
        thread::spawn(move || hand_on(&batches, &to, |bytes| bytes));
        let half = vec![0; MAX_WAITING_BYTES / 2];
        for _ in 0..2 {
            sender.send(batch(&half, 0)).expect("taken");
        }
        // It waits for the output now.
        assert!(matches!(sender.try_send(batch(&half, 0)), Err(TrySendError::Full(_))));
        let len: usize = output.recv().expect("a batch").bytes.len();
        assert_eq!(len, MAX_WAITING_BYTES);
    }

    /// Ends when the receiver has gone.
    #[test]
    fn ends_with_its_output() {
        let (sender, batches) = mpsc::channel();
        let (to, output) = mpsc::sync_channel(1);
        drop(output);
        sender.send(batch(&[1], 0)).expect("taken");
        hand_on(&batches, &to, |bytes| bytes);
    }
}
