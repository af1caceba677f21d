//! When a trace without an end looks for files that its processes do not use any more. The reading of what they have mapped takes a few
//! milliseconds for each, so the loop, which new processes wait for, does not wait for that.

use std::{collections::HashSet, future, thread};

use tokio::{sync::oneshot, time::Interval};

use crate::{
    follow::mapped_by,
    os::{maps::FileId, priority},
};

/// Files that processes have mapped; `None`: not known of one of them.
type Mapped = Option<HashSet<FileId>>;

/// What the loop is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is time: [`Unused::look`].
    Begin,
    /// The look is over.
    Mapped(HashSet<FileId>),
}

/// The looks.
pub(super) struct Unused {
    interval: Option<Interval>,
    look: Option<oneshot::Receiver<Mapped>>,
}

impl Unused {
    /// Looks in this interval, if at all.
    pub(super) const fn new(interval: Option<Interval>) -> Self {
        Self { interval, look: None }
    }

    /// Waits for the next turn. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Turn {
        loop {
            if let Some(look) = &mut self.look {
                let mapped = look.await;
                self.look = None;
                // Where it failed, the next look is as good.
                if let Ok(Some(mapped)) = mapped {
                    return Turn::Mapped(mapped);
                }
            } else if let Some(interval) = &mut self.interval {
                interval.tick().await;
                return Turn::Begin;
            } else {
                return future::pending().await;
            }
        }
    }

    /// Looks at these processes, in a thread of its own.
    pub(super) fn look(&mut self, pids: Vec<u32>) {
        let (over, look) = oneshot::channel();
        let work = move || {
            priority::give_way(priority::LOW);
            // The trace may have ended.
            let _ = over.send(mapped_by(pids));
        };
        if thread::Builder::new().name("memscope-unused".to_owned()).spawn(work).is_ok() {
            self.look = Some(look);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::interval;

    use super::*;
    use crate::os::maps::mapped_files;

    /// The first look is at once; what a process has mapped is its answer, and a process that is gone has nothing mapped.
    #[test]
    fn a_look_finds_what_is_mapped() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _inside = runtime.enter();
        let mut unused = Unused::new(Some(interval(Duration::from_secs(3600))));
        assert_eq!(runtime.block_on(unused.next()), Turn::Begin);
        let own = std::process::id();
        unused.look(vec![u32::MAX / 2, own]);
        let Turn::Mapped(mapped) = runtime.block_on(unused.next()) else { panic!("no answer") };
        let files = mapped_files(own).expect("own mappings");
        assert!(!files.is_empty() && files.iter().all(|file| mapped.contains(&file.id)));
    }
}
