//! Answers as text.

use std::io::{self, Write};

use super::{Advice, Advices, Answer, DeviceAnswer, Fit, Part, ProcessAnswer, Span, Sure, WhatIf};
use crate::printable::OneLine;
use crate::text::numbers::{counted, rounded};
use crate::whatif::bounds::Bounds;
use crate::whatif::changes::Scaled;
use crate::whatif::check::{Differs, SelfCheck};
use crate::whatif::early::FreedEarly;
use crate::whatif::requests::{CallTimes, Gaps};
use crate::whatif::settings::Family;

/// Writes the answers of `whatif`.
pub fn write_what_if(found: &WhatIf, out: &mut dyn Write) -> io::Result<()> {
    if found.processes.is_empty() {
        return writeln!(
            out,
            "No requests to PyTorch's pool in {}: there is nothing to replay.",
            OneLine(&found.input)
        );
    }
    for (index, process) in found.processes.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_process(process, found, out)?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "On a smaller device operators may choose other algorithms and ask for other sizes: that is not in here."
    )
}

/// What differs from the recorded requests.
fn write_changes(process: &ProcessAnswer, out: &mut dyn Write) -> io::Result<()> {
    if process.emptied > 0 {
        writeln!(out, "  The cache is emptied {} more.", counted(process.emptied, "time"))?;
    }
    if let Some(early) = &process.freed_early {
        write_early(early, out)?;
    }
    let Some(Scaled { batches, growing, uneven }) = process.scaled else { return Ok(()) };
    writeln!(
        out,
        "  Requests are those of batch {}, by the recordings of {} and {}: {growing} of {} change with it.",
        batches.wanted, batches.first, batches.second, process.requests
    )?;
    if uneven > 0 {
        writeln!(out, "  {uneven} of them are not in proportion to it: rounded up.")?;
    }
    Ok(())
}

/// What making memory took, which times of answers are made of.
fn write_call_times(times: &CallTimes, out: &mut dyn Write) -> io::Result<()> {
    for (what, time) in [("segment", times.segment), ("page of an expandable segment", times.page)] {
        if let Some(time) = time {
            let [low, middle, high] = time.quartiles_ns.map(duration);
            let requests = counted(time.requests, "request");
            writeln!(out, "  Making a {what} took {middle} in the recording ({low} to {high} in half of {requests}).")?;
        }
    }
    Ok(())
}

/// A time with a fitting unit.
fn duration(time_ns: u64) -> String {
    match time_ns {
        ..1_000_000 => format!("{} µs", time_ns.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time_ns as f64 / 1e6),
        _ => format!("{:.1} s", time_ns as f64 / 1e9),
    }
}

fn write_early(early: &FreedEarly, out: &mut dyn Write) -> io::Result<()> {
    let FreedEarly { uses: _, blocks, moved, without_use, kept, left_out, uses_lost } = *early;
    writeln!(out, "  Freed right behind the last use: {moved} of {} that match.", counted(blocks, "block"))?;
    if without_use > 0 {
        writeln!(out, "    {without_use} have no known last use: freed as recorded.")?;
    }
    if kept > 0 {
        writeln!(out, "    {kept} are used by other streams or captured graphs: freed as recorded.")?;
    }
    if left_out > 0 {
        let operators = counted(left_out, "operator");
        writeln!(out, "    {operators} used more blocks than were recorded: no block is freed before one of them.")?;
    }
    if uses_lost {
        writeln!(out, "    Records of operators were lost: blocks may be freed too early here.")?;
    }
    Ok(())
}

fn write_process(process: &ProcessAnswer, found: &WhatIf, out: &mut dyn Write) -> io::Result<()> {
    let ProcessAnswer { pid, requests, used_by_streams, failures, .. } = process;
    writeln!(out, "Process {pid}: {} to PyTorch's pool", counted(*requests, "request"))?;
    write_check(&process.check, &process.gaps, out)?;
    if *used_by_streams > 0 {
        let blocks = counted(*used_by_streams, "block");
        writeln!(
            out,
            "  Streams used {blocks} when they were freed: figures are ranges over when they come back (`waits` names their places)."
        )?;
    }
    if *failures > 0 {
        writeln!(out, "  {} failed in the recording.", counted(*failures, "request"))?;
    }
    for (bytes, bound) in process.others_peak_bytes.iter().zip(&process.bounds) {
        if *bytes > 0 {
            writeln!(
                out,
                "  {}:{}: up to {} outside of the pool, which no setting changes.",
                process.check.allocator.device_word(),
                bound.device,
                rounded((*bytes).into())
            )?;
        }
    }
    write_call_times(&process.call_times, out)?;
    write_changes(process, out)?;
    writeln!(out)?;
    let is_changed =
        found.without > 0 || process.emptied > 0 || process.scaled.is_some() || process.freed_early.is_some();
    let title = if is_changed { "Changed, with the recorded settings" } else { "As recorded" };
    let word = process.check.allocator.device_word();
    write_answer(word, title, &process.recorded, &process.recorded, out)?;
    for answer in &process.answers {
        let limit = found.limit_bytes.map(|bytes| format!(" on {}", rounded(bytes.into()))).unwrap_or_default();
        writeln!(out)?;
        write_answer(word, &format!("{}{limit}", name(&answer.settings)), answer, &process.recorded, out)?;
    }
    writeln!(out)?;
    process.bounds.iter().try_for_each(|bounds| write_bounds(word, bounds, &process.recorded, out))
}

/// The proof line comes first.
fn write_check(check: &SelfCheck, gaps: &Gaps, out: &mut dyn Write) -> io::Result<()> {
    let SelfCheck { events, agreeing, settings, settings_found, set_by_script, .. } = check;
    let how = if *settings_found { ", found by replay" } else { "" };
    if check.allocator == Family::Cuda {
        writeln!(out, "  Replayed by the rules of PyTorch's allocator for CUDA.")?;
    }
    writeln!(out, "  Settings of the recording: {}{how}", name(settings))?;
    if !set_by_script.is_empty() {
        let set: Vec<String> = set_by_script.iter().map(|text| OneLine(text).to_string()).collect();
        writeln!(out, "  The script then sets: {}", set.join("; "))?;
    }
    match &check.first {
        None if check.nothing_to_compare => {
            writeln!(out, "  The recording has nothing to compare the model with: what follows is an estimate.")?;
        }
        None => writeln!(out, "  The model reproduces the recording: {agreeing} of {events} events.")?,
        Some(first) => {
            writeln!(out, "  The model reproduces {agreeing} of {events} events: what follows is an estimate.")?;
            let what = match first.what {
                Differs::Size => "its block has another size".to_owned(),
                Differs::Place => "its block lies elsewhere".to_owned(),
                Differs::Reserved => format!(
                    "the pool holds {}, in the model {}",
                    rounded(first.recorded_bytes.unwrap_or(0).into()),
                    rounded(first.replayed_bytes.into())
                ),
                Differs::Failure => "it fails in one of them".to_owned(),
            };
            writeln!(out, "  The first event that differs is at request {}: {what}.", first.request + 1)?;
        }
    }
    gap_lines(gaps).iter().try_for_each(|line| writeln!(out, "  {line}"))
}

fn gap_lines(gaps: &Gaps) -> Vec<String> {
    let Gaps {
        sizes_guessed,
        unseen_frees,
        older_bytes,
        before_bytes,
        without_stream,
        unclear_frees,
        lost_records,
        left_out,
    } = *gaps;
    let mut lines = Vec::new();
    let mut say = |is: bool, text: String| {
        if is {
            lines.push(text);
        }
    };
    say(lost_records, "Records were lost: figures are estimates.".to_owned());
    say(
        sizes_guessed > 0,
        format!(
            "{}: the size asked for is not known, that of the block stands for it.",
            counted(sizes_guessed, "request")
        ),
    );
    say(
        without_stream > 0,
        format!("{}: the stream is not known, all count as of one.", counted(without_stream, "request")),
    );
    say(unseen_frees > 0, format!("{} ended without a free that was seen.", counted(unseen_frees, "block")));
    say(
        older_bytes > 0,
        format!(
            "{} were in the pool before the recording began: they count as one block.",
            rounded(older_bytes.into())
        ),
    );
    say(
        before_bytes > 0,
        format!(
            "Blocks of {} are from before the recording: under other settings or limits they are requested first.",
            rounded(before_bytes.into())
        ),
    );
    say(
        unclear_frees > 0,
        format!("{unclear_frees} times the cache was emptied, or a request retried: taken for the former."),
    );
    say(left_out > 0, format!("{} could not be taken.", counted(left_out, "request")));
    lines
}

fn name(settings: &str) -> String {
    if settings.is_empty() { "defaults".to_owned() } else { OneLine(settings).to_string() }
}

const fn sureness(sure: Sure) -> &'static str {
    match sure {
        Sure::Exact => "replayed exactly",
        Sure::Range => "range",
        Sure::Estimate => "estimate",
    }
}

/// `word` is that of its devices.
fn write_answer(word: &str, title: &str, answer: &Answer, recorded: &Answer, out: &mut dyn Write) -> io::Result<()> {
    if let Some(reason) = &answer.refused {
        return writeln!(out, "{title}: refused: {}", OneLine(reason));
    }
    let fits = match answer.fits {
        Some(Fit::Yes) => "fits",
        Some(Fit::Depends) => "fits or not, as streams and addresses decide",
        Some(Fit::No) | None => "does not fit",
    };
    let fits = match &answer.part {
        Some(part) if !part.fails && answer.fits == Some(Fit::Yes) => "fits where the recording did not",
        _ => fits,
    };
    writeln!(out, "{title}: {fits} [{}, {}]", sureness(answer.sure), counted(answer.replays.into(), "replay"))?;
    for note in &answer.notes {
        writeln!(out, "  {}", OneLine(note))?;
    }
    if let Some(part) = &answer.part {
        write_part(word, part, out)?;
    }
    for (index, device) in answer.devices.iter().enumerate() {
        let before = recorded.devices.get(index).filter(|_| !std::ptr::eq(answer, recorded));
        write_device(word, device, before, out)?;
        if let Some(least) = answer.least.get(index) {
            let retries = retries(Span::of(least.retries));
            writeln!(out, "    least device memory {}, with {retries}", rounded(least.bytes.into()))?;
            if !least.gaps_bytes.is_empty() {
                writeln!(out, "      but not {}", list(&least.gaps_bytes))?;
            }
        }
    }
    Ok(())
}

fn list(bytes: &[u64]) -> String {
    bytes.iter().map(|bytes| rounded((*bytes).into())).collect::<Vec<_>>().join(", ")
}

fn span(span: Span) -> String {
    if span.is_one() {
        rounded(span.most.into())
    } else {
        format!("{} … {}", rounded(span.least.into()), rounded(span.most.into()))
    }
}

fn count(span: Span) -> String {
    if span.is_one() { span.most.to_string() } else { format!("{} … {}", span.least, span.most) }
}

fn retries(span: Span) -> String {
    format!("{} {}", count(span), if span == Span::of(1) { "retry" } else { "retries" })
}

/// The peak to compare: with the streams of the recording, else the worst.
fn peak_bytes(device: &DeviceAnswer) -> u64 {
    device.reserved_peak_as_recorded_bytes.unwrap_or(device.reserved_peak_bytes.most)
}

fn write_device(
    word: &str,
    device: &DeviceAnswer,
    before: Option<&DeviceAnswer>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let change = before.map(|before| {
        let [now, then] = [device, before].map(|device| i128::from(peak_bytes(device)));
        let sign = if now < then { "-" } else { "+" };
        format!(" ({sign}{} to the recording)", rounded((now - then).unsigned_abs()))
    });
    let change = change.unwrap_or_default();
    let peak = match device.reserved_peak_as_recorded_bytes {
        Some(bytes) if !device.reserved_peak_bytes.is_one() => {
            format!("{}, {} as streams decide", rounded(bytes.into()), span(device.reserved_peak_bytes))
        }
        _ => span(device.reserved_peak_bytes),
    };
    writeln!(out, "  {word}:{}: the pool holds up to {peak}{change}", device.device)?;
    writeln!(
        out,
        "    blocks up to {}; not in use at the peak {}",
        span(device.allocated_peak_bytes),
        span(device.idle_at_peak_bytes)
    )?;
    let making = device.making_ns.map(|time_ns| format!(", about {} to make memory", duration(time_ns)));
    let (retries, calls) = (retries(device.retries), count(device.driver_calls));
    writeln!(out, "    {retries}, {calls} driver calls{}", making.unwrap_or_default())
}

fn write_part(word: &str, part: &Part, out: &mut dyn Write) -> io::Result<()> {
    let behind = part.behind.as_ref().map(|behind| format!(", behind {behind}")).unwrap_or_default();
    let (request, asked) = (part.request, rounded(part.asked_bytes.into()));
    if part.fails {
        writeln!(out, "  Out of memory at request {request} of {word}:{}{behind}: {asked} asked.", part.device)?;
        writeln!(
            out,
            "    The pool holds {} then, {} of it free, the largest piece {}; the device has {} left.",
            rounded(part.reserved_bytes.into()),
            rounded(part.free_bytes.into()),
            rounded(part.largest_free_bytes.into()),
            rounded(part.device_free_bytes.into())
        )?;
    } else {
        writeln!(
            out,
            "  Request {request} of {word}:{}{behind} failed in the recording and succeeds here.",
            part.device
        )?;
    }
    for frame in &part.frames {
        writeln!(out, "    at {}", OneLine(frame))?;
    }
    writeln!(out, "    Behind it the program would have gone another way: figures are of what was before.")
}

fn write_bounds(word: &str, bounds: &Bounds, recorded: &Answer, out: &mut dyn Write) -> io::Result<()> {
    let peak = recorded.devices.iter().find(|device| device.device == bounds.device);
    let peak_bytes = peak.map_or(0, peak_bytes);
    writeln!(out, "Bounds of {word}:{} under the recorded settings", bounds.device)?;
    writeln!(out, "  blocks that are live at once {}: no allocator needs less", rounded(bounds.floor_bytes.into()))?;
    match (bounds.packed_bytes, bounds.unavoidable_bytes()) {
        (Some(packed), Some(unavoidable)) => {
            writeln!(
                out,
                "  best packing {}: {} that no setting gives",
                rounded(packed.into()),
                rounded(unavoidable.into())
            )?;
        }
        _ => writeln!(out, "  best packing not computed: {} are too many", counted(bounds.blocks, "block"))?,
    }
    let fragmentation = bounds.fragmentation_bytes(peak_bytes);
    writeln!(out, "  fragmentation costs {} of the recorded peak", rounded(fragmentation.into()))
}

/// Writes the answers of `advise`.
pub fn write_advices(found: &Advices, out: &mut dyn Write) -> io::Result<()> {
    if found.processes.is_empty() {
        return writeln!(
            out,
            "No requests to PyTorch's pool in {}: there is nothing to replay.",
            OneLine(&found.input)
        );
    }
    for (index, advice) in found.processes.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_advice(advice, out)?;
    }
    Ok(())
}

fn write_advice(advice: &Advice, out: &mut dyn Write) -> io::Result<()> {
    let word = advice.check.allocator.device_word();
    writeln!(out, "Process {}", advice.pid)?;
    write_check(&advice.check, &advice.gaps, out)?;
    write_call_times(&advice.call_times, out)?;
    writeln!(out)?;
    write_answer(word, &format!("Now: {}", name(&advice.now.settings)), &advice.now, &advice.now, out)?;
    writeln!(out)?;
    match advice.better.first() {
        None => writeln!(out, "Keep your settings: none of {} others gains 2 % or 64 MiB.", advice.tried)?,
        Some(_) => writeln!(out, "{} of {} others are better, best first:", advice.better.len(), advice.tried)?,
    }
    for answer in &advice.better {
        writeln!(out)?;
        write_answer(word, &name(&answer.settings), answer, &advice.now, out)?;
    }
    writeln!(out)?;
    advice.bounds.iter().try_for_each(|bounds| write_bounds(word, bounds, &advice.now, out))
}
