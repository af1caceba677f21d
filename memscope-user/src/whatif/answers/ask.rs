//! One setting: replays with the possible addresses and lags, and the figures common to them.

use super::{Answer, DeviceAnswer, Fit, Part, ProcessAnswer, Span, Sure};
use crate::whatif::bounds::bounds;
use crate::whatif::check::{SelfCheck, check, find_settings};
use crate::whatif::device::{Addresses, Calls, Card};
use crate::whatif::least::least;
use crate::whatif::replay::{Blind, Outcome, Parting, Replay, Setup, Until};
use crate::whatif::requests::{CallTime, CallTimes, Gaps, MarkOf, Requests};
use crate::whatif::settings::{Release, Settings};
use crate::whatif::streams::{OTHER_LAGS, with_lags};

/// Frames shown of a request.
const FRAMES: usize = 8;

/// A question.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Settings to try.
    pub settings: Vec<String>,
    /// Settings of the recording, if they are known.
    pub recorded: Option<String>,
    /// The allocator, and its release.
    pub release: Release,
    /// Bytes of a device that the process can have; `None`: unlimited.
    pub limit_bytes: Option<u64>,
    /// Bytes of the device, the base of fractions; `None`: the limit.
    pub total_bytes: Option<u64>,
    /// Memory fraction.
    pub fraction: Option<f64>,
    /// Goes on behind a request at which the program would behave differently.
    pub until: Until,
    /// Looks for the least memory.
    pub least: bool,
    /// The requests differ from those of the recording.
    pub changed: bool,
}

impl Question {
    /// The device in question: without one, that of the recording.
    pub(super) fn card(&self, requests: &Requests) -> Card {
        let plain = Card::default();
        let recorded_bytes = requests.total_bytes.iter().flatten().copied().max();
        Card {
            memory_bytes: self.limit_bytes.unwrap_or(plain.memory_bytes),
            total_bytes: self.total_bytes.or(self.limit_bytes).or(recorded_bytes).unwrap_or(plain.total_bytes),
            fraction: self.fraction,
            limits_whole_fraction: self.release.limits_whole_fraction(),
            addresses: Addresses::default(),
        }
    }
}

/// A recording with its settings, as far as they are known.
#[derive(Debug)]
pub struct Shown<'a> {
    pub(super) requests: &'a Requests,
    pub(super) check: SelfCheck,
    /// The same with other lags, if streams use blocks.
    lagged: Vec<Requests>,
    changed: bool,
}

impl<'a> Shown<'a> {
    /// Checks a recording. `whole` is the recording itself where `requests` are a part of it.
    pub fn new(requests: &'a Requests, whole: &Requests, question: &Question) -> Result<Self, String> {
        let release = question.release;
        let card = Card { limits_whole_fraction: release.limits_whole_fraction(), ..Card::default() };
        let check = match &question.recorded {
            Some(text) => {
                let settings = Settings::parse(text, release).map_err(|refused| refused.to_string())?;
                check(whole, text, &settings, &card)
            }
            None => find_settings(whole, release, &card).0,
        };
        let other_lags = OTHER_LAGS.iter().filter(|_| requests.frees_in_use > 0);
        let lagged = other_lags.map(|lag| with_lags(requests, *lag)).collect();
        Ok(Self { requests, check, lagged, changed: question.changed })
    }

    /// Settings of the recording.
    pub(super) fn settings(&self) -> &str {
        &self.check.settings
    }

    /// The replay under one setting, on this card; `None`: on devices as in the recording.
    pub(super) fn answer(&self, text: &str, question: &Question, card: Option<&Card>) -> Answer {
        match Settings::parse(text, question.release) {
            Ok(settings) => self.replayed(text, &settings, question, card),
            Err(refused) => Answer { refused: Some(refused.to_string()), ..empty(text) },
        }
    }

    fn replayed(&self, text: &str, settings: &Settings, question: &Question, card: Option<&Card>) -> Answer {
        let recorded = Card { limits_whole_fraction: question.release.limits_whole_fraction(), ..Card::default() };
        // Other settings are asked about in place of all that the script sets.
        let (with_script, with_limits) = (text == self.settings(), card.is_none());
        let setup = |device: u8, addresses: Addresses| {
            let own = || self.requests.recorded_card(device, &recorded);
            let card = Card { addresses, ..card.cloned().unwrap_or_else(own) };
            Setup { settings: settings.clone(), card, with_script, with_limits }
        };
        // The recording as it was. What was in the pool before was put there under its settings.
        let own = card.is_none() && !self.changed && text == self.settings();
        let run = |requests: &Requests, addresses: Addresses| {
            let setup = |device| setup(device, addresses.clone());
            let replay = if own { Replay::from_before } else { Replay::new };
            replay(requests, setup, question.until).run(&mut Blind).0
        };
        let direction = self.direction();
        let first = run(self.requests, direction.clone());
        let mut others = Vec::new();
        // What was is known: there is nothing to vary.
        if !(own && self.check.is_whole()) {
            let orders = [Addresses::Down, Addresses::Up, Addresses::Fresh];
            let orders = orders.into_iter().filter(|order| *order != direction);
            others.extend(orders.map(|order| run(self.requests, order)));
            others.extend(self.lagged.iter().map(|requests| run(requests, direction.clone())));
        }
        let mut answer = self.summed(text, &first, &others, own);
        let fraction = card.and_then(|card| card.fraction);
        answer.notes.extend(settings.without_effect(fraction).map(str::to_owned));
        if !with_script && !self.requests.script_settings.is_empty() {
            answer.notes.push("in place of the settings that the script sets".to_owned());
        }
        if settings.lazy_reclaim && self.requests.frees_in_use > 0 {
            answer
                .notes
                .push("blocks that streams use come back later than recorded: peaks are lower bounds".to_owned());
        }
        if question.least && card.is_some() {
            let setup = setup(0, direction);
            let devices = 0..self.requests.devices.len() as u8;
            answer.least = devices.filter_map(|device| least(self.requests, &setup, device, true)).collect();
        }
        answer
    }

    /// The order of addresses of the recorded segments.
    fn direction(&self) -> Addresses {
        let pairs = self.requests.segments.iter().flat_map(|starts| starts.windows(2));
        let (up, all) = pairs.fold((0, 0), |(up, all), pair| (up + usize::from(pair[0] < pair[1]), all + 1));
        if 2 * up > all { Addresses::Up } else { Addresses::Down }
    }

    /// `own`: it is the recording as it was.
    fn summed(&self, text: &str, first: &Outcome, others: &[Outcome], own: bool) -> Answer {
        let all = || std::iter::once(first).chain(others);
        let fitting = all().filter(|outcome| outcome.fits()).count();
        let fits = match fitting {
            0 => Fit::No,
            some if some == others.len() + 1 => Fit::Yes,
            _ => Fit::Depends,
        };
        // A replay that parts has seen a part of the run: where others go to the end, only they count.
        let counted: Vec<&Outcome> = all().filter(|outcome| fitting == 0 || outcome.fits()).collect();
        let varied = !others.is_empty() && self.requests.frees_in_use > 0;
        let as_recorded = Some(first).filter(|first| varied && first.fits());
        let devices = (0..first.devices.len()).map(|index| self.of_device(index, &counted, as_recorded));
        let devices: Vec<DeviceAnswer> = devices.collect();
        let parted = all().find(|outcome| outcome.parting.is_some_and(|parting| parting.fails));
        let parting = first.parting.or_else(|| parted.and_then(|outcome| outcome.parting));
        // Where streams use blocks, replays may agree by chance.
        let agree = devices.iter().all(|device| device.reserved_peak_bytes.is_one()) && fits != Fit::Depends;
        let before_bytes = if own { 0 } else { self.requests.gaps.before_bytes };
        let gaps = Gaps { before_bytes, ..self.requests.gaps };
        let sure = if self.changed || !self.check.is_whole() || !gaps.is_none() {
            Sure::Estimate
        } else if agree && (own || self.requests.frees_in_use == 0) {
            Sure::Exact
        } else {
            Sure::Range
        };
        let part = parting.map(|parting| self.part(&parting));
        Answer { sure, fits: Some(fits), part, devices, replays: 1 + others.len() as u32, ..empty(text) }
    }

    fn of_device(&self, index: usize, counted: &[&Outcome], as_recorded: Option<&Outcome>) -> DeviceAnswer {
        let span = |of: &dyn Fn(&Outcome) -> u64| {
            let spans = counted.iter().map(|outcome| Span::of(of(outcome)));
            spans.reduce(|span, one| span.with(one.least)).unwrap_or_default()
        };
        let figures = |outcome: &Outcome| outcome.devices[index].figures;
        let idle = |outcome: &Outcome| {
            figures(outcome).reserved_peak_bytes.saturating_sub(figures(outcome).allocated_at_peak_bytes)
        };
        let calls = counted.first().map(|outcome| outcome.devices[index].calls).unwrap_or_default();
        DeviceAnswer {
            device: self.requests.devices[index],
            reserved_peak_bytes: span(&|outcome| figures(outcome).reserved_peak_bytes),
            allocated_peak_bytes: span(&|outcome| figures(outcome).allocated_peak_bytes),
            idle_at_peak_bytes: span(&idle),
            device_peak_bytes: span(&|outcome| outcome.devices[index].device_peak_bytes),
            retries: span(&|outcome| figures(outcome).retries),
            reserved_peak_as_recorded_bytes: as_recorded.map(|outcome| figures(outcome).reserved_peak_bytes),
            driver_calls: span(&|outcome| outcome.devices[index].calls.total()),
            making_ns: self.making_ns(&calls),
            calls,
        }
    }

    /// About how long calls take that make memory.
    fn making_ns(&self, calls: &Calls) -> Option<u64> {
        let CallTimes { segment, page } = self.requests.call_times;
        let of = |count: u64, time: Option<CallTime>| {
            if count == 0 { Some(0) } else { count.checked_mul(time?.median_ns()) }
        };
        let sum = of(calls.malloc, segment)?.checked_add(of(calls.create, page)?)?;
        (sum > 0).then_some(sum)
    }

    fn part(&self, parting: &Parting) -> Part {
        let requests = self.requests;
        let mark = (parting.marks as usize).checked_sub(1).and_then(|index| requests.marks.get(index));
        let behind = mark.map(|mark| match &mark.what {
            MarkOf::Step(step) => format!("step {step}"),
            MarkOf::Text(text) => format!("mark {}", crate::printable::OneLine(text)),
        });
        let stack = requests.stack_of(parting.number).filter(|_| parting.fails);
        let frames = stack.map(|stack| stack.frames().iter().take(FRAMES).map(ToString::to_string).collect());
        Part {
            fails: parting.fails,
            request: parting.number + 1,
            time_ns: requests.time_of(parting.number).unwrap_or(0),
            behind,
            device: requests.devices[usize::from(parting.device)],
            asked_bytes: parting.asked_bytes,
            reserved_bytes: parting.reserved_bytes,
            allocated_bytes: parting.allocated_bytes,
            free_bytes: parting.free.bytes,
            largest_free_bytes: parting.free.largest_bytes,
            device_free_bytes: parting.device_free_bytes,
            frames: frames.unwrap_or_default(),
        }
    }
}

fn empty(text: &str) -> Answer {
    Answer {
        settings: text.to_owned(),
        sure: Sure::Estimate,
        refused: None,
        notes: Vec::new(),
        fits: None,
        part: None,
        devices: Vec::new(),
        least: Vec::new(),
        replays: 0,
    }
}

/// Asks about one process. `whole` is its recording; `requests` may be a part of it.
///
/// # Errors
///
/// When the assumed settings of the recording are refused.
pub fn ask(requests: &Requests, whole: &Requests, question: &Question) -> Result<ProcessAnswer, String> {
    let shown = Shown::new(requests, whole, question)?;
    let card = question.card(requests);
    let text = shown.settings().to_owned();
    let recorded = shown.answer(&text, question, None);
    // What fits is asked of the recorded settings, too.
    let own = Some(&text).filter(|text| !question.settings.contains(text));
    let asked = own.into_iter().chain(&question.settings);
    let answers = asked.map(|text| shown.answer(text, question, Some(&card))).collect();
    let settings = Settings::parse(&text, question.release).unwrap_or_default();
    let bounds = bounds(requests, &settings);
    Ok(ProcessAnswer {
        pid: requests.pid,
        call_times: whole.call_times,
        gaps: whole.gaps,
        requests: requests.count,
        used_by_streams: requests.frees_in_use,
        failures: requests.failures,
        others_peak_bytes: requests.others_peak_bytes.clone(),
        check: shown.check,
        recorded,
        answers,
        bounds,
        emptied: 0,
        scaled: None,
        freed_early: None,
    })
}
