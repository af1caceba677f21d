//! Failed allocations, and whether they matter: a pool that is refused memory gives its cache back and asks again.
//!
//! Attempts of one thread are one request until something else tells that it is over: it succeeded, or the thread
//! asked how much memory is left, which is what `torch_npu` does before it raises its error, or it asks for another
//! size, or too much time has passed. An expandable segment asks the same when it is made, and then reserves addresses:
//! that is part of the next attempt. A thread that has raised its error asks twice before that.

use super::recent::Recent;
use crate::model::{Device, Pool};

/// Threads whose last failure is remembered.
const MAX_THREADS: usize = 4096;
/// A pool synchronizes its device between two attempts, which takes as long as the work queued there; a program that
/// asks for the same size again after this time asks anew.
const PATIENCE_NS: u64 = 60_000_000_000;
/// The driver is asked for a little more than the caller of ACL or the runtime wanted (ascend-abi §2.1).
const PADDING_BYTES: u64 = 4096;

/// What a thread has asked for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Number in the process, from 1.
    pub(super) number: u64,
    pub(super) attempts: u32,
    pub(super) wish: Wish,
    time_ns: u64,
    /// How often the thread has asked how much is left, since its last failure.
    questions: u32,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) pool: Pool,
    pub(super) device: Device,
    pub(super) size_bytes: u64,
}

/// Requests of one process that have failed so far.
#[derive(Debug)]
pub(super) struct Requests {
    open: Recent<u32, Request>,
    count: u64,
}

impl Default for Requests {
    fn default() -> Self {
        Self { open: Recent::new(MAX_THREADS), count: 0 }
    }
}

impl Requests {
    /// An attempt of thread `tid` has failed: a further one of its open request, or the first of a new one.
    pub(super) fn failed(&mut self, tid: u32, time_ns: u64, wish: Wish) -> Request {
        let request = match self.open.get(&tid) {
            Some(open)
                if open.questions == 0 && open.wish == wish && time_ns.saturating_sub(open.time_ns) < PATIENCE_NS =>
            {
                Request { attempts: open.attempts + 1, time_ns, ..*open }
            }
            _ => Request { number: self.number(), attempts: 1, wish, time_ns, questions: 0 },
        };
        self.open.insert(tid, request);
        request
    }

    /// A number for a failure that nobody tries again.
    pub(super) fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The thread asks how much memory is left: it has given up, or makes an expandable segment.
    pub(super) fn asked(&mut self, tid: u32) {
        if let Some(open) = self.open.get(&tid).copied() {
            self.open.insert(tid, Request { questions: open.questions.saturating_add(1), ..open });
        }
    }

    /// The thread reserves addresses: what it asked just before was for them.
    pub(super) fn reserved(&mut self, tid: u32) {
        match self.open.get(&tid).copied() {
            Some(open) if open.questions == 1 => self.open.insert(tid, Request { questions: 0, ..open }),
            Some(open) if open.questions > 1 => drop(self.open.remove(&tid)),
            _ => {}
        }
    }

    /// The thread got what it asked for.
    pub(super) fn succeeded(&mut self, tid: u32) -> Option<Request> {
        self.open.remove(&tid).filter(|open| open.questions == 0)
    }

    /// The driver gave the thread `size_bytes`: maybe what it had asked for in vain.
    pub(super) fn driver_gave(&mut self, tid: u32, size_bytes: u64) -> Option<Request> {
        let wanted = self.open.get(&tid).filter(|open| open.questions == 0)?.wish.size_bytes;
        let fits = size_bytes.checked_sub(wanted).is_some_and(|more| more <= PADDING_BYTES);
        if fits { self.open.remove(&tid) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    const fn wish(size_bytes: u64) -> Wish {
        Wish { pool: Pool::Hal, device: Device::Npu(0), size_bytes }
    }

    fn numbers(requests: &mut Requests, failures: &[(u32, u64, u64)]) -> Vec<(u64, u32)> {
        let number = |&(tid, time_ns, size)| {
            let request = requests.failed(tid, time_ns, wish(size));
            (request.number, request.attempts)
        };
        failures.iter().map(number).collect()
    }

    /// Two attempts of one thread are one request; those of another thread, of another size, and after a long time are not.
    #[test]
    fn attempts_are_told_from_requests() {
        let mut requests = Requests::default();
        let failures = [(1, 0, 100), (2, 1, 100), (1, 2, 100), (1, 3, 200), (1, 100 * SECOND, 200)];
        assert_eq!(numbers(&mut requests, &failures), [(1, 1), (2, 1), (1, 2), (3, 1), (4, 1)]);
    }

    /// Who asks how much is left has given up: the next failure of that size is another request.
    #[test]
    fn giving_up_ends_a_request() {
        let mut requests = Requests::default();
        assert_eq!(numbers(&mut requests, &[(1, 0, 100)]), [(1, 1)]);
        requests.asked(1);
        assert_eq!(requests.succeeded(1), None);
        assert_eq!(numbers(&mut requests, &[(1, 1, 100)]), [(2, 1)]);
        requests.asked(1);
        assert_eq!(numbers(&mut requests, &[(1, 2, 100)]), [(3, 1)]);
    }

    /// Who asks how much is left and then reserves addresses goes on: it makes a segment. Who has asked once more before
    /// has given up, and makes one for something else.
    #[test]
    fn making_a_segment_is_no_giving_up() {
        let mut requests = Requests::default();
        assert_eq!(numbers(&mut requests, &[(1, 0, 100)]), [(1, 1)]);
        requests.asked(1);
        requests.reserved(1);
        assert_eq!(numbers(&mut requests, &[(1, 1, 100)]), [(1, 2)]);
        requests.asked(1);
        requests.asked(1);
        requests.reserved(1);
        assert_eq!(requests.succeeded(1), None);
        assert_eq!(numbers(&mut requests, &[(1, 2, 100)]), [(2, 1)]);
    }

    /// The driver's size is padded; another size is another allocation.
    #[test]
    fn driver_sizes_are_padded() {
        let mut requests = Requests::default();
        requests.failed(1, 0, wish(1000));
        assert_eq!(requests.driver_gave(1, 999), None);
        assert_eq!(requests.driver_gave(2, 1000), None);
        assert_eq!(requests.driver_gave(1, 1056).map(|request| request.attempts), Some(1));
        assert_eq!(requests.driver_gave(1, 1056), None);
    }
}
