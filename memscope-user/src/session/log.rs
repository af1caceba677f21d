//! Messages of a trace: to the listener, and into the log of the run.

use std::{
    fmt,
    panic::Location,
    sync::{Arc, Mutex, PoisonError, TryLockError},
};

use super::listener::{Listener, Message};
use crate::sinks::log::{Level, LogFile};

/// The log of a run, for all its threads.
#[derive(Debug)]
pub struct RunLog(Mutex<LogFile>);

impl RunLog {
    /// Shares a log file.
    #[must_use]
    pub const fn new(file: LogFile) -> Self {
        Self(Mutex::new(file))
    }

    /// Writes one line; `place` is in the source of the caller.
    pub fn line(&self, level: Level, place: &Location<'_>, text: fmt::Arguments<'_>) {
        let mut log = match self.0.try_lock() {
            Ok(log) => log,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // This thread may have it, if it panicked in there.
            Err(TryLockError::WouldBlock) if std::thread::panicking() => return,
            Err(TryLockError::WouldBlock) => self.0.lock().unwrap_or_else(PoisonError::into_inner),
        };
        // An unwritable log is no reason to disturb the trace: the listener has the message.
        let _ = log.line(level, place.file(), place.line(), &text.to_string());
    }
}

/// Sends messages to the listener and to the log.
#[derive(Clone)]
pub(crate) struct Speaker {
    listener: Arc<dyn Listener>,
    log: Option<Arc<RunLog>>,
}

impl Speaker {
    /// Speaks to this listener alone.
    pub(crate) const fn new(listener: Arc<dyn Listener>) -> Self {
        Self { listener, log: None }
    }

    /// Speaks to the log, too.
    pub(super) fn with_log(self, log: Arc<RunLog>) -> Self {
        Self { log: Some(log), ..self }
    }

    pub(super) fn listener(&self) -> &Arc<dyn Listener> {
        &self.listener
    }

    /// Sends a message. The place is the caller's.
    #[track_caller]
    pub(crate) fn say(&self, level: Level, text: fmt::Arguments<'_>) {
        self.say_of(level, Location::caller(), text);
    }

    /// Sends the message of another place.
    pub(super) fn say_of(&self, level: Level, place: &'static Location<'static>, text: fmt::Arguments<'_>) {
        self.listener.message(&Message { level, place, text });
        if let Some(log) = &self.log {
            log.line(level, place, text);
        }
    }

    #[track_caller]
    pub(crate) fn debug(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Debug, text);
    }

    #[track_caller]
    pub(crate) fn info(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Info, text);
    }

    #[track_caller]
    pub(crate) fn warn(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Warn, text);
    }

    #[track_caller]
    pub(crate) fn error(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Error, text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::*;
    use crate::sinks::tree::OutputTree;

    #[derive(Default)]
    struct Places(Mutex<Vec<(String, u32)>>);

    impl Listener for Places {
        fn message(&self, message: &Message<'_>) {
            let place = (message.place.file().to_owned(), message.place.line());
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(place);
        }
    }

    /// Each message has the place of the line that sends it, for the listener and in the log.
    #[test]
    fn messages_name_their_callers() {
        let root = tempfile::tempdir().expect("temporary directory");
        let tree = OutputTree::open(root.path(), None).expect("directory");
        let dir = tree.make_process_dir(7).expect("directory");
        let file = LogFile::create(&tree, &dir, Level::Debug).expect("writable");
        let path = file.path().to_owned();
        let places = Arc::new(Places::default());
        let listener: Arc<dyn Listener> = Arc::<Places>::clone(&places);
        let speaker = Speaker::new(listener).with_log(Arc::new(RunLog::new(file)));
        let first = line!() + 1;
        speaker.info(format_args!("one"));
        speaker.say(Level::Warn, format_args!("two"));
        let places = places.0.lock().expect("not poisoned").clone();
        assert_eq!(places, [(file!().to_owned(), first), (file!().to_owned(), first + 1)]);
        let log = std::fs::read_to_string(path).expect("readable");
        let brackets: Vec<&str> = log.lines().filter_map(|line| line.split(['[', ']']).nth(3)).collect();
        assert_eq!(brackets, [format!("log.rs:{first}"), format!("log.rs:{}", first + 1)]);
    }
}
