//! The sender against a receiver that does all that receivers do. The clock stands still but for the times that are waited for.

use std::{cell::Cell, future::Future, rc::Rc, time::Duration};

use hyper::HeaderMap;
use tokio::{
    task::LocalSet,
    time::{Instant as Clock, sleep},
};

use super::{
    counts::{Counts, Outcome},
    post::post,
    queue::{Batch, Signal},
    receiver::{Receiver, Reply},
    *,
};
use crate::agent::{
    budget::{Level, Reason},
    notes::Notes,
    wire::ExchangeError,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than all that is waited for.
const LONG: Duration = Duration::from_secs(100_000);

fn run<F: Future<Output = ()>>(is_paused: bool, test: F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(is_paused).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

fn batch(number: u64) -> Batch {
    let body = format!("{number:04}").repeat(250).into_bytes();
    Batch { signal: Signal::Metrics, body: body.into(), records: 10 }
}

fn endpoint() -> Endpoint {
    Endpoint::parse("http://collector:4318/otlp").expect("an endpoint").expect("one")
}

/// A sender to this receiver, with room for this many bytes.
fn sending(receiver: &Receiver, max_bytes: usize) -> Sending {
    sending_by(receiver, max_bytes, Notes::with_speaker().1)
}

/// The same that says what happens.
fn sending_by(receiver: &Receiver, max_bytes: usize, speaker: Speaker) -> Sending {
    let shared = Rc::new(Shared::new(max_bytes));
    let (of_task, connect, to_say) = (Rc::clone(&shared), receiver.clone(), speaker.clone());
    let headers = HeaderMap::from_iter([(hyper::header::AUTHORIZATION, "Bearer x".parse().expect("a value"))]);
    let task = tokio::task::spawn_local(async move {
        let shared = &*of_task;
        Sender { connect, endpoint: endpoint(), headers, patience: PATIENCE, shared, speaker: to_say }.run().await;
    });
    Sending { shared, task, speaker }
}

/// Sends one message to a receiver that answers like this; gives counts, and the times of its attempts since the first one.
async fn sent(replies: Vec<Reply>) -> (Counts, Vec<Duration>) {
    let receiver = Receiver::new(replies);
    let sending = sending(&receiver, 1 << 20);
    sending.shared.push(batch(1));
    sleep(LONG).await;
    assert_eq!((sending.shared.waiting(), sending.shared.bytes()), (0, 0), "the queue is empty");
    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.body == batch(1).body), "the same message each time");
    (sending.shared.counts(), requests.iter().map(|request| request.at - requests[0].at).collect())
}

fn counts(requests: &[Outcome], dropped: u64) -> Counts {
    let mut counts = Counts::default();
    counts.dropped = dropped;
    for outcome in requests {
        counts.request(*outcome);
    }
    counts
}

fn status(status: u16, head: &'static str) -> Reply {
    Reply::Status(status, head, Vec::new())
}

/// Messages arrive in their order, each once, at the path of their kind, with the headers.
#[test]
fn messages_arrive_once() {
    run(true, async {
        let receiver = Receiver::default();
        let sending = sending(&receiver, 1 << 20);
        for number in 0..3 {
            sending.shared.push(batch(number));
        }
        sleep(LONG).await;
        sending.shared.push(Batch { signal: Signal::Logs, ..batch(3) });
        sleep(LONG).await;
        let requests = receiver.requests();
        let bodies: Vec<_> = requests.iter().map(|request| request.body.clone()).collect();
        assert_eq!(bodies, [0, 1, 2, 3].map(|number| batch(number).body));
        let head = requests[3].head.to_ascii_lowercase();
        let mut lines: Vec<&str> = head.lines().collect();
        lines[1..].sort_unstable();
        let agent = concat!("user-agent: memscope-agent/", env!("CARGO_PKG_VERSION"));
        let expected = [
            "post /otlp/v1/logs http/1.1",
            "authorization: bearer x",
            "connection: close",
            "content-length: 1000",
            "content-type: application/x-protobuf",
            "host: collector:4318",
            agent,
        ];
        assert_eq!(lines, expected);
        assert!(requests[0].head.starts_with("POST /otlp/v1/metrics HTTP/1.1"), "{}", requests[0].head);
        assert_eq!(sending.shared.counts(), counts(&[Outcome::Ok; 4], 0));
    });
}

/// After an answer of success nothing is sent twice, whatever its body is. What was rejected is counted.
#[test]
fn success_is_final() {
    run(true, async {
        let body = |body: &[u8]| Reply::Status(200, "", body.to_vec());
        for reply in [body(b""), body(b"\xff garbage"), Reply::HangInBody, Reply::Endless(200), status(204, "")] {
            let (found, times) = sent(vec![reply.clone()]).await;
            assert_eq!((found, times.len()), (counts(&[Outcome::Ok], 0), 1), "{reply:?}");
        }
        let (found, times) = sent(vec![Reply::partial(3)]).await;
        assert_eq!((found, times.len()), (counts(&[Outcome::Partial], 3), 1));
    });
}

/// What the receiver does not want is dropped and counted; a redirect is no other receiver.
#[test]
fn refused_messages_are_dropped() {
    run(true, async {
        let redirect = status(307, "Location: http://collector:4318/elsewhere\r\n");
        for reply in [status(400, ""), status(401, ""), status(500, ""), redirect, Reply::Endless(413)] {
            let (found, times) = sent(vec![reply.clone()]).await;
            assert_eq!((found, times.len()), (counts(&[Outcome::Refused], 10), 1), "{reply:?}");
        }
        let receiver = Receiver::new([status(400, "")]);
        let sending = sending(&receiver, 1 << 20);
        let start = Clock::now();
        sending.shared.push(batch(1));
        sending.shared.push(batch(2));
        sleep(LONG).await;
        let requests = receiver.requests();
        assert_eq!((requests.len(), requests[1].at - start), (2, Duration::ZERO), "the next one does not wait");
    });
}

/// A receiver that takes metrics alone is reported once, with what to do, while metrics arrive; each signal has its own end of it.
#[test]
fn messages_are_of_a_signal() {
    run(true, async {
        let (notes, speaker) = Notes::with_speaker();
        let logs = |number| Batch { signal: Signal::Logs, ..batch(number) };
        let (ok, refused) = (|| status(200, ""), || status(404, ""));
        let replies = [refused(), ok(), refused(), status(413, ""), ok(), ok()];
        let sending = sending_by(&Receiver::new(replies), 1 << 20, speaker);
        for message in [logs(1), batch(2), logs(3), batch(4), logs(5), batch(6)] {
            sending.shared.push(message);
        }
        sleep(LONG).await;
        let expected = [
            "OTLP receiver collector:4318, logs: it answers 404 Not Found; with `logs = false` in [otlp] none are sent",
            "OTLP receiver collector:4318, metrics: it answers 413 Payload Too Large",
            "OTLP receiver collector:4318 takes logs again",
            "OTLP receiver collector:4318 takes metrics again",
        ];
        assert_eq!(notes.all(), expected);
    });
}

/// Without logs, events are not kept for a page.
#[test]
fn events_are_left_out() {
    run(true, async {
        for logs in [true, false] {
            let endpoint = "http://127.0.0.1:9".to_owned();
            let settings = OtlpSettings { endpoint, logs, ..OtlpSettings::default() };
            let (notes, speaker) = Notes::with_speaker();
            let (mut feed, _sending) = start(&settings, &speaker).expect("a task");
            feed.level_changed(Step { from: Level::All, to: Level::NoPython, reason: Reason::Cpu });
            assert_eq!(feed.0.as_ref().map(|open| open.events.len()), Some(usize::from(logs)));
            let what = if logs { "numbers and events go" } else { "numbers go" };
            assert_eq!(notes.all(), [format!("{what} to the OTLP receiver at http://127.0.0.1:9")]);
        }
    });
}

/// The receiver says when; with its silence the time doubles.
#[test]
fn attempts_keep_their_distance() {
    run(true, async {
        let seconds = Duration::from_secs;
        let replies = vec![status(429, "Retry-After: 40\r\n"), status(503, "Retry-After: 100000\r\n")];
        let (found, times) = sent(replies).await;
        assert_eq!(found, counts(&[Outcome::Later, Outcome::Later, Outcome::Ok], 0));
        // Timers go by whole milliseconds.
        let rounded: Vec<u64> = times.iter().map(|time| time.as_millis().div_ceil(1000) as u64).collect();
        assert!((40..=41).contains(&rounded[1]) && (340..=342).contains(&rounded[2]), "{times:?}");
        let kinds = [status(502, ""), Reply::Reset, Reply::Garbage, Reply::Closed, status(504, "")];
        let replies: Vec<Reply> = kinds.into_iter().cycle().take(15).collect();
        let (found, times) = sent(replies).await;
        assert_eq!((found.of(Outcome::Later), found.of(Outcome::NoAnswer), found.of(Outcome::Ok)), (6, 9, 1));
        // What was refused a connection has no time: three of fifteen attempts.
        assert_eq!(times.len(), 13);
        let most = 1 + 2 + 4 + 8 + 16 + 32 + 64 + 128 + 256 + 300 * 6;
        let all = *times.last().expect("a time");
        assert!(seconds(most / 2 - 100) <= all && all <= seconds(most), "{all:?}");
        let last = all.saturating_sub(times[times.len() - 2]);
        assert!((seconds(150)..=seconds(301)).contains(&last), "{last:?}");
    });
}

/// A receiver that says nothing costs one timeout.
#[test]
fn hang_ends_by_the_timeout() {
    run(true, async {
        let (found, times) = sent(vec![Reply::Hang]).await;
        assert_eq!(found, counts(&[Outcome::NoAnswer, Outcome::Ok], 0));
        assert!((PATIENCE..=PATIENCE + Duration::from_millis(1100)).contains(&times[1]), "{times:?}");
    });
}

/// While the receiver is away the queue keeps to its bound; the newest arrive later, in order, and all others are counted.
#[test]
fn queue_keeps_to_its_bound() {
    run(true, async {
        let receiver = Receiver::new(vec![Reply::Closed; 12]);
        let max_bytes = 10_000;
        let sending = sending(&receiver, max_bytes);
        for number in 0..60 {
            sending.shared.push(batch(number));
            assert!(sending.shared.bytes() <= max_bytes);
            sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(sending.shared.waiting(), 90, "nine messages of 1064 bytes");
        sleep(LONG).await;
        let arrived: Vec<_> = receiver.requests().iter().map(|request| request.body.clone()).collect();
        assert_eq!(arrived, (51..60).map(|number| batch(number).body).collect::<Vec<_>>());
        let found = sending.shared.counts();
        assert_eq!((found.dropped, found.of(Outcome::Ok), found.of(Outcome::NoAnswer)), (510, 9, 12));
    });
}

/// The end does not wait for the next attempt: each message is sent once more. A receiver that hangs costs two seconds.
#[test]
fn end_is_quick() {
    run(true, async {
        let receiver = Receiver::new(vec![status(503, "Retry-After: 300\r\n")]);
        let first = sending(&receiver, 1 << 20);
        first.shared.push(batch(1));
        sleep(Duration::from_secs(1)).await;
        first.shared.push(batch(2));
        let (start, shared) = (Clock::now(), Rc::clone(&first.shared));
        first.end().await;
        assert_eq!((receiver.requests().len(), start.elapsed(), shared.waiting()), (3, Duration::ZERO, 0));
        for replies in [vec![Reply::Hang], vec![Reply::Closed]] {
            let is_hang = matches!(replies[0], Reply::Hang);
            let receiver = Receiver::new(replies);
            let sending = sending(&receiver, 1 << 20);
            sending.shared.push(batch(1));
            sending.shared.push(batch(2));
            let (start, shared) = (Clock::now(), Rc::clone(&sending.shared));
            sending.end().await;
            assert_eq!(shared.waiting(), 20);
            assert_eq!(start.elapsed().as_secs(), if is_hang { 2 } else { 0 });
        }
    });
}

/// The same over sockets: each way to answer is an answer, or an error with its kind.
#[test]
fn answers_over_sockets() {
    run(false, async {
        let replies = [
            Reply::Status(200, "", b"abc".to_vec()),
            status(429, "Retry-After: 7\r\n"),
            Reply::Endless(200),
            Reply::Reset,
            Reply::Garbage,
            Reply::Hang,
        ];
        let receiver = Receiver::new(replies);
        let address = receiver.listen().await;
        let endpoint = Endpoint::parse(&format!("http://{address}")).expect("an endpoint").expect("one");
        let ask = async |endpoint: &Endpoint, patience| {
            let request = hyper::Request::post("/v1/logs").body(http_body_util::Full::new(batch(1).body));
            let reach = Reach::new(endpoint.server.clone(), &Tls::default()).expect("a way");
            post(&reach, request.expect("a request"), patience).await
        };
        let ok = ask(&endpoint, LONG).await.expect("an answer");
        assert_eq!((ok.status.as_u16(), ok.body.as_deref()), (200, Some(&b"abc"[..])));
        let later = ask(&endpoint, LONG).await.expect("an answer");
        assert_eq!((later.status.as_u16(), later.retry_after.as_deref()), (429, Some("7")));
        let endless = ask(&endpoint, LONG).await.expect("an answer");
        assert_eq!((endless.status.as_u16(), endless.body), (200, None));
        for kind in ["reset", "garbage"] {
            let answer = ask(&endpoint, LONG).await;
            assert!(matches!(answer, Err(ExchangeError::Http(_))), "{kind}: {answer:?}");
        }
        let hang = ask(&endpoint, Duration::from_millis(50)).await;
        assert!(matches!(hang, Err(ExchangeError::Timeout(_))), "{hang:?}");
        let mut nowhere = endpoint;
        nowhere.server.port = unused_port().await;
        let closed = ask(&nowhere, LONG).await;
        assert!(matches!(closed, Err(ExchangeError::Connect(_))), "{closed:?}");
        assert_eq!(receiver.requests().len(), 6);
    });
}

async fn unused_port() -> u16 {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a socket");
    listener.local_addr().expect("an address").port()
}

/// The agent's loop goes on while the receiver hangs.
#[test]
fn loop_does_not_wait() {
    run(true, async {
        let receiver = Receiver::new([Reply::Hang]);
        let sending = sending(&receiver, 1 << 20);
        let turns = Cell::new(0);
        let start = Clock::now();
        for number in 0..5 {
            sending.shared.push(batch(number));
            tokio::task::yield_now().await;
            turns.set(turns.get() + 1);
        }
        assert_eq!((turns.get(), start.elapsed()), (5, Duration::ZERO));
    });
}
