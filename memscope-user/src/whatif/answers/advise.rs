//! Which settings serve a recorded run best.

use schemars::JsonSchema;
use serde::Serialize;

use super::ask::{Question, Shown};
use super::{Answer, Fit};
use crate::whatif::MIB;
use crate::whatif::bounds::{Bounds, bounds};
use crate::whatif::changes::{EmptyAt, with_empty_caches};
use crate::whatif::check::SelfCheck;
use crate::whatif::requests::{CallTimes, Gaps, Op, Requests};
use crate::whatif::settings::{Family, Settings};

/// Smallest gain: this part of the present memory, and this many bytes.
const GAIN_PART: f64 = 0.02;
const GAIN_BYTES: u64 = 64 * MIB;
/// Settings with a search for the least memory, which takes tens of replays.
const LEAST_OF: usize = 3;
/// Settings in an advice.
const SHOWN: usize = 10;

/// The user's wishes beside a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// No setting with more driver calls than there are now.
    pub keep_calls: bool,
}

/// The advice about one process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Advice {
    /// Process.
    pub pid: u32,
    /// The self-check.
    pub check: SelfCheck,
    /// What driver calls took in the recording.
    pub call_times: CallTimes,
    /// Facts missing in the recording.
    pub gaps: Gaps,
    /// Settings of the recording, on the device in question.
    pub now: Answer,
    /// Settings that serve better, best first.
    pub better: Vec<Answer>,
    /// Settings that were tried.
    pub tried: u32,
    /// Bounds by device.
    pub bounds: Vec<Bounds>,
}

/// Answers of `advise`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Advices {
    /// The file.
    pub input: String,
    /// Bytes of a device, as asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// By process.
    pub processes: Vec<Advice>,
}

/// Settings that are worth a try for these requests.
fn candidates(requests: &Requests, question: &Question) -> Vec<String> {
    let largest_bytes = largest(requests);
    let mut found: Vec<String> = vec![
        String::new(),
        "expandable_segments:True".to_owned(),
        "roundup_power2_divisions:4".to_owned(),
        "roundup_power2_divisions:8".to_owned(),
        "roundup_power2_divisions:16".to_owned(),
    ];
    if question.release.family() == Family::Npu {
        found.push("expandable_segments:True,base_addr_aligned_kb:0".to_owned());
        found.extend([32, 64, 128, 256].map(|mb| format!("expandable_segments:True,segment_size_mb:{mb}")));
    }
    // Where no block is larger, nothing changes.
    let sizes = [21, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024];
    let sizes = sizes.into_iter().filter(|mb| mb * MIB < largest_bytes);
    found.extend(sizes.map(|mb| format!("max_split_size_mb:{mb}")));
    // Without a fraction it does nothing.
    if question.fraction.is_some() {
        found.extend(["0.5", "0.7", "0.8", "0.9"].map(|part| format!("garbage_collection_threshold:{part}")));
    }
    found
}

fn largest(requests: &Requests) -> u64 {
    let asked = requests.words.iter().map(|op| if let Op::Alloc { asked, .. } = op { asked } else { 0 });
    asked.max().unwrap_or(0)
}

/// What counts, in this order: it fits, the pool holds less, fewer retries, fewer driver calls. The worst of a range counts.
fn rank(answer: &Answer) -> (Fit, u64, u64, u64) {
    let sum = |of: fn(&super::DeviceAnswer) -> u64| answer.devices.iter().map(of).sum::<u64>();
    let fits = answer.fits.unwrap_or(Fit::No);
    (
        fits,
        sum(|device| device.reserved_peak_bytes.most),
        sum(|device| device.retries.most),
        sum(|device| device.driver_calls.most),
    )
}

/// Whether it is worth a change.
fn is_gain(now: &Answer, other: &Answer) -> bool {
    let ((fits_now, peak_now, retries_now, _), (fits, peak, retries, _)) = (rank(now), rank(other));
    if fits != fits_now {
        return fits < fits_now;
    }
    let gain = peak_now.saturating_sub(peak);
    let fewer_retries = retries < retries_now && peak <= peak_now;
    gain >= GAIN_BYTES || gain as f64 >= GAIN_PART * peak_now as f64 && gain > 0 || fewer_retries
}

/// Tries settings on a recording.
///
/// # Errors
///
/// When the assumed settings of the recording are refused.
pub fn advise(requests: &Requests, question: &Question, wishes: Wishes) -> Result<Advice, String> {
    let shown = Shown::new(requests, requests, question)?;
    let card = question.card(requests);
    let text = shown.settings().to_owned();
    let quick = Question { least: false, ..question.clone() };
    let full = Question { least: true, ..question.clone() };
    let now = shown.answer(&text, &full, Some(&card));
    let mut tried = 0;
    let mut better: Vec<Answer> = Vec::new();
    for other in candidates(requests, question).into_iter().filter(|other| *other != text) {
        let answer = shown.answer(&other, &quick, Some(&card));
        if answer.refused.is_some() {
            continue;
        }
        tried += 1;
        let calls_kept = !wishes.keep_calls || rank(&answer).3 <= rank(&now).3;
        if calls_kept && is_gain(&now, &answer) {
            better.push(answer);
        }
    }
    better.extend(emptied(&shown, requests, question, &now, &mut tried));
    better.sort_by_key(|answer| (rank(answer), answer.settings.clone()));
    better.truncate(SHOWN);
    let call = emptying(question.release.family());
    for answer in better.iter_mut().take(LEAST_OF).filter(|answer| !answer.settings.starts_with(call)) {
        answer.least = shown.answer(&answer.settings.clone(), &full, Some(&card)).least;
    }
    let settings = Settings::parse(&text, question.release).unwrap_or_default();
    let bounds = bounds(requests, &settings);
    Ok(Advice {
        pid: requests.pid,
        call_times: requests.call_times,
        gaps: requests.gaps,
        check: shown.check,
        now,
        better,
        tried,
        bounds,
    })
}

/// Stands for the call in place of settings.
const fn emptying(family: Family) -> &'static str {
    match family {
        Family::Npu => "torch.npu.empty_cache()",
        Family::Cuda => "torch.cuda.empty_cache()",
    }
}

/// The recorded settings, with the cache emptied where a step begins; nothing where there are no steps, or no gain.
fn emptied(
    shown: &Shown<'_>,
    requests: &Requests,
    question: &Question,
    now: &Answer,
    tried: &mut u32,
) -> Option<Answer> {
    let (emptied, times) = with_empty_caches(requests, &EmptyAt::Steps(1));
    if times == 0 {
        return None;
    }
    *tried += 1;
    let other = Question { recorded: Some(shown.settings().to_owned()), changed: true, ..question.clone() };
    let shown = Shown::new(&emptied, requests, &other).ok()?;
    let quick = Question { least: false, ..other };
    let answer = shown.answer(shown.settings(), &quick, Some(&quick.card(requests)));
    let settings = format!("{} behind each step", emptying(question.release.family()));
    Some(Answer { settings, ..answer }).filter(|answer| is_gain(now, answer))
}
