//! What keeps growing.

use std::io::{self, Write};

use super::{GrowingSite, Growth, Increase, Site};
use crate::analyses::growth::MIN_GROWING_BLOCKS;
use crate::analyses::held_by::{HeldBy, write_lines};
use crate::model::{Confidence, OwnerSum, Pool, module_name};
use crate::text::{
    DeviceName,
    clock::Clock,
    numbers::{counted, rounded, size},
    stacks,
};

/// Owners listed of a place.
const OWNERS: usize = 3;
/// Increases listed.
const INCREASE_LINES: usize = 3;

/// Writes what grows, that nothing grows, or that this is not judged; of a run with steps (`stepped`) only what grows:
/// steps are better evidence.
pub(super) fn write(
    (growth, held_by): (&Growth, &[&HeldBy]),
    stepped: bool,
    clock: Clock,
    lines: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Growth { device, from_ns, span_ns, judged, sites, sites_full, confidence, .. } = growth;
    if stepped && sites.is_empty() && growth.increases.is_empty() {
        return Ok(());
    }
    let (device, seconds) = (DeviceName(*device), span_ns / 1_000_000_000);
    let span =
        format!("from {} to {}", clock.since_start(*from_ns), clock.since_start(from_ns.saturating_add(*span_ns)));
    if !judged {
        return writeln!(
            out,
            "Growth is not judged on device {device}: {seconds} s ({span}) are too short, 10 s are needed"
        );
    }
    if sites.is_empty() {
        writeln!(out, "Nothing keeps growing on device {device} in {seconds} s, {span}")?;
        return write_besides(growth, out);
    }
    writeln!(
        out,
        "Keeps growing on device {device} ({seconds} s looked at, {span}; the number of blocks that stay keeps rising):"
    )?;
    for site in sites.iter().take(lines) {
        write_site(site, out)?;
        let of = site.site.map(|of| (growth.device, site.pool, of.stacks, of.size_bytes));
        of.iter().try_for_each(|of| write_lines(held_by, *of, out))?;
    }
    if let Some(more) = sites.len().checked_sub(lines).filter(|more| *more > 0) {
        writeln!(out, "  … and {more} more (see --json)")?;
    }
    if *sites_full {
        writeln!(out, "  There were more sites than can be kept; the others were judged as one")?;
    }
    write_besides(growth, out)?;
    if *confidence == Confidence::Doubtful {
        writeln!(out, "  Events were lost: frees that were not seen look like growth")?;
    }
    Ok(())
}

/// Writes increases beside the growth, and the growth that would go unnoticed.
fn write_besides(growth: &Growth, out: &mut dyn Write) -> io::Result<()> {
    write_increases(&growth.increases, out)?;
    let Some(bytes_per_hour) = growth.undetectable_bytes_per_hour else { return Ok(()) };
    let beside = if growth.sites.is_empty() { "of one place" } else { "of another place" };
    writeln!(
        out,
        "  Growth {beside} below {} an hour cannot be excluded: fewer than {MIN_GROWING_BLOCKS} blocks that stay are not noticed",
        size(bytes_per_hour)
    )
}

/// Writes increases that are not judged to be growth.
fn write_increases(increases: &[Increase], out: &mut dyn Write) -> io::Result<()> {
    for Increase { site, blocks, size_bytes, low_bytes, live_blocks, ages, owners } in
        increases.iter().take(INCREASE_LINES)
    {
        let (more, place, [youngest, young, old, oldest]) = (size(*size_bytes), place(Some(site)), ages);
        if let Some(low_bytes) = low_bytes {
            let lows: Vec<String> = low_bytes.iter().map(|low| rounded((*low).into())).collect();
            writeln!(
                out,
                "  Undecided: {more} more in {live_blocks} live, as blocks become larger{place}; least in each sixth of the time: {}. A \
                 tensor that is extended, or one long request",
                lows.join(", ")
            )?;
        } else {
            writeln!(
                out,
                "  Undecided: {} more, {more}{place}; {live_blocks} live, by age: {youngest} youngest, {young}, {old}, {oldest} oldest",
                counted(*blocks, "block"),
            )?;
        }
        write_owners(owners, site.pool, out)?;
        write_stacks(site, out)?;
    }
    Ok(())
}

fn place(site: Option<&Site>) -> String {
    match site {
        None => ", as a whole, from many sites".to_owned(),
        Some(Site { size_bytes: Some(each), .. }) => format!(", blocks of {each} bytes"),
        Some(_) => String::new(),
    }
}

fn write_site(found: &GrowingSite, out: &mut dyn Write) -> io::Result<()> {
    let GrowingSite { site, pool, blocks, size_bytes, low_blocks, blocks_per_second, bytes_per_second, .. } = found;
    let place = place(site.as_ref());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, rounded")]
    let hourly = size((bytes_per_second * 3600.0) as u64);
    writeln!(out, "  {}{place}: {hourly} an hour ({blocks_per_second:.3} blocks a second)", pool.display_name())?;
    let lows: Vec<String> = low_blocks.iter().map(u64::to_string).collect();
    writeln!(
        out,
        "    {} live, {}; least in each sixth of the time: {}; {} allocations",
        counted(*blocks, "block"),
        size(*size_bytes),
        lows.join(", "),
        found.allocations
    )?;
    if found.ages.iter().any(|count| *count > 0) {
        let [youngest, young, old, oldest] = found.ages;
        writeln!(out, "    by age, in quarters of the time: {youngest} youngest, {young}, {old}, {oldest} oldest")?;
    }
    write_owners(&found.owners, *pool, out)?;
    site.iter().try_for_each(|site| write_stacks(site, out))
}

/// Writes the owners of the live blocks.
fn write_owners(owners: &[OwnerSum], pool: Pool, out: &mut dyn Write) -> io::Result<()> {
    if owners.is_empty() {
        return Ok(());
    }
    let name = |sum: &OwnerSum| sum.owner.map_or(pool.event_type(), |name| name.as_str()).to_owned();
    let of = |sum: &OwnerSum| format!("{} {}", counted(sum.live.blocks, "block"), name(sum));
    let listed: Vec<String> = owners.iter().take(OWNERS).map(of).collect();
    let more = owners.len().saturating_sub(OWNERS);
    let more =
        if more > 0 { format!(", and of {} (see --json)", counted(more as u64, "more owner")) } else { String::new() };
    writeln!(out, "    owners: {}{more}", listed.join(", "))
}

fn write_stacks(Site { stacks: of, module_id, caller, .. }: &Site, out: &mut dyn Write) -> io::Result<()> {
    if let Some(caller) = caller {
        writeln!(out, "    by {caller} ({})", module_name(*module_id))?;
    }
    stacks::write_each(*of, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Device, Stack, StackEnd, Stacks};

    fn text(growth: &Growth, stepped: bool, lines: usize) -> String {
        let mut out = Vec::new();
        write((growth, &[]), stepped, Clock::since(5_000_000_000), lines, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    fn growing(site: Option<Site>) -> GrowingSite {
        GrowingSite {
            site,
            pool: pools::PTA,
            blocks: 40,
            size_bytes: 40 << 20,
            low_blocks: [0, 8, 16, 24, 32, 38],
            blocks_per_second: 0.5,
            bytes_per_second: 524_288.0,
            allocations: 4000,
            ages: [10, 10, 10, 10],
            owners: Vec::new(),
        }
    }

    /// A place with a stack, a size without one, and a pool as a whole.
    #[test]
    fn growth_is_reported_with_its_evidence() {
        let python = Stack::keep(["cache.py(7): put", "serve.py(1): \u{1b}[31mred"], StackEnd::Root);
        let site = Site {
            pool: pools::PTA,
            stacks: Stacks { python: Some(python), ..Stacks::default() },
            size_bytes: None,
            module_id: None,
            caller: None,
        };
        let by_size = Site { stacks: Stacks::default(), size_bytes: Some(512), ..site };
        let owner = |name: &'static str, blocks| OwnerSum {
            owner: Some(crate::model::Name::keep(name)),
            live: crate::model::LiveSum { blocks, size_bytes: blocks << 20 },
        };
        let owners = vec![owner("PTA@cache", 30), owner("PTA@kv", 8), owner("PTA@a", 1), owner("PTA@b", 1)];
        let with_owners = GrowingSite { owners, ..growing(Some(site)) };
        let growth = Growth {
            pid: 1,
            device: Device::Npu(3),
            from_ns: 5_500_000_000,
            span_ns: 120_400_000_000,
            judged: true,
            not_judged: None,
            undetectable_bytes_per_hour: Some(12 << 20),
            increases: vec![Increase {
                site,
                blocks: 3,
                size_bytes: 3 << 20,
                low_bytes: None,
                live_blocks: 9,
                ages: [9, 0, 0, 0],
                owners: Vec::new(),
            }],
            sites: vec![with_owners, growing(Some(by_size)), growing(None)],
            sites_full: false,
            confidence: Confidence::Doubtful,
        };
        let expected = "\
Keeps growing on device 3 (120 s looked at, from 0.5s to 120.9s; the number of blocks that stay keeps rising):
  Pytorch Caching memory pool: 1.76 GiB (1887436800 bytes) an hour (0.500 blocks a second)
    40 blocks live, 40.00 MiB (41943040 bytes); least in each sixth of the time: 0, 8, 16, 24, 32, 38; 4000 allocations
    by age, in quarters of the time: 10 youngest, 10, 10, 10 oldest
    owners: 30 blocks PTA@cache, 8 blocks PTA@kv, 1 block PTA@a, and of 1 more owner (see --json)
      cache.py(7): put
      serve.py(1): \\u{1b}[31mred
  Pytorch Caching memory pool, blocks of 512 bytes: 1.76 GiB (1887436800 bytes) an hour (0.500 blocks a second)
";
        let found = text(&growth, true, 10);
        assert!(found.starts_with(expected), "{found}");
        assert!(found.contains("  Pytorch Caching memory pool, as a whole, from many sites: "), "{found}");
        let end = "  Growth of another place below 12.00 MiB (12582912 bytes) an hour cannot be excluded: fewer than 8 blocks that stay are \
                   not noticed\n  Events were lost: frees that were not seen look like growth\n";
        assert!(found.ends_with(end), "{found}");
        assert!(text(&growth, true, 1).contains("  … and 2 more (see --json)\n"));
        let none = Growth { sites: Vec::new(), ..growth };
        let expected = "\
Nothing keeps growing on device 3 in 120 s, from 0.5s to 120.9s
  Undecided: 3 blocks more, 3.00 MiB (3145728 bytes); 9 live, by age: 9 youngest, 0, 0, 0 oldest
      cache.py(7): put
      serve.py(1): \\u{1b}[31mred
  Growth of one place below 12.00 MiB (12582912 bytes) an hour cannot be excluded: fewer than 8 blocks that stay are not noticed
";
        assert_eq!(text(&none, false, 10), expected);
        // Where steps are judged, growth without anything to say is left out.
        assert_eq!(text(&none, true, 10), expected);
        let larger = Increase {
            blocks: 0,
            low_bytes: Some([1, 2, 3, 4, 5, 6].map(|part| part << 20)),
            live_blocks: 1,
            ..none.increases[0].clone()
        };
        let line = "  Undecided: 3.00 MiB (3145728 bytes) more in 1 live, as blocks become larger; least in each sixth of the time: 1.00 \
                    MiB, 2.00 MiB, 3.00 MiB, 4.00 MiB, 5.00 MiB, 6.00 MiB. A tensor that is extended, or one long request\n";
        let with_larger = Growth { increases: vec![larger], ..none.clone() };
        assert!(text(&with_larger, false, 10).contains(line));
        let nothing = Growth { increases: Vec::new(), ..none.clone() };
        assert_eq!(text(&nothing, true, 10), "");
        let short = Growth { judged: false, span_ns: 4_200_000_000, ..none };
        assert_eq!(
            text(&short, false, 10),
            "Growth is not judged on device 3: 4 s (from 0.5s to 4.7s) are too short, 10 s are needed\n"
        );
    }
}
