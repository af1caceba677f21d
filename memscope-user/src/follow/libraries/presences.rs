//! Shows the tracer to the Python packages, without waiting long.
//!
//! `perf_event_open`, where there are no links of this kind, takes the kernel's lock of trace events. Another tracer
//! keeps that lock at its end until no thread is inside a program that may wait. A thread that we hold is inside one: each
//! would wait for the other until the hold is given up.

use std::{
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use super::Library;
use crate::{
    error_chain,
    kernel::{Kernel, LinkSet, semaphore::Place},
};

/// How long a held thread waits for it. It takes 0.1 ms where the lock is free.
const PATIENCE: Duration = Duration::from_millis(100);

type Answer = (LinkSet, PathBuf, Result<OwnedFd, String>);

/// The descriptors that show us while they are open.
#[derive(Debug)]
pub(super) struct Presences {
    open: Vec<(LinkSet, OwnedFd)>,
    asked: usize,
    answer: Sender<Answer>,
    answers: Receiver<Answer>,
}

impl Default for Presences {
    fn default() -> Self {
        let (answer, answers) = mpsc::channel();
        Self { open: Vec::new(), asked: 0, answer, answers }
    }
}

impl Presences {
    /// Shows us to the package in this file, or begins to. `links`: the file's probes.
    pub(super) fn announce(
        &mut self,
        kernel: &mut Kernel,
        links: LinkSet,
        (place, file, path): (Place, File, PathBuf),
    ) {
        if let Some(Ok(shown)) = kernel.announce(place, &file) {
            self.open.push((links, shown));
            return;
        }
        let answer = self.answer.clone();
        let announcing = {
            let path = path.clone();
            move || {
                let made = place.announce(&file).map_err(|error| error_chain(&error));
                // The trace may have ended.
                let _ = answer.send((links, path, made));
            }
        };
        self.asked += 1;
        if let Err(error) = thread::Builder::new().name("memscope-show".to_owned()).spawn(announcing) {
            let _ = self.answer.send((links, path, Err(error_chain(&error))));
        }
    }

    /// Shows us no more in the files with these probes.
    pub(super) fn forget(&mut self, links: &[LinkSet]) {
        self.open.retain(|(of, _)| !links.contains(of));
    }

    /// Waits for what was begun, but not long: the rest comes later. Returns files for which it failed.
    pub(super) fn wait(&mut self) -> Vec<Library> {
        let until = Instant::now() + PATIENCE;
        let mut failed = Vec::new();
        while self.asked > 0
            && let Ok((links, path, made)) = self.answers.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.asked -= 1;
            match made {
                Ok(shown) => self.open.push((links, shown)),
                Err(why) => failed.push(unshown(&path, &why)),
            }
        }
        failed
    }
}

fn unshown(path: &Path, why: &str) -> Library {
    let text = format!("the tracer cannot be announced to scripts: {why}");
    Library { error: Some(text), ..Library::at(path) }
}
