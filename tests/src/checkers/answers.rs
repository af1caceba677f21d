//! Adds up what reports say: in JSON and in text, each list of parts is its whole, and a byte is counted once.
//!
//! Every JSON report that a test reads is checked ([`Run::json`](crate::harness::tracer::Run::json)).

use serde_json::Value;

/// Blocks and bytes.
type Sum = (u64, u64);

/// What does not add up in a JSON report, each with the finding that says so.
#[must_use]
pub fn check(document: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for found in list(document, "findings") {
        let kind = found["finding"].as_str().unwrap_or_default();
        let said = match kind {
            "peak" => peak(found),
            "oom" => list(found, "pools").iter().filter_map(|pool| groups(pool, "live")).collect(),
            "decompose" => decompose(found),
            "held" => held(found),
            "ledger" => ledger(found),
            "step_leaks" => step_leaks(found),
            "growth" => growth(found),
            "fragmentation" => fragmentation(found),
            "inefficient" => inefficient(found),
            "waits" => waits(found),
            "lifetimes" => lifetimes(found),
            "span" => span(found),
            _ => Vec::new(),
        };
        wrong.extend(said.into_iter().map(|said| format!("{kind}: {said}: {found}")));
    }
    wrong.extend(held_by_stack(document));
    wrong
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn sum_of(value: &Value) -> Sum {
    (number(value, "blocks"), number(value, "size_bytes"))
}

fn sum(values: &[Value]) -> Sum {
    values.iter().map(sum_of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn bytes(values: &[Value], key: &str) -> u64 {
    values.iter().map(|value| number(value, key)).sum()
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, parts: &T, whole: &T) -> Option<String> {
    (parts != whole).then(|| format!("{what}: {parts:?}, not {whole:?}"))
}

/// The lists of groups against the sum of the blocks in them.
fn groups(found: &Value, whole: &str) -> Option<String> {
    let (groups, whole) = (&found["groups"], sum_of(&found[whole]));
    let places = list(groups, "places");
    let whole_places = if places.is_empty() || number(found, "places_left_out") > 0 { whole } else { sum(places) };
    let parts = (sum(list(groups, "owners")), sum(list(groups, "sizes")), whole_places);
    differ("owners, sizes and places", &parts, &(whole, whole, whole))
}

fn peak(found: &Value) -> Vec<String> {
    let height = number(&found["seen"], "size_bytes") + number(found, "unseen_bytes");
    [groups(found, "seen"), differ("height", &height, &number(found, "peak_bytes"))].into_iter().flatten().collect()
}

/// Children of a node of owners have no more bytes than the node.
fn children_fit(node: &Value, wrong: &mut Vec<String>) {
    let children = list(node, "children");
    // What has no label of its own behind the node's is in none of them.
    for key in ["peak_bytes", "end_bytes"].into_iter().filter(|key| bytes(children, key) > number(node, key)) {
        wrong.push(format!("children have more {key}: {node}"));
    }
    for child in children {
        children_fit(child, wrong);
    }
}

fn decompose(found: &Value) -> Vec<String> {
    let sums = ["peak_bytes", "end_bytes"].into_iter().filter_map(|key| {
        let parts = (bytes(list(found, "parts"), key), bytes(list(found, "tree"), key));
        differ(key, &parts, &(number(found, key), number(found, key)))
    });
    let by_source: u64 = list(found, "peak_by_source").iter().filter_map(Value::as_u64).sum();
    let mut wrong: Vec<String> = sums.collect();
    wrong.extend(differ("sources", &by_source, &number(found, "peak_bytes")));
    for node in list(found, "tree") {
        children_fit(node, &mut wrong);
    }
    let timeline = &found["timeline"];
    for sample in list(timeline, "samples") {
        let sum: u64 = list(sample, "bytes").iter().filter_map(Value::as_u64).sum();
        if sum > number(sample, "highest_bytes") {
            wrong.push(format!("more than the highest in the timeline: {sample}"));
        }
        wrong.extend(differ("columns", &list(sample, "bytes").len(), &list(timeline, "components").len()));
    }
    wrong
}

fn held(found: &Value) -> Vec<String> {
    let modules = list(found, "by_module");
    let by_module = if modules.is_empty() { None } else { differ("modules", &sum(modules), &sum_of(found)) };
    let most = number(found, "peak_bytes");
    let low = (number(found, "size_bytes") > most).then(|| format!("more than the peak of {most}"));
    by_module.into_iter().chain(low).collect()
}

fn ledger(found: &Value) -> Vec<String> {
    fn sheet(sheet: &Value) -> Option<String> {
        let signed = |entry: &Value| {
            let bytes = i128::from(number(entry, "size_bytes"));
            if entry["sign"] == "plus" { bytes } else { -bytes }
        };
        let parts: i128 = list(sheet, "parts").iter().map(signed).sum();
        differ("sheet", &parts, &signed(&sheet["total"]))
    }
    let pools = list(found, "pools").iter().flat_map(|pool| [&pool["allocated"], &pool["reserved"]]);
    let sheets = [&found["hal"], &found["used"]].into_iter().chain(pools);
    sheets.filter(|of| !of.is_null()).filter_map(sheet).collect()
}

fn step_leaks(found: &Value) -> Vec<String> {
    let leaks = list(found, "leaks");
    let blocks = (leaks.len() as u64, bytes(leaks, "size_bytes"));
    differ("places", &sum(list(found, "places")), &blocks).into_iter().collect()
}

fn growth(found: &Value) -> Vec<String> {
    let of = |site: &Value, blocks: &str| {
        let blocks = number(site, blocks);
        let ages: u64 = list(site, "ages").iter().filter_map(Value::as_u64).sum();
        let owners = if list(site, "owners").is_empty() { blocks } else { sum(list(site, "owners")).0 };
        differ("ages and owners", &(if ages == 0 { blocks } else { ages }, owners), &(blocks, blocks))
    };
    let sites = list(found, "sites").iter().filter_map(|site| of(site, "blocks"));
    sites.chain(list(found, "increases").iter().filter_map(|site| of(site, "live_blocks"))).collect()
}

fn fragmentation(found: &Value) -> Vec<String> {
    let space = |space: &Value| {
        let parts = number(space, "used_bytes") + number(space, "free_bytes");
        let pieces = number(space, "returnable_bytes") + number(space, "scattered_bytes");
        let more = number(space, "largest_free_bytes").max(pieces) > number(space, "free_bytes");
        differ("space", &(parts, more), &(number(space, "total_bytes"), false))
    };
    let moment = |moment: &Value| {
        let mut wrong: Vec<String> = space(&moment["space"]).into_iter().collect();
        for segment in list(moment, "pinned").iter().filter(|segment| number(segment, "blocks_left_out") == 0) {
            let pins = bytes(list(segment, "blocks"), "size_bytes");
            wrong.extend(differ("blocks of a segment", &pins, &number(segment, "used_bytes")));
        }
        wrong
    };
    let series = list(found, "series").iter().flat_map(|sample| [&sample["last"], &sample["worst"]]);
    let mut wrong: Vec<String> = series.filter_map(space).collect();
    wrong.extend(moment(&found["end"]));
    if !found["worst"].is_null() {
        wrong.extend(moment(&found["worst"]));
    }
    wrong
}

fn inefficient(found: &Value) -> Vec<String> {
    let of_kind = |kind: &Value| {
        let is_of = |block: &&Value| list(block, "kinds").contains(&kind["kind"]);
        let blocks: Vec<&Value> = list(found, "blocks").iter().filter(is_of).collect();
        let sum = (blocks.len() as u64, blocks.iter().map(|block| number(block, "size_bytes")).sum());
        differ("blocks of a kind", &sum, &sum_of(kind))
    };
    list(found, "kinds").iter().filter_map(of_kind).collect()
}

/// Bars, size classes and places have all blocks.
fn lifetimes(found: &Value) -> Vec<String> {
    let counted = |of: &Value| {
        let freed: u64 = list(of, "freed").iter().filter_map(Value::as_u64).sum();
        freed + number(of, "unseen_ends") + number(of, "live_blocks")
    };
    let all = number(&found["all"], "blocks");
    let sum = |parts: &[Value]| parts.iter().map(|part| (number(part, "blocks"), counted(part))).fold((0, 0), add);
    let places = list(found, "places");
    let places = if places.is_empty() || number(found, "places_left_out") > 0 { (all, all) } else { sum(places) };
    let parts = (counted(&found["all"]), sum(list(found, "sizes")), places);
    differ("bars, sizes and places", &parts, &(all, (all, all), (all, all))).into_iter().collect()
}

/// Places have all blocks, and all that waited at the pool's peak.
fn waits(found: &Value) -> Vec<String> {
    let figures =
        |of: &Value| ["blocks", "pool_peak_blocks", "pool_peak_bytes", "open_blocks"].map(|key| number(of, key));
    let zero = [0; 4];
    let sum =
        list(found, "places").iter().map(figures).fold(zero, |sum, part| std::array::from_fn(|at| sum[at] + part[at]));
    let is_cut = number(found, "places_left_out") > 0 || found["places_full"] == true;
    let places = if is_cut { figures(found) } else { sum };
    differ("places", &places, &figures(found)).into_iter().collect()
}

const fn add(one: Sum, other: Sum) -> Sum {
    (one.0 + other.0, one.1 + other.1)
}

/// The exit's own figure is of device memory alone.
fn span(found: &Value) -> Vec<String> {
    let exit = (number(&found["exit"], "freed_blocks"), number(&found["exit"], "freed_bytes"));
    let of_devices: Vec<Value> =
        list(found, "freed").iter().filter(|freed| freed["device"] != "host").cloned().collect();
    differ("freed", &sum(&of_devices), &exit).into_iter().collect()
}

/// Process, device and pool.
fn place(found: &Value) -> [String; 3] {
    [&found["pid"], &found["device"], &found["pool"]].map(Value::to_string)
}

/// What the exit of a process freed of a pool, segments too.
fn freed_by_exit(document: &Value, of: &[String; 3]) -> Sum {
    let spans = list(document, "findings").iter().filter(|found| found["finding"] == "span");
    let of_process = |found: &&Value| {
        let pid = found["pid"].to_string();
        pid == of[0]
    };
    let spans = spans.filter(of_process);
    let freed = spans.flat_map(|span| list(span, "freed"));
    let freed = freed.filter(|freed| [&freed["device"], &freed["pool"]].map(Value::to_string) == of[1..]);
    freed.fold((0, 0), |(blocks, bytes), freed| {
        let (own, segments) = (sum_of(freed), sum_of(&freed["segments"]));
        (blocks + own.0 + segments.0, bytes + own.1 + segments.1)
    })
}

/// What is held when the exit begins, by call stack and by owner, is what is held at the end and what the exit freed.
fn held_by_stack(document: &Value) -> Vec<String> {
    let of = |kind: &'static str| list(document, "findings").iter().filter(move |found| found["finding"] == kind);
    let mut wrong = Vec::new();
    for by_stack in of("by_stack").filter(|found| number(found, "left_out") == 0) {
        let live = (bytes(list(by_stack, "sums"), "live_blocks"), bytes(list(by_stack, "sums"), "live_bytes"));
        for held in of("held").filter(|held| place(held) == place(by_stack)) {
            let (left, freed) = (sum_of(held), freed_by_exit(document, &place(held)));
            let judged = (left.0 + freed.0, left.1 + freed.1);
            wrong.extend(differ("by call stack", &live, &judged).map(|said| format!("held: {said}: {held}")));
        }
    }
    for owners in of("decompose") {
        for held in of("held").filter(|held| place(held) == place(owners)) {
            let judged = number(held, "size_bytes") + freed_by_exit(document, &place(held)).1;
            let ends = differ("owners", &number(owners, "end_bytes"), &judged);
            wrong.extend(ends.map(|said| format!("held: {said}: {held}")));
        }
    }
    wrong
}

/// What does not add up in a report in words: lists of blocks against their headings, columns of tables, ledgers.
#[must_use]
pub fn check_text(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut wrong = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.starts_with(' ')) {
        let section: Vec<&str> = lines[at + 1..].iter().copied().take_while(|line| line.starts_with(' ')).collect();
        let reported =
            if line.starts_with("Ledger of ") { ledger_in_words(&section) } else { blocks_in_words(line, &section) };
        wrong.extend(reported.into_iter().map(|reported| format!("{reported}\n{line}\n{}", section.join("\n"))));
    }
    wrong
}

/// `(N bytes) in M blocks`.
fn blocks_of(line: &str) -> Option<Sum> {
    let (before, behind) = line.split_once(" bytes) in ")?;
    let bytes = before.rsplit_once('(')?.1.parse().ok()?;
    Some((behind.split(' ').next()?.parse().ok()?, bytes))
}

/// The same of a place, which below 1 KiB has one figure: `N bytes in M blocks`.
fn blocks_of_place(line: &str) -> Option<Sum> {
    let small = || {
        let (before, behind) = line.split_once(" bytes in ")?;
        Some((behind.split(' ').next()?.parse().ok()?, before.rsplit(' ').next()?.parse().ok()?))
    };
    blocks_of(line).or_else(small)
}

fn blocks_in_words(heading: &str, section: &[&str]) -> Vec<String> {
    let is_list = ["Peak of ", "Held in ", "Leaks of steps ", "Undecided on device "];
    let Some(whole) = blocks_of(heading).filter(|_| is_list.iter().any(|start| heading.starts_with(start))) else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    let is_cut = section.iter().any(|line| line.trim_start().starts_with("… and "));
    let by_place = ["Leaks of steps ", "Undecided on device "].iter().any(|start| heading.starts_with(start));
    let read = if by_place { blocks_of_place } else { blocks_of };
    let parts: Vec<Sum> = section.iter().filter_map(|line| read(line)).collect();
    if !is_cut && !parts.is_empty() {
        let sum = parts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        wrong.extend(differ("listed", &sum, &whole));
    }
    // Tables: bytes are rounded, the second column has the blocks.
    let mut rest = section;
    while let Some(head) = rest.iter().position(|line| line.contains("  Blocks  ")) {
        rest = &rest[head + 1..];
        let count = |line: &&str| line.get(16..24)?.trim().parse::<u64>().ok();
        let rows: Vec<u64> = rest.iter().map_while(count).collect();
        if !rows.is_empty() && !rest.get(rows.len()).is_some_and(|line| line.trim_start().starts_with("… and ")) {
            wrong.extend(differ("column of blocks", &rows.iter().sum::<u64>(), &whole.0));
        }
    }
    wrong
}

/// `= HAL 12 bytes`, then `+ …` and `- …`, several times.
fn ledger_in_words(section: &[&str]) -> Vec<String> {
    let (mut wrong, mut open): (Vec<String>, Option<(i128, i128)>) = (Vec::new(), None);
    let mut close =
        |open: Option<(i128, i128)>| wrong.extend(open.and_then(|(sum, whole)| differ("ledger", &sum, &whole)));
    for line in section {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bytes = words.windows(2).find(|pair| pair[1] == "bytes").and_then(|pair| pair[0].parse::<i128>().ok());
        match (words.first().copied(), bytes, &mut open) {
            (Some("="), Some(bytes), _) => close(open.replace((0, bytes))),
            (Some("+"), Some(bytes), Some((sum, _))) => *sum += bytes,
            (Some("-"), Some(bytes), Some((sum, _))) => *sum -= bytes,
            _ => {}
        }
    }
    close(open);
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of 8 bytes that is in no list of owners, and a heading of two blocks above one, are found.
    #[test]
    fn what_does_not_add_up_is_found() {
        let sum = |blocks: u64| serde_json::json!([{"blocks": blocks, "size_bytes": 8 * blocks}]);
        let peak = |owners: u64| {
            serde_json::json!({"findings": [{
                "finding": "peak", "peak_bytes": 16, "unseen_bytes": 0, "places_left_out": 0,
                "seen": {"blocks": 2, "size_bytes": 16},
                "groups": {"owners": sum(owners), "sizes": sum(2), "places": []},
            }]})
        };
        assert_eq!((check(&peak(2)).len(), check(&peak(1)).len()), (0, 1));
        let text = |blocks: u64| {
            format!(
                "Leaks of steps on device 0: 16 bytes (16 bytes) in 2 blocks of 1 place\n  Hal memory: x ({} bytes) in {blocks} blocks, of\n",
                8 * blocks
            )
        };
        assert_eq!((check_text(&text(2)).len(), check_text(&text(1)).len()), (0, 1));
        // Small sizes have no second figure.
        let small = |bytes: u64| {
            format!(
                "Undecided on device 0: 2.00 KiB (2050 bytes) in 2 blocks of 2 places outlived their steps\n  Hal memory: 1.01 KiB (1030 bytes) in 1 block of 1030 bytes\n  Hal memory: {bytes} bytes in 1 block of {bytes} bytes\n"
            )
        };
        assert_eq!((check_text(&small(1020)).len(), check_text(&small(1019)).len()), (0, 1));
        let ledger = |rest: u64| {
            format!(
                "Ledger of process 1 on device 0 at the end\n  = HAL 10 bytes  x\n  + Runtime 7 bytes x\n  + Rest {rest} bytes x\n"
            )
        };
        assert_eq!((check_text(&ledger(3)).len(), check_text(&ledger(2)).len()), (0, 1));
    }
}
