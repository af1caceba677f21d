//! The task that sends what waits, one message after the other, and waits itself where the receiver cannot take more.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    HeaderMap, Request,
    body::Bytes,
    header::{CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use jiff::Timestamp;
use tokio::{sync::Notify, time::sleep};

use super::{
    answer::Verdict,
    backoff::Backoff,
    counts::{Counts, Outcome},
    endpoint::Endpoint,
    post::post,
    queue::{Batch, Queue, Signal},
};
use crate::{agent::wire::Connect, session::Speaker};

/// What the agent's loop and the task share.
#[derive(Debug)]
pub(super) struct Shared {
    queue: RefCell<Queue>,
    counts: RefCell<Counts>,
    is_ending: Cell<bool>,
    /// There is a message, or the end is near.
    changed: Notify,
    ending: Notify,
}

impl Shared {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            queue: RefCell::new(Queue::new(max_bytes)),
            counts: RefCell::default(),
            is_ending: Cell::new(false),
            changed: Notify::new(),
            ending: Notify::new(),
        }
    }

    /// A message waits from here on. Never takes long.
    pub(super) fn push(&self, batch: Batch) {
        let dropped = self.queue.borrow_mut().push(batch);
        self.drop_records(dropped);
        self.changed.notify_one();
    }

    pub(super) fn drop_records(&self, records: u64) {
        self.counts.borrow_mut().dropped += records;
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Records that have not arrived.
    pub(super) fn waiting(&self) -> u64 {
        self.queue.borrow().records()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.queue.borrow().bytes()
    }

    /// The task is to send what waits, once, and to end.
    pub(super) fn end(&self) {
        self.is_ending.set(true);
        self.changed.notify_one();
        self.ending.notify_one();
    }
}

/// Sends.
pub(super) struct Sender<'a, C> {
    pub(super) connect: C,
    pub(super) endpoint: Endpoint,
    pub(super) headers: HeaderMap,
    pub(super) patience: Duration,
    pub(super) shared: &'a Shared,
    pub(super) speaker: Speaker,
}

impl<C: Connect> Sender<'_, C> {
    /// Sends until the end.
    pub(super) async fn run(self) {
        let random = RandomState::new();
        let mut backoff = Backoff::default();
        let mut attempts: u64 = 0;
        let mut said = BTreeMap::new();
        loop {
            let Some(batch) = self.take() else {
                if self.shared.is_ending.get() {
                    return;
                }
                self.shared.changed.notified().await;
                continue;
            };
            attempts += 1;
            let verdict = self.send(&batch).await;
            self.shared.counts.borrow_mut().request(verdict.result);
            self.say(&verdict, batch.signal, &backoff, &mut said);
            match verdict.result {
                Outcome::Ok | Outcome::Partial | Outcome::Refused => {
                    self.shared.queue.borrow_mut().done();
                    self.shared.drop_records(verdict.rejected);
                    backoff.reset();
                }
                Outcome::Later | Outcome::NoAnswer => {
                    self.shared.queue.borrow_mut().give_back(batch);
                    if self.shared.is_ending.get() {
                        return;
                    }
                    self.wait(backoff.next(verdict.after, random.hash_one(attempts))).await;
                }
            }
        }
    }

    fn take(&self) -> Option<Batch> {
        self.shared.queue.borrow_mut().take()
    }

    /// Until the next attempt; not at all when the end is near.
    async fn wait(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.shared.ending.notified() => {}
        }
    }

    async fn send(&self, batch: &Batch) -> Verdict {
        let answer = match self.request(batch) {
            Ok(request) => post(&self.connect, request, self.patience).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(answer) => answer.verdict(batch.records, Timestamp::now()),
            Err(why) => Verdict { result: Outcome::NoAnswer, rejected: 0, after: None, why: Some(why) },
        }
    }

    fn request(&self, batch: &Batch) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request = Request::post(self.endpoint.path(batch.signal.path())).body(Full::new(batch.body.clone()))?;
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(HOST, self.endpoint.server.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let agent = concat!("memscope-agent/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        Ok(request)
    }

    /// The first failure of a row is a message, and its end. What a receiver does not want is one when it changes. `said`: what is still the
    /// case; many a receiver takes one signal alone.
    fn say(&self, verdict: &Verdict, signal: Signal, before: &Backoff, said: &mut BTreeMap<Signal, String>) {
        let is_failure = matches!(verdict.result, Outcome::Later | Outcome::NoAnswer);
        let (authority, name) = (self.endpoint.server.authority.to_str().unwrap_or_default(), signal.name());
        match &verdict.why {
            Some(why) if said.get(&signal) != Some(why) && (before.is_calm() || !is_failure) => {
                let hint = match (signal, verdict.result) {
                    (Signal::Logs, Outcome::Refused) => "; with `logs = false` in [otlp] none are sent",
                    _ => "",
                };
                self.speaker.warn(format_args!("OTLP receiver {authority}, {name}: {why}{hint}"));
                said.insert(signal, why.clone());
            }
            None if said.remove(&signal).is_some() => {
                self.speaker.info(format_args!("OTLP receiver {authority} takes {name} again"));
            }
            _ => {}
        }
    }
}
