//! The thread that drains the transport.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender, TryRecvError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use memscope_common::{config::Wait, record::Header};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    source::{Calls, Source, Taken},
    text_fixup::{text_of_process, with_text},
    urgent::{Urgent, u16_at, u64_at, urgency},
    watermark::Watermark,
};
use crate::{
    crew::{Crew, Post},
    os::{clock::monotonic_ns, priority::Haste},
};

/// Bytes after which a batch is handed on while more is waiting.
const BATCH_BYTES: usize = 256 << 10;
/// Batches that may wait for the pipeline; then the reader waits, the ring fills and losses are counted. The
/// traced program never waits.
const BATCHES: usize = 256;
/// Most bytes of a round. A tracer that is behind goes on at once with the next, so that its watermark and its sign of life
/// are not those of a whole ring ago.
const ROUND_BYTES: usize = 4 << 20;
/// Shortest pause between two rounds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// Longest one. Each round wakes several threads, which at a thousand events a second is most of the work.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Watermarks are sent for this long after the last record, so that the last records leave too, and the final failure
/// of a request is known.
const AFTERGLOW: Duration = Duration::from_millis(1500);
/// Buffers of batches that wait to be filled again.
const SPARE_BUFFERS: usize = 8;

/// Raw records in the order of their arrival.
#[derive(Debug, Default)]
pub struct Batch {
    /// The records.
    pub bytes: Vec<u8>,
    /// No older record will come; 0 is unknown.
    pub watermark_ns: u64,
}

/// Takes the buffers of batches back, so that they are reused.
#[derive(Clone, Debug)]
pub struct Spent(SyncSender<Vec<u8>>);

impl Spent {
    /// Takes none.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self(mpsc::sync_channel(0).0)
    }

    /// Takes a buffer after use.
    pub fn give(&self, buffer: Vec<u8>) {
        // A buffer that grew by joining is larger than any batch.
        if buffer.capacity() <= 4 * BATCH_BYTES {
            // The reader has enough of them, or has ended.
            let _ = self.0.try_send(buffer);
        }
    }
}

/// Called at once with each wait of a thread, and with `None` several times a second as the tracer's sign of life.
pub type OnHeld = Box<dyn FnMut(Option<Wait>) + Send>;

/// Sees every record, once its text has been read, before it is sent on.
pub type OnRecord = Box<dyn FnMut(&[u8]) + Send>;

/// Commands of the session to the reader.
#[derive(Debug)]
pub enum Command {
    /// Put this record behind all records now in the transport.
    Note(Vec<u8>),
    /// Take the remaining records, then end.
    Finish,
}

/// Handle on the thread. Dropping it without [`Reader::finish`] leaves the thread to the process's end.
pub struct Reader {
    commands: mpsc::Sender<Command>,
    first: mpsc::Sender<Vec<u8>>,
    wake: Arc<EventFd>,
    spent: Spent,
    thread: JoinHandle<()>,
}

impl Reader {
    /// Starts draining. `prompt`: what follows from a record is urgent, so even few of them are taken soon.
    pub fn start(
        source: Source,
        prompt: bool,
        urgent: UnboundedSender<Urgent>,
        on_held: OnHeld,
        on_record: Option<OnRecord>,
        crew: &Crew,
    ) -> std::io::Result<(Self, Receiver<Batch>)> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let wake = Arc::new(wake);
        let waker = Arc::clone(&wake);
        let (commands, receiver) = mpsc::channel();
        let (batches, output) = mpsc::sync_channel(BATCHES);
        let (first, first_notes) = mpsc::channel();
        let (spent, spare) = mpsc::sync_channel(SPARE_BUFFERS);
        let calls = source.calls(&waker)?;
        let mut drain =
            Drain { source, calls, prompt, urgent, on_held, on_record, out: Out::new(batches, first_notes, spare) };
        let thread = crew.spawn("memscope-ring", move |post| drain.run(&receiver, &waker, post))?;
        Ok((Self { commands, first, wake, spent: Spent(spent), thread }, output))
    }

    /// Where the buffers of batches go.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.spent.clone()
    }

    /// To send notes with that explain records to come.
    #[must_use]
    pub fn first_notes(&self) -> FirstNotes {
        FirstNotes(self.first.clone())
    }

    /// For another thread that adds records.
    #[must_use]
    pub fn notes(&self) -> Notes {
        Notes { commands: self.commands.clone(), wake: Arc::clone(&self.wake) }
    }

    /// Sends a command.
    pub fn send(&self, command: Command) {
        // A reader that has ended takes no more records, so the order no longer matters.
        let _ = self.commands.send(command);
        let _ = self.wake.write(1);
    }

    /// Takes the remaining records and ends.
    pub fn finish(self) {
        self.send(Command::Finish);
        let _ = self.thread.join();
    }
}

/// Sends notes to the thread of a [`Reader`].
#[derive(Clone, Debug)]
pub struct FirstNotes(mpsc::Sender<Vec<u8>>);

impl FirstNotes {
    /// Puts this record before all later records of the transport, maybe also before waiting ones.
    pub fn send(&self, record: Vec<u8>) {
        // As in `Reader::send`. It leaves with the next batch.
        let _ = self.0.send(record);
    }
}

/// Adds records to the stream.
pub struct Notes {
    commands: mpsc::Sender<Command>,
    wake: Arc<EventFd>,
}

impl Notes {
    /// Puts a record behind all records now in the transport.
    pub fn send(&self, record: Vec<u8>) {
        // As in `Reader::send`.
        let _ = self.commands.send(Command::Note(record));
        let _ = self.wake.write(1);
    }
}

struct Drain {
    source: Source,
    calls: Calls,
    prompt: bool,
    urgent: UnboundedSender<Urgent>,
    on_held: OnHeld,
    on_record: Option<OnRecord>,
    out: Out,
}

/// The output of records.
struct Out {
    batches: SyncSender<Batch>,
    first: Receiver<Vec<u8>>,
    spare: Receiver<Vec<u8>>,
    batch: Vec<u8>,
    watermark: Watermark,
    notes: VecDeque<Waiting>,
}

/// A note that waits for the records that were in the transport when it came.
struct Waiting {
    came_ns: u64,
    /// Its own time, or that up to which all has left.
    time_ns: u64,
    note: Vec<u8>,
}

impl Drain {
    fn run(&mut self, commands: &Receiver<Command>, waker: &EventFd, post: &mut Post) {
        let (mut before, mut active) = (Instant::now(), Instant::now());
        let (mut finish, mut haste) = (false, Haste::new());
        loop {
            let _ = waker.read();
            (self.on_held)(None);
            let (notes, last) = collect(commands);
            finish |= last;
            self.out.begin(monotonic_ns(), notes);
            let now = Instant::now();
            let since = now.duration_since(before);
            before = now;
            let taken = self.drain();
            let had_notes = self.out.put_notes(taken.all);
            if taken.bytes > 0 {
                post.round();
            }
            if taken.bytes > 0 || had_notes {
                active = now;
            }
            if taken.all {
                haste.rest();
            } else {
                haste.busy(taken.bytes);
            }
            let finished = finish && taken.bytes == 0;
            if now.duration_since(active) < AFTERGLOW || finished {
                let watermark_ns = self.out.watermark.after(taken.all);
                if self.out.hand_on(if finished { u64::MAX } else { watermark_ns }).is_err() || finished {
                    return;
                }
            }
            if taken.bytes < BATCH_BYTES / 8 {
                self.out.give_back();
            }
            if taken.all && !finish {
                self.calls.wait(if self.prompt { SHORTEST_PAUSE } else { pause(taken.bytes, since) });
            }
        }
    }

    fn drain(&mut self) -> Taken {
        let Self { source, urgent, on_held, on_record, out, .. } = self;
        let keeps_order = source.keeps_order();
        source.drain(ROUND_BYTES, |record| {
            if let Some(report) = urgency(record) {
                if report.held.is_some() {
                    on_held(report.held);
                }
                let _ = urgent.send(report);
            }
            if keeps_order {
                out.watermark.see(u64_at(record, std::mem::offset_of!(Header, time_ns)));
            }
            let record = trim(record);
            let fixed = with_text(record, text_of_process);
            let record = fixed.as_deref().unwrap_or(record);
            if let Some(on_record) = on_record {
                on_record(record);
            }
            out.put(record);
        })
    }
}

impl Out {
    fn new(batches: SyncSender<Batch>, first: Receiver<Vec<u8>>, spare: Receiver<Vec<u8>>) -> Self {
        let (watermark, notes) = (Watermark::default(), VecDeque::new());
        Self { batches, first, spare, batch: Vec::new(), watermark, notes }
    }

    /// A round begins, with the notes that have come.
    fn begin(&mut self, now_ns: u64, notes: Vec<Vec<u8>>) {
        let left_ns = self.watermark.after(true);
        self.watermark.round(now_ns);
        let time_ns = |note: &[u8]| u64_at(note, std::mem::offset_of!(Header, time_ns)).max(left_ns);
        self.notes.extend(notes.into_iter().map(|note| Waiting { came_ns: now_ns, time_ns: time_ns(&note), note }));
        self.watermark.notes(self.oldest_note());
    }

    /// Puts the notes with no older record left in the transport; returns whether there were any.
    fn put_notes(&mut self, all_taken: bool) -> bool {
        let waited = self.notes.len();
        let is_next = |waiting: &mut Waiting| all_taken || self.watermark.passed(waiting.came_ns);
        while let Some(Waiting { note, .. }) = self.notes.pop_front_if(is_next) {
            self.batch.extend_from_slice(&note);
        }
        self.watermark.notes(self.oldest_note());
        self.notes.len() < waited
    }

    fn oldest_note(&self) -> Option<u64> {
        self.notes.iter().map(|waiting| waiting.time_ns).min()
    }

    fn put(&mut self, record: &[u8]) {
        self.batch.extend_from_slice(record);
        if self.batch.len() >= BATCH_BYTES {
            let _ = self.hand_on(self.watermark.after(false));
        }
    }

    fn hand_on(&mut self, watermark_ns: u64) -> Result<(), ()> {
        let mut next = self.spare.try_recv().unwrap_or_default();
        next.clear();
        let bytes = explained(&self.first, std::mem::replace(&mut self.batch, next));
        self.batches.send(Batch { bytes, watermark_ns }).map_err(|_| ())
    }

    /// Frees the buffers while few records come.
    fn give_back(&mut self) {
        while self.spare.try_recv().is_ok() {}
        if self.batch.is_empty() {
            self.batch = Vec::new();
        }
    }
}

/// The pause after a round of this many bytes in this much time: until about a batch is ready.
fn pause(taken: usize, since: Duration) -> Duration {
    let nanos = since.as_nanos() * BATCH_BYTES as u128 / taken.max(1) as u128;
    let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// The batch behind the notes that explain its records. Those were sent before the records could be made, so they are
/// there when the records have been taken.
fn explained(first: &Receiver<Vec<u8>>, batch: Vec<u8>) -> Vec<u8> {
    let mut notes: Vec<u8> = first.try_iter().flatten().collect();
    if notes.is_empty() {
        return batch;
    }
    notes.extend(batch);
    notes
}

fn collect(commands: &Receiver<Command>) -> (Vec<Vec<u8>>, bool) {
    let mut notes = Vec::new();
    loop {
        match commands.try_recv() {
            Ok(Command::Note(note)) => notes.push(note),
            Ok(Command::Finish) | Err(TryRecvError::Disconnected) => return (notes, true),
            Err(TryRecvError::Empty) => return (notes, false),
        }
    }
}

/// The record without the padding of the transport.
fn trim(record: &[u8]) -> &[u8] {
    let len = usize::from(u16_at(record, std::mem::offset_of!(Header, len)));
    if len < size_of::<Header>() { record } else { record.get(..len).unwrap_or(record) }
}

#[cfg(test)]
mod tests {
    use memscope_common::record::Kind;

    use super::{super::urgent::tests::record, *};

    /// Buffers come back, and are freed when few records come; large ones are not kept.
    #[test]
    fn buffers_are_used_again() {
        let (spent, spare) = mpsc::sync_channel(SPARE_BUFFERS);
        let spent = Spent(spent);
        let (batches, output) = mpsc::sync_channel(BATCHES);
        let (_first, first) = mpsc::channel();
        let mut out = Out::new(batches, first, spare);
        spent.give(Vec::with_capacity(8 * BATCH_BYTES));
        spent.give(vec![9; 1000]);
        out.put(&[1, 2]);
        assert_eq!((out.hand_on(5), out.batch.capacity() >= 1000, out.batch.is_empty()), (Ok(()), true, true));
        out.put(&[3]);
        assert_eq!(out.hand_on(6), Ok(()));
        let taken: Vec<_> = output.try_iter().map(|batch| (batch.bytes, batch.watermark_ns)).collect();
        assert_eq!(taken, [(vec![1, 2], 5), (vec![3], 6)]);
        spent.give(vec![9; 1000]);
        out.give_back();
        assert_eq!((out.spare.try_recv().is_err(), out.batch.capacity()), (true, 0));
    }

    /// A note comes behind the records that were there, though more come all the time, and none leaves before it that is
    /// younger.
    #[test]
    fn notes_come_behind_what_waits() {
        let (batches, output) = mpsc::sync_channel(BATCHES);
        let (_first, first) = mpsc::channel();
        let (_spent, spare) = mpsc::sync_channel(SPARE_BUFFERS);
        let mut out = Out::new(batches, first, spare);
        let second = 1_000_000_000;
        out.begin(5 * second, Vec::new());
        // Made at 5.5 s.
        let note = [&(5 * second + second / 2).to_le_bytes()[..], b"note"].concat();
        out.begin(6 * second, vec![note.clone()]);
        let take = |out: &mut Out, time_ns| {
            out.watermark.see(time_ns);
            out.put(b"record");
            assert_eq!(out.hand_on(out.watermark.after(false)), Ok(()));
            let had_notes = out.put_notes(false);
            let batch = output.try_recv().expect("handed on");
            (had_notes, batch.bytes, batch.watermark_ns)
        };
        let slack_ns = second / 10;
        assert_eq!(take(&mut out, 4 * second), (false, b"record".to_vec(), 4 * second - slack_ns));
        // As old as the arrival of the note: another one may be.
        assert_eq!(take(&mut out, 6 * second), (false, b"record".to_vec(), 5 * second + second / 2));
        assert_eq!(take(&mut out, 6 * second + 1), (true, b"record".to_vec(), 5 * second + second / 2));
        let behind = [note.as_slice(), b"record"].concat();
        assert_eq!(take(&mut out, 6 * second + 2), (false, behind, 6 * second - slack_ns));
        out.begin(7 * second, vec![b"last".to_vec()]);
        assert_eq!((out.put_notes(true), out.batch.as_slice()), (true, b"last".as_slice()));
    }

    /// A batch is 256 KiB: at 10 MB/s that takes 26 ms, at 1 MB/s a quarter of a second.
    #[test]
    fn pauses_fill_a_batch() {
        let after = |taken, since_ms| pause(taken, Duration::from_millis(since_ms)).as_millis();
        assert_eq!([after(1_000_000, 100), after(100_000, 100), after(0, 100)], [26, 200, 200]);
        assert_eq!([after(100_000_000, 100), after(0, 0), after(1, 0)], [20, 20, 20]);
    }

    #[test]
    fn padding_of_the_transport_is_cut_off() {
        let mut padded = record(Kind::Library);
        padded.extend([0; 4]);
        assert_eq!(trim(&padded).len(), 32);
        assert_eq!(trim(&padded[..30]).len(), 30);
        assert_eq!(trim(&padded[..10]).len(), 10);
    }
}
