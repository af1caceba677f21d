//! Records between the kernel and the writer.

use std::path::PathBuf;

use super::{stacks, start::clocks};
use crate::{
    capture::{Note, note_record},
    os::clock::monotonic_ns,
    ring::{Command, Reader},
};

/// The reader, the stage for call stacks, and the capture.
pub(super) struct Stream {
    pub(super) reader: Reader,
    pub(super) stacks: stacks::Live,
    pub(super) capture: Option<PathBuf>,
}

impl Stream {
    /// Puts a note behind the records in the transport.
    pub(super) fn note(&self, note: &Note) {
        self.reader.send(Command::Note(note_record(monotonic_ns(), 0, note)));
    }

    /// Compares the clocks, for times of a long trace.
    pub(super) fn note_clock(&self) {
        let (mono_ns, real_ns) = clocks();
        self.note(&Note::Clock { mono_ns, real_ns });
    }
}
