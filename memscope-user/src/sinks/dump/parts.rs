//! Parts of the files of a trace: when one is full all files begin again, and those of the oldest part are removed.

use std::collections::VecDeque;

use super::super::tree::Place;

/// Rows of all files from look to look.
pub(super) const LOOK_ROWS: u64 = 512;

/// The amount that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes of all files of a part; checked at each flush, and every 512 rows.
    pub part_bytes: u64,
    /// Parts that stay, the one being written included.
    pub parts: usize,
}

/// The parts that there are.
#[derive(Debug)]
pub(super) struct Parts {
    rotation: Rotation,
    /// Number of the part being written, from 1.
    number: u64,
    /// Its files.
    files: Vec<Place>,
    /// Bytes of its complete files.
    ended_bytes: u64,
    /// Files of the parts before, oldest first.
    before: VecDeque<Vec<Place>>,
}

impl Parts {
    pub(super) const fn new(rotation: Rotation) -> Self {
        Self { rotation, number: 1, files: Vec::new(), ended_bytes: 0, before: VecDeque::new() }
    }

    /// What names of files have behind their time.
    pub(super) fn suffix(&self) -> String {
        format!("_part{}", self.number)
    }

    pub(super) fn made(&mut self, place: Place) {
        self.files.push(place);
    }

    /// A file of this part is complete.
    pub(super) const fn ended(&mut self, size_bytes: u64) {
        self.ended_bytes += size_bytes;
    }

    /// Whether the next part is due, with `open_bytes` in incomplete files.
    pub(super) const fn are_full(&self, open_bytes: u64) -> bool {
        self.ended_bytes + open_bytes >= self.rotation.part_bytes
    }

    /// Begins the next part; returns the files to remove.
    pub(super) fn next(&mut self) -> Vec<Place> {
        self.number += 1;
        self.ended_bytes = 0;
        self.before.push_back(std::mem::take(&mut self.files));
        let too_many = self.before.len().saturating_sub(self.rotation.parts.saturating_sub(1));
        self.before.drain(..too_many).flatten().collect()
    }
}
