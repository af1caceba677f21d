//! Files of the directory, uploaded: the oldest first, each removed once the store has it. A store that is away takes no time of the agent
//! and none of the thread that writes: files wait in the directory, up to its bound.

use std::{
    io::{self, Read as _},
    path::PathBuf,
    sync::{
        PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    time::{Duration, Instant},
};

use super::{
    files::{Folder, Own, Owner, find, remove, version_folder},
    store::Turn,
};
use crate::crew::Crew;

/// From one look at the directory to the next, and from a failure to the next attempt.
const PAUSE: Duration = Duration::from_secs(60);
/// A larger file is none of ours: rows of a file take 8 MiB in memory.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// A round ends at so much bad luck: the store is away.
const MAX_FAILURES: u64 = 3;

/// Where files go.
pub(super) trait Target: Send + 'static {
    /// Puts an object, if none of this name is there. One that is there already is the same file: names are never used twice.
    fn put(&mut self, path: &str, bytes: Vec<u8>) -> Result<(), String>;
}

/// What came of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) uploaded_files: u64,
    pub(super) failed_files: u64,
    /// What is left in the directory.
    pub(super) waiting_bytes: u64,
    /// Why the last one failed.
    pub(super) error: Option<String>,
}

/// The thread's side.
pub(super) struct Uploader<T> {
    pub(super) directory: PathBuf,
    pub(super) owner: Owner,
    pub(super) turn: Turn,
    pub(super) target: T,
}

impl<T: Target> Uploader<T> {
    /// Uploads all that is there.
    pub(super) fn round(&mut self) -> Round {
        let mut round = Round::default();
        let root = Folder::open(&self.directory).and_then(|root| root.enter(&version_folder()));
        let root = match root {
            Ok(root) => root,
            // Nothing was written yet; the thread that writes complains about a directory that is not there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return round,
            Err(error) => return Round { error: Some(error.to_string()), ..round },
        };
        let files = find(&root, &self.owner, |_, _| {});
        round.waiting_bytes = files.values().sum();
        for (file, bytes) in files.into_iter().filter(|(_, bytes)| *bytes <= MAX_FILE_BYTES) {
            match self.upload(&root, &file) {
                Ok(is_uploaded) => {
                    round.uploaded_files += u64::from(is_uploaded);
                    round.waiting_bytes -= bytes;
                }
                Err(error) => {
                    round.failed_files += 1;
                    round.error = Some(error);
                    if round.failed_files == MAX_FAILURES {
                        break;
                    }
                }
            }
        }
        round
    }

    /// Uploads a file, and removes it. Gives whether it was still there.
    fn upload(&mut self, root: &Folder, file: &Own) -> Result<bool, String> {
        let mut bytes = Vec::new();
        match file.open(root).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)) {
            Ok(_) => {}
            // It made room for a newer one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
        self.target.put(&file.path(), bytes)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match remove(root, file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("cannot remove it here: {error}")),
            _ => Ok(true),
        }
    }

    fn run(mut self, wake: &Receiver<Wake>, rounds: &Sender<Round>) {
        let mut is_last = false;
        loop {
            if rounds.send(self.round()).is_err() || is_last {
                return;
            }
            match wake.recv_timeout(PAUSE) {
                Ok(Wake::Look) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Wake::End) => is_last = true,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

enum Wake {
    /// A file was written.
    Look,
    End,
}

/// The agent's side.
pub(super) struct Upload {
    wake: Sender<Wake>,
    rounds: Receiver<Round>,
    /// Sums of all rounds; the rest is of the last one.
    sum: Round,
}

impl Upload {
    /// Starts the thread.
    pub(super) fn start<T: Target>(uploader: Uploader<T>) -> io::Result<Self> {
        let ((wake, to_wake), (to_report, rounds)) = (channel(), channel());
        // A failure shows by the channel's end.
        let (crew, _) = Crew::new(None);
        crew.spawn("memscope-upld", move |_| uploader.run(&to_wake, &to_report))?;
        Ok(Self { wake, rounds, sum: Round::default() })
    }

    pub(super) const fn sum(&self) -> &Round {
        &self.sum
    }

    /// A file was written.
    pub(super) fn look(&self) {
        // Without the thread, `work` has the message.
        let _ = self.wake.send(Wake::Look);
    }

    /// Takes what came of rounds. Gives a message where uploads begin to fail, or succeed again.
    pub(super) fn work(&mut self) -> Option<String> {
        let mut message = None;
        loop {
            match self.rounds.try_recv() {
                Ok(round) => message = self.take(round).or(message),
                Err(TryRecvError::Empty) => return message,
                Err(TryRecvError::Disconnected) => return self.gone().or(message),
            }
        }
    }

    fn take(&mut self, round: Round) -> Option<String> {
        let was_failing = self.sum.error.is_some();
        self.sum.uploaded_files += round.uploaded_files;
        self.sum.failed_files += round.failed_files;
        self.sum.waiting_bytes = round.waiting_bytes;
        self.sum.error = round.error;
        match &self.sum.error {
            Some(error) if !was_failing => {
                Some(format!("evidence cannot be uploaded ({error}): its files wait in the directory"))
            }
            None if was_failing => Some("evidence is uploaded again".to_owned()),
            _ => None,
        }
    }

    fn gone(&mut self) -> Option<String> {
        let error = Some("the thread that uploads has failed".to_owned());
        self.take(Round { error, waiting_bytes: self.sum.waiting_bytes, ..Round::default() })
    }

    /// Uploads what is left, within this time. Gives a message where files are left.
    pub(super) fn finish(&mut self, longest: Duration) -> Option<String> {
        let end = Instant::now() + longest;
        let _ = self.wake.send(Wake::End);
        let is_late = loop {
            match self.rounds.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(round) => drop(self.take(round)),
                // The thread has ended behind its last round.
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        let Round { waiting_bytes, error, .. } = &self.sum;
        if is_late {
            let seconds = longest.as_secs_f64();
            return Some(format!("evidence is not uploaded within {seconds} s: its files wait in the directory"));
        }
        let why = error.as_deref().unwrap_or("too large");
        (*waiting_bytes > 0)
            .then(|| format!("{waiting_bytes} bytes of evidence are not uploaded ({why}): they wait in the directory"))
    }
}

#[cfg(test)]
mod tests;
