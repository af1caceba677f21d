//! Threads of ours. One that panics ends the trace in order: the session gets a report, and the traced programs
//! continue.

use std::{
    any::Any,
    cell::Cell,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread::{self, JoinHandle},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A thread that panicked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the thread.
    pub thread: String,
    /// The message of the panic.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread `{}` of this tracer failed ({})", self.thread, self.text)
    }
}

/// Starts threads, and gets reports of those that panic.
#[derive(Clone, Debug)]
pub struct Crew {
    faults: UnboundedSender<Fault>,
    /// The thread that fails on purpose, in tests.
    fails: Option<String>,
}

impl Crew {
    /// `fails` names a thread that fails on purpose, for tests of the consequences.
    #[must_use]
    pub fn new(fails: Option<String>) -> (Self, UnboundedReceiver<Fault>) {
        let (faults, receiver) = unbounded_channel();
        (Self { faults, fails }, receiver)
    }

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// When there is no room for one more.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&mut Post) -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let mut post = self.post(name);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| work(&mut post)));
            done.unwrap_or_else(|panic| {
                post.report(&*panic);
                resume_unwind(panic)
            })
        })
    }

    /// The post of a thread that was not started here.
    #[must_use]
    pub fn post(&self, name: &str) -> Post {
        let fails_after = (self.fails.as_deref() == Some(name)).then_some(ROUNDS_BEFORE_FAILURE);
        Post { name: name.to_owned(), faults: self.faults.clone(), fails_after }
    }
}

/// A thread that fails on purpose does some of its work before.
const ROUNDS_BEFORE_FAILURE: u32 = 3;

/// A thread's own view of the crew.
#[derive(Debug)]
pub struct Post {
    name: String,
    faults: UnboundedSender<Fault>,
    fails_after: Option<u32>,
}

impl Post {
    /// Does a part of the work; `None` if it panicked; the session gets a report.
    pub fn part<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.map_err(|panic| self.report(&*panic)).ok()
    }

    /// To be called in each round of work: here a test has the thread fail.
    pub fn round(&mut self) {
        let Some(left) = &mut self.fails_after else { return };
        if let Some(fewer) = left.checked_sub(1) {
            *left = fewer;
        } else {
            self.fails_after = None;
            panic!("as was asked for by --fail-thread")
        }
    }

    fn report(&self, panic: &(dyn Any + Send)) {
        // A session that has ended needs no report.
        let _ = self.faults.send(Fault { thread: self.name.clone(), text: panic_text(panic).to_owned() });
    }
}

/// Does work that a hostile file may make panic, without a report.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    done.ok()
}

/// Whether a panic of this thread is expected.
#[must_use]
pub fn is_quiet() -> bool {
    QUIET.get()
}

/// The message of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that panics is reported with its name and message, and others are not.
    #[test]
    fn panics_are_reported() {
        let (crew, mut faults) = Crew::new(Some("one".to_owned()));
        let rounds = |post: &mut Post| (0..10).for_each(|_| post.round());
        crew.spawn("other", rounds).expect("started").join().expect("it does not fail");
        crew.spawn("one", rounds).expect("started").join().expect_err("it fails");
        let number = 7;
        crew.spawn("three", move |_| assert_eq!(number, 8)).expect("started").join().expect_err("it fails");
        let first = faults.try_recv().expect("a fault");
        assert_eq!(first.to_string(), "thread `one` of this tracer failed (as was asked for by --fail-thread)");
        let second = faults.try_recv().expect("a fault");
        assert!(second.thread == "three" && second.text.contains("right: 8"), "{second}");
        assert!(faults.try_recv().is_err());
    }

    /// A thread can continue with other work.
    #[test]
    fn parts_of_the_work() {
        let (crew, mut faults) = Crew::new(None);
        let mut post = crew.post("one");
        assert_eq!(post.part(|_| 5), Some(5));
        assert_eq!(post.part(|_| -> u8 { panic!("no") }), None);
        assert_eq!(faults.try_recv(), Ok(Fault { thread: "one".to_owned(), text: "no".to_owned() }));
        assert_eq!(quietly(|| -> u8 { panic!("no") }), None);
        assert!(faults.try_recv().is_err() && !is_quiet());
    }
}
