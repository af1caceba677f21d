//! Requests that failed for want of memory: what the process held at that moment, made outside of it, so that it is whole although
//! the process is killed.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{
    flight::Recent,
    series::{Place, Series, SeriesKey},
};
use crate::{
    hash::HashMap,
    model::{AllocFailed, Device, Event, HolderPath, Look, Looked, LookedAt, PlaceLook, Pool, Stacks},
};

/// Places of a bundle.
const MAX_PLACES: usize = 50;
/// Bundles that wait to be written.
const MAX_WAITING: usize = 16;
/// What a bundle says until a look is over.
const NO_LOOK: &str = "there was no time for it";
/// One bundle of a process in this time.
const PAUSE_NS: u64 = 60_000_000_000;
/// A bundle is begun at the first attempt no more often than this: requests of a full pool fail and succeed all the time.
const PAUSE_OF_ATTEMPTS_NS: u64 = 1_000_000_000;
/// The outcome of a request is known in this time.
const LONGEST_REQUEST: Duration = Duration::from_secs(60);
/// Processes of which the last bundle is remembered.
const MAX_REMEMBERED: usize = 16_384;

/// A place in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BundlePlace {
    /// Where.
    pub stacks: Stacks,
    /// Size of its blocks, where there is no stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// What held its blocks then, where that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<BundleHolders>,
}

/// What held the blocks of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BundleHolders {
    /// Blocks that were looked at.
    pub looked_at_blocks: u64,
    /// Of these: held by rings that are not collected yet.
    pub garbage_blocks: u64,
    /// Of these: no holder was found.
    pub unknown_blocks: u64,
    /// Holders, the sure ones first, each with the number of its blocks.
    pub holders: Vec<HolderPath>,
    /// Memory that was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// A pool in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BundlePool {
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// What the pool says it has handed out.
    pub used_bytes: Option<u64>,
    /// What the pool says it holds.
    pub reserved_bytes: Option<u64>,
    /// Bytes that are in no place.
    pub untracked_bytes: u64,
    /// When these figures were read out of the process's memory, nanoseconds since the Unix epoch: its pools are not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_time_ns: Option<u64>,
    /// The places that hold most.
    pub places: Vec<BundlePlace>,
}

/// What was there when a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// The pool that was asked.
    pub pool: Pool,
    /// How much.
    pub requested_bytes: u64,
    /// Code that the request returned.
    pub status: i32,
    /// Where it was asked for.
    pub stacks: Stacks,
    /// It succeeded after all, when it had been taken for failed: its thread waited for the device for more than a second.
    pub recovered: bool,
    /// Number of the request in its process.
    pub request: u64,
    /// Why holders were not looked for, if they should have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_looked_for: Option<String>,
    /// The process's pools.
    pub pools: Vec<BundlePool>,
    /// Its newest events, this request the last, where they are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recent_events: Option<Recent>,
}

/// Makes bundles.
#[derive(Debug, Default)]
pub(super) struct Failures {
    waiting: Vec<Waiting>,
    last: HashMap<u32, Last>,
    /// The newest request of each thread, by process and thread, that has failed for good.
    certain: HashMap<(u32, u32), u64>,
    /// How long bundles wait for a look; `None`: none comes.
    patience: Option<Duration>,
}

/// What is in a bundle of the process at the moment of a failure.
pub(super) struct Then<'a> {
    /// Its pools.
    pub(super) sheets: Vec<(SeriesKey, &'a Series)>,
    /// Its newest events, where they are kept.
    pub(super) recent_events: Option<Recent>,
}

/// The newest bundles of a process, nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    /// Begun at a first attempt.
    begun_ns: Option<u64>,
    /// Of a request that has failed for good.
    certain_ns: Option<u64>,
}

impl Last {
    /// One of a later time is of a clock that was set back since.
    fn is_soon(last_ns: Option<u64>, time_ns: u64, pause_ns: u64) -> bool {
        last_ns.is_some_and(|last_ns| time_ns.abs_diff(last_ns) < pause_ns)
    }

    fn has_bundle(self, time_ns: u64) -> bool {
        Self::is_soon(self.certain_ns, time_ns, PAUSE_NS)
    }
}

/// A bundle that is not taken yet.
#[derive(Debug)]
struct Waiting {
    bundle: Bundle,
    /// When the request counts as failed if nothing more is known of it; `None`: it has failed for good.
    uncertain_until: Option<Instant>,
    /// When it is taken although no look has come; `None`: now.
    until: Option<Instant>,
    /// A look has come: the next account has all of it.
    is_looked: bool,
}

impl Failures {
    /// A look comes after each failure, or a reason why there was none: bundles wait so long for it.
    pub(super) const fn expect_holders(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// The first attempt of a request has failed.
    pub(super) fn failed<'a>(&mut self, event: &Event, failed: &AllocFailed, then: impl FnOnce() -> Then<'a>) {
        let last = self.last.get(&event.pid).copied().unwrap_or_default();
        let is_soon = Last::is_soon(last.begun_ns, event.time_ns, PAUSE_OF_ATTEMPTS_NS);
        if !is_soon && !last.has_bundle(event.time_ns) && self.begin(event, failed, then) {
            self.last.entry(event.pid).or_default().begun_ns = Some(event.time_ns);
        }
    }

    /// It has failed for good. What was live at its last attempt is in a bundle already, if one was begun. Gives whether that was not known: a
    /// request that was taken for failed may have a further attempt, and fail again.
    pub(super) fn is_certain<'a>(
        &mut self,
        event: &Event,
        failed: &AllocFailed,
        then: impl FnOnce() -> Then<'a>,
    ) -> bool {
        let thread = (event.pid, event.tid);
        if self.certain.get(&thread) == Some(&failed.request) {
            return false;
        }
        if self.certain.len() < MAX_REMEMBERED || self.certain.contains_key(&thread) {
            self.certain.insert(thread, failed.request);
        }
        let of_request = (event.pid, failed.request);
        let last = self.last.get(&event.pid).copied().unwrap_or_default();
        if last.has_bundle(event.time_ns) {
            self.waiting.retain(|waiting| !waiting.is_of(of_request));
            return true;
        }
        let is_begun = self.waiting.iter().any(|waiting| waiting.is_of(of_request));
        if is_begun || self.begin(event, failed, then) {
            self.last.entry(event.pid).or_default().certain_ns = Some(event.time_ns);
            let begun = self.waiting.iter_mut().filter(|waiting| waiting.is_of(of_request));
            begun.for_each(|waiting| waiting.uncertain_until = None);
        }
        true
    }

    /// Begins a bundle, if there is room.
    fn begin<'a>(&mut self, event: &Event, failed: &AllocFailed, then: impl FnOnce() -> Then<'a>) -> bool {
        let is_full = self.waiting.len() >= MAX_WAITING
            || self.last.len() >= MAX_REMEMBERED && !self.last.contains_key(&event.pid);
        if is_full {
            return false;
        }
        let Then { sheets, recent_events } = then();
        let mut pools: Vec<BundlePool> = sheets.into_iter().map(|(key, series)| pool(key, series)).collect();
        pools.sort_by_key(|pool| (pool.device, pool.pool));
        let bundle = Bundle {
            time_ns: event.time_ns,
            pid: event.pid,
            device: event.device,
            pool: failed.pool,
            requested_bytes: failed.size_bytes,
            status: failed.status,
            stacks: event.stacks,
            recovered: false,
            request: failed.request,
            not_looked_for: self.patience.map(|_| NO_LOOK.to_owned()),
            pools,
            recent_events,
        };
        let until = self.patience.map(|patience| Instant::now() + patience);
        let uncertain_until = Some(Instant::now() + LONGEST_REQUEST);
        self.waiting.push(Waiting { bundle, uncertain_until, until, is_looked: false });
        true
    }

    /// A place was looked at, or none was. All places of a look come together.
    pub(super) fn looked(&mut self, pid: u32, look: &Look) {
        if look.at != LookedAt::FailedRequest {
            return;
        }
        for Waiting { bundle, until, is_looked, .. } in
            self.waiting.iter_mut().filter(|waiting| waiting.bundle.pid == pid)
        {
            match &look.outcome {
                Looked::Place(place) => {
                    add_holders(bundle, place);
                    // The account that is taken next may come between two places.
                    (*is_looked, bundle.not_looked_for) = (true, None);
                }
                Looked::NotLooked(why) if bundle.not_looked_for.is_some() => {
                    (*until, bundle.not_looked_for) = (None, Some(why.as_ref().to_owned()));
                }
                Looked::NotLooked(_) | Looked::Found(_) => {}
            }
        }
    }

    /// Nothing further comes.
    pub(super) fn hurry(&mut self) {
        self.waiting.iter_mut().for_each(Waiting::hurry);
    }

    /// A request has succeeded after all: it leaves no bundle, unless it was taken for failed.
    pub(super) fn recovered(&mut self, pid: u32, request: u64) {
        self.waiting.retain_mut(|waiting| {
            let is_recovered = waiting.is_of((pid, request));
            waiting.bundle.recovered |= is_recovered;
            !is_recovered || waiting.uncertain_until.is_none()
        });
    }

    /// A process has ended: its rows go with the next account, and name its bundle.
    pub(super) fn ended(&mut self, pid: u32) {
        self.last.remove(&pid);
        self.certain.retain(|(of, _), _| *of != pid);
        self.waiting.iter_mut().filter(|waiting| waiting.bundle.pid == pid).for_each(Waiting::hurry);
    }

    /// The bundles that wait for nothing more.
    pub(super) fn take(&mut self) -> Vec<Bundle> {
        let now = Instant::now();
        let is_over = |until: Option<Instant>| until.is_none_or(|until| now >= until);
        let is_ready = |waiting: &Waiting| is_over(waiting.until) && is_over(waiting.uncertain_until);
        let (ready, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting).into_iter().partition(is_ready);
        self.waiting = waiting;
        self.waiting.iter_mut().filter(|waiting| waiting.is_looked).for_each(|waiting| waiting.until = None);
        ready.into_iter().map(|waiting| waiting.bundle).collect()
    }
}

impl Waiting {
    const fn is_of(&self, (pid, request): (u32, u64)) -> bool {
        self.bundle.pid == pid && self.bundle.request == request
    }

    const fn hurry(&mut self) {
        (self.until, self.uncertain_until) = (None, None);
    }
}

/// Adds what held the blocks of a place to the place of the bundle, if it is among those.
fn add_holders(bundle: &mut Bundle, look: &PlaceLook) {
    let block = &look.block;
    let place = Place::of(block);
    let size_bytes = place.stacks.is_empty().then_some(place.size_bytes);
    let pools = bundle.pools.iter_mut().filter(|pool| (pool.device, pool.pool) == (block.device, block.pool));
    let mut places = pools.flat_map(|pool| &mut pool.places);
    if let Some(found) = places.find(|found| (found.stacks, found.size_bytes) == (place.stacks, size_bytes)) {
        let PlaceLook { looked_at_blocks, garbage_blocks, unknown_blocks, .. } = *look;
        let (holders, left_out) = (look.holders.clone(), look.left_out.clone());
        found.held_by = Some(BundleHolders { looked_at_blocks, garbage_blocks, unknown_blocks, holders, left_out });
    }
}

/// A pool as it is known.
pub(super) fn pool(key: SeriesKey, series: &Series) -> BundlePool {
    let places = series.largest_places(MAX_PLACES).into_iter().map(|(place, sum)| BundlePlace {
        stacks: place.stacks,
        size_bytes: place.stacks.is_empty().then_some(place.size_bytes),
        live_blocks: sum.live_blocks,
        live_bytes: sum.live_bytes,
        held_by: None,
    });
    BundlePool {
        device: key.device,
        pool: key.pool,
        live_blocks: series.live_blocks,
        live_bytes: series.live_bytes,
        used_bytes: series.used_bytes,
        reserved_bytes: series.reserved_bytes,
        untracked_bytes: series.untracked_bytes(),
        read_time_ns: None,
        places: places.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        agent::{books::Books, flight::What},
        analyses::script::Script,
        backend::ascend::pools,
        model::{EventKind, LiveSum, ProcessStart},
    };

    fn bundles(script: &Script) -> (Books, Vec<Bundle>) {
        let mut books = Books::default();
        books.keep_recent(3);
        script.events().iter().for_each(|event| books.observe(event));
        let bundles = books.take().bundles;
        (books, bundles)
    }

    /// The bundle has the request, and each pool with its places, the largest first; a second failure within a minute makes none.
    #[test]
    fn bundle_of_a_failed_request() {
        let mut script = Script::new(7, Device::Npu(1));
        script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 300).alloc(pools::PTA, 0x1000, 60);
        script.alloc_failed(pools::HAL, 1 << 30, (1, 1)).free(pools::PTA, 0x1000);
        script.failed_for_good(pools::HAL, 1 << 30, (1, 1)).alloc_failed(pools::HAL, 1 << 29, (2, 1));
        script.failed_for_good(pools::HAL, 1 << 29, (2, 1)).alloc_recovered(pools::HAL, 1 << 30, 1);
        let (mut books, bundles) = bundles(&script);
        assert_eq!(bundles.len(), 1, "{bundles:#?}");
        let recent = &bundles[0].recent_events.as_ref().expect("a record").events;
        let recent: Vec<_> = recent.iter().map(|event| (event.event, event.size_bytes)).collect();
        assert_eq!(recent, [(What::Alloc, Some(300)), (What::Alloc, Some(60)), (What::AllocFailed, Some(1 << 30))]);
        let bundle = &bundles[0];
        assert_eq!((bundle.pid, bundle.device, bundle.requested_bytes), (7, Device::Npu(1), 1 << 30));
        // It waited for its device for long.
        assert!(bundle.recovered);
        let sums: Vec<_> = bundle.pools.iter().map(|pool| (pool.pool, pool.live_bytes, pool.places.len())).collect();
        assert_eq!(sums, [(pools::HAL, 400, 2), (pools::PTA, 60, 1)]);
        assert_eq!((bundle.pools[0].places[0].size_bytes, bundle.pools[0].places[0].live_bytes), (Some(300), 300));
        assert!(books.take().bundles.is_empty());
    }

    /// A request that succeeds at its second attempt leaves no bundle, and hides none: the next one, a moment later, fails for good. One that goes
    /// on at the time of an account waits for its outcome.
    #[test]
    fn only_what_fails_for_good_leaves_a_bundle() {
        let mut script = Script::new(7, Device::Npu(1));
        script.alloc(pools::HAL, 0x1000, 100).alloc_failed(pools::HAL, 50, (1, 1)).alloc_recovered(pools::HAL, 50, 1);
        script.alloc_failed(pools::HAL, 70, (2, 1)).alloc_failed(pools::HAL, 70, (2, 2));
        let (mut books, none) = bundles(&script);
        assert_eq!(none, []);
        let seen = script.events().len();
        script.failed_for_good(pools::HAL, 70, (2, 2));
        script.events()[seen..].iter().for_each(|event| books.observe(event));
        let account = books.take();
        let of_bundle = |bundle: &Bundle| (bundle.request, bundle.requested_bytes, bundle.recovered);
        assert_eq!(account.bundles.iter().map(of_bundle).collect::<Vec<_>>(), [(2, 70, false)]);
        // The third goes on, and comes within a minute.
        let (_, all) = bundles(script.alloc_failed(pools::HAL, 90, (3, 1)));
        assert_eq!(all.iter().map(of_bundle).collect::<Vec<_>>(), [(2, 70, false)]);
    }

    /// The clock is set back by an hour behind a bundle: the next request that fails has one, too.
    #[test]
    fn a_clock_that_is_set_back() {
        let mut books = Books::default();
        for (request, hour) in [(1, 9), (2, 8)] {
            let mut script = Script::new(7, Device::Npu(1));
            script.alloc_failed(pools::HAL, 50, (request, 1)).failed_for_good(pools::HAL, 50, (request, 1));
            for event in script.events() {
                books.observe(&Event { time_ns: event.time_ns + hour * 3_600_000_000_000, ..event.clone() });
            }
            let requests: Vec<u64> = books.take().bundles.iter().map(|bundle| bundle.request).collect();
            assert_eq!(requests, [request], "{hour}");
        }
    }

    /// A request that was taken for failed has a further attempt, which fails, too: one failure, and its bundle stays, which waits for a look.
    #[test]
    fn a_request_fails_for_good_once() {
        let mut script = Script::new(7, Device::Npu(1));
        let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
        script.event(EventKind::ProcessStart(start)).alloc(pools::HAL, 0x1000, 100);
        script.alloc_failed(pools::HAL, 50, (1, 1)).failed_for_good(pools::HAL, 50, (1, 1));
        script.alloc_failed(pools::HAL, 50, (1, 2));
        script.failed_for_good(pools::HAL, 50, (1, 2));
        let mut books = Books::default();
        books.expect_holders(Duration::from_secs(1000));
        script.events().iter().for_each(|event| books.observe(event));
        let account = books.take();
        assert_eq!((account.bundles.len(), account.series[0].1.out_of_memory), (0, 1));
        books.end_minute();
        assert_eq!(books.take().bundles.len(), 1);
    }

    /// A bundle waits for the look that comes after the failure; places have what was found, the others nothing. Without a look it says so.
    #[test]
    fn holders_of_a_bundle() {
        let look = |number, outcome| EventKind::Looked(Arc::new(Look { number, at: LookedAt::FailedRequest, outcome }));
        let mut script = Script::new(7, Device::Npu(1));
        script.stacks(&["serve.py(3): keep"], &[]).alloc(pools::PTA, 0x1000, 64);
        script.stacks(&["serve.py(9): other"], &[]).alloc(pools::PTA, 0x2000, 32);
        script.alloc_failed(pools::PTA, 1 << 30, (1, 1)).failed_for_good(pools::PTA, 1 << 30, (1, 1));
        let of = |event: &Event| if let EventKind::Alloc(alloc) = &event.kind { Some(alloc.block) } else { None };
        let block = script.events().iter().find_map(of).expect("a block");
        let live = LiveSum { blocks: 1, size_bytes: 64 };
        let path = HolderPath { path: "m.cache['x']".to_owned(), is_sure: true, blocks: 1 };
        let place = PlaceLook {
            block,
            live,
            looked_at_blocks: 1,
            holders: vec![path.clone()],
            garbage_blocks: 0,
            unknown_blocks: 0,
            left_out: None,
            held_as: Vec::new(),
        };
        let failure = script.events().len();
        script.event(look(1, Looked::Place(Box::new(place)))).process_end();
        let books = |patience: Option<Duration>| {
            let mut books = Books::default();
            if let Some(patience) = patience {
                books.expect_holders(patience);
            }
            script.events()[..failure].iter().for_each(|event| books.observe(event));
            books
        };
        let held = |bundle: &Bundle| {
            let places = bundle.pools[0].places.iter().map(|place| place.held_by.clone());
            (bundle.not_looked_for.clone(), places.collect::<Vec<_>>())
        };
        let nothing = || vec![None; 2];
        assert_eq!(books(None).take().bundles.iter().map(held).collect::<Vec<_>>(), [(None, nothing())]);
        let long = Some(Duration::from_secs(1000));
        let mut looked = books(long);
        assert!(looked.take().bundles.is_empty());
        looked.observe(&script.events()[failure]);
        assert!(looked.take().bundles.is_empty());
        let (looked_at_blocks, garbage_blocks, unknown_blocks, left_out) = (1, 0, 0, None);
        let holders = vec![path];
        let found = BundleHolders { looked_at_blocks, garbage_blocks, unknown_blocks, holders, left_out };
        assert_eq!(looked.take().bundles.iter().map(held).collect::<Vec<_>>(), [(None, vec![Some(found), None])]);
        let why = Some("there was no time for it".to_owned());
        assert_eq!(
            books(Some(Duration::ZERO)).take().bundles.iter().map(held).collect::<Vec<_>>(),
            [(why.clone(), nothing())]
        );
        let mut ending = books(long);
        ending.end_minute();
        assert_eq!(ending.take().bundles.iter().map(held).collect::<Vec<_>>(), [(why, nothing())]);
        let mut ended = books(long);
        ended.observe(&script.events()[failure + 1]);
        assert_eq!(ended.take().bundles.len(), 1);
        let mut gone = books(long);
        let reason = Looked::NotLooked(Arc::from("the process has ended"));
        let event = Event { kind: look(1, reason), ..script.events()[failure].clone() };
        gone.observe(&event);
        let why = Some("the process has ended".to_owned());
        assert_eq!(gone.take().bundles.iter().map(held).collect::<Vec<_>>(), [(why, nothing())]);
    }
}
