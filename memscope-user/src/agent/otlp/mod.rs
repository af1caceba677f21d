//! The page's numbers and the agent's events for an `OpenTelemetry` collector: OTLP by http/protobuf, off until the settings name a
//! receiver.
//!
//! ```text
//!  samples of a page ─▶ instruments, convert ─┐
//!  bundles, level ────▶ events ───────────────┼▶ queue (bounded) ─▶ sender (a task) ─▶ post ─▶ answer ─▶ counts
//!  account ─▶ suspects ─┘                     ┘                      └ backoff
//! ```
//!
//! The agent's loop makes messages and leaves them in the queue; it never waits for a receiver.

mod answer;
mod backoff;
mod convert;
mod counts;
mod endpoint;
mod events;
mod headers;
mod instruments;
mod messages;
mod origin;
mod post;
mod queue;
#[cfg(test)]
pub(super) mod receiver;
mod sender;
mod suspects;

use std::{
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{task::JoinHandle, time::timeout};

use self::{
    endpoint::Endpoint,
    messages::LogRecord,
    origin::Origin,
    sender::{Sender, Shared},
    suspects::Suspects,
};
use super::{
    books::Account,
    budget::Step,
    config::{ConfigError, OtlpSettings},
    failures::Bundle,
    fold::Target,
    metrics::Sample,
    wire::{Reach, Tls},
};
use crate::session::Speaker;

/// Events of one page; what is beyond is dropped and counted.
const MAX_EVENTS: usize = 1024;
/// The last send has this time.
const LAST: Duration = Duration::from_secs(2);

/// Whether the settings make sense.
pub(super) fn check(settings: &OtlpSettings) -> Result<(), String> {
    Endpoint::parse(&settings.endpoint).map(|_| ())
}

/// The side of the agent's loop. Does nothing where no receiver is set.
#[derive(Default)]
pub(super) struct Feed(Option<Open>);

struct Open {
    shared: Rc<Shared>,
    origin: Origin,
    interval: Duration,
    sent: Option<Instant>,
    has_logs: bool,
    suspects: Suspects,
    events: Vec<LogRecord>,
}

/// The side of the task.
pub(super) struct Sending {
    shared: Rc<Shared>,
    task: JoinHandle<()>,
    speaker: Speaker,
}

/// Starts the task, if a receiver is set. To be called in a `LocalSet`.
pub(super) fn start(settings: &OtlpSettings, speaker: &Speaker) -> Result<(Feed, Option<Sending>), ConfigError> {
    let Some(endpoint) = Endpoint::parse(&settings.endpoint).map_err(ConfigError::Value)? else {
        return Ok((Feed::default(), None));
    };
    let headers = headers::read(&settings.headers_file)
        .map_err(|source| ConfigError::Headers { path: settings.headers_file.clone(), source })?;
    let connect = Reach::new(endpoint.server.clone(), &Tls::default())
        .map_err(|source| ConfigError::Value(format!("otlp.endpoint is `{}`: {source}", settings.endpoint)))?;
    let shared = Rc::new(Shared::new(settings.max_queue_bytes));
    let what = if settings.logs { "numbers and events go" } else { "numbers go" };
    speaker.info(format_args!("{what} to the OTLP receiver at {}", settings.endpoint));
    let patience = Duration::from_secs_f64(settings.timeout_seconds);
    let (of_task, to_say) = (Rc::clone(&shared), speaker.clone());
    let task = tokio::task::spawn_local(async move {
        let shared = &*of_task;
        Sender { connect, endpoint, headers, patience, shared, speaker: to_say }.run().await;
    });
    let feed = Feed(Some(Open {
        shared: Rc::clone(&shared),
        origin: Origin::of_this_machine(since_epoch_ns()),
        interval: Duration::from_secs_f64(settings.interval_seconds),
        sent: None,
        has_logs: settings.logs,
        suspects: Suspects::default(),
        events: Vec::new(),
    }));
    Ok((feed, Some(Sending { shared, task, speaker: speaker.clone() })))
}

/// Nanoseconds since the Unix epoch.
pub(super) fn since_epoch_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Feed {
    /// What became of messages so far.
    pub(super) fn samples(&self) -> Vec<Sample> {
        self.0.as_ref().map(|open| open.shared.counts().samples().collect()).unwrap_or_default()
    }

    /// A request failed for want of memory. `file`: name of its bundle.
    pub(super) fn oom(&mut self, bundle: &Bundle, target: Option<&Target>, file: Option<&str>) {
        if let Some(open) = &mut self.0 {
            open.event(events::oom(bundle, target, file, since_epoch_ns()));
        }
    }

    pub(super) fn level_changed(&mut self, step: Step) {
        if let Some(open) = &mut self.0 {
            open.event(events::level_changed(step, since_epoch_ns()));
        }
    }

    /// Looks for new suspects.
    pub(super) fn suspect(&mut self, account: &Account, targets: &BTreeMap<u32, Target>) {
        let Some(open) = self.0.as_mut().filter(|open| open.has_logs) else { return };
        let now_ns = since_epoch_ns();
        for suspect in open.suspects.new_ones(account, targets) {
            open.event(events::leak_suspect(&suspect, targets.get(&suspect.key.pid), now_ns));
        }
    }

    /// The page is made: its events go out, and its numbers when it is time.
    pub(super) fn page(&mut self, samples: &[Sample], now: Instant) {
        let Some(open) = &mut self.0 else { return };
        let events = std::mem::take(&mut open.events);
        if !events.is_empty() {
            open.shared.push(convert::logs(&open.origin, events));
        }
        // Pages come a moment early or late: one that is nearly due is not put off to the next.
        let slack = open.interval / 20;
        if open.sent.is_none_or(|sent| now.duration_since(sent) + slack >= open.interval) {
            open.sent = Some(now);
            let now_ns = since_epoch_ns();
            // Nothing begins later than now: the clock was set back. From then on it stays, or each page would begin the counts once more.
            open.origin.start_ns = open.origin.start_ns.min(now_ns);
            open.shared.push(convert::metrics(&open.origin, samples, now_ns));
        }
    }

    /// The next page is the last one: its numbers go out, whatever the time is.
    pub(super) fn hurry(&mut self) {
        if let Some(open) = &mut self.0 {
            open.sent = None;
        }
    }
}

impl Open {
    fn event(&mut self, record: LogRecord) {
        if !self.has_logs {
            return;
        }
        if self.events.len() < MAX_EVENTS {
            self.events.push(record);
        } else {
            self.shared.drop_records(1);
        }
    }
}

impl Sending {
    /// Sends what waits, within 2 s, and ends.
    pub(super) async fn end(mut self) {
        self.shared.end();
        if timeout(LAST, &mut self.task).await.is_err() {
            self.task.abort();
        }
        let waiting = self.shared.waiting();
        if waiting > 0 {
            self.speaker.warn(format_args!("{waiting} data points and log records did not reach the OTLP receiver"));
        }
    }
}

#[cfg(test)]
mod tests;
