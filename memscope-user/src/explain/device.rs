//! Rules about a device's memory outside of pools.

use super::advice::{self, Hint};
use super::card::{About, Level, Rule};
use super::facts::{Out, Says, WORTH_BYTES, bytes, is_share, percent};
use crate::analyses::held::HeldModule;
use crate::analyses::ledger::{Item, Ledger, Moment};
use crate::text::numbers::{counted, rounded};

/// Buffers of communicators, in percent of the device.
const BUFFERS_PERCENT: u64 = 5;
/// The same of the process's driver memory, where the device's size is not known.
const BUFFERS_OF_PROCESS_PERCENT: u64 = 10;
/// What no block explains, in percent of the device.
const UNEXPLAINED_PERCENT: u64 = 5;

/// `hccl-buffers`.
pub(super) fn buffers(out: &mut Out<'_, '_>) {
    for ledger in out.facts.ledgers().filter(|ledger| ledger.moment == Moment::Peak).collect::<Vec<_>>() {
        let held = bytes(ledger.hal.bytes(Item::Hccl));
        let capacity = out.facts.capacity_bytes(ledger.device);
        let (whole, least, name) = match capacity {
            Some(capacity) => (capacity, BUFFERS_PERCENT, "the device"),
            None => (bytes(ledger.hal.total.size_bytes), BUFFERS_OF_PROCESS_PERCENT, "the process's driver memory"),
        };
        if !is_share(held, whole, least) || held < WORTH_BYTES {
            continue;
        }
        let text = format!(
            "HCCL holds {}, {} of {name}. Each communicator takes two buffers of HCCL_BUFFSIZE.",
            rounded(held.into()),
            percent(held, whole),
        );
        let modules = out.facts.held().filter(|it| it.device == ledger.device).flat_map(|held| &held.by_module);
        let at_end = modules.filter(|module| module.module.starts_with("HCC"));
        let line = |module: &HeldModule| {
            let size = rounded(module.size_bytes.into());
            format!("{} of module {} at the end: {size}", counted(module.blocks, "block"), module.module)
        };
        let evidence = at_end.map(line).collect();
        let says = Says {
            device: ledger.device,
            level: Level::Info,
            text,
            size_bytes: held,
            evidence,
            hints: &[advice::HCCL_BUFFERS, advice::GROUP_BUFFERS],
            confidence: ledger.confidence,
            about: About::Own,
        };
        out.say(Rule::HcclBuffers, says);
    }
}

/// `unexplained`.
pub(super) fn unexplained(out: &mut Out<'_, '_>) {
    for device in out.facts.devices() {
        let of_device = out.facts.ledgers().filter(|ledger| ledger.device == device);
        let with_figures = of_device.filter_map(|ledger| Some((unexplained_bytes(ledger)?, ledger)));
        let Some(((own, rest), ledger)) = with_figures.max_by_key(|((own, rest), _)| own.saturating_add(*rest)) else {
            out.cannot(Rule::Unexplained, "the driver's figures of the device are not known (no DCMI)");
            continue;
        };
        let (size_bytes, capacity) = (own.saturating_add(rest), out.facts.capacity_bytes(device).unwrap_or(0));
        if !is_share(size_bytes, capacity, UNEXPLAINED_PERCENT) {
            continue;
        }
        let text = format!(
            "{} of the driver's figures ({} of the device) is in no block that was seen, nor in another process.",
            rounded(size_bytes.into()),
            percent(size_bytes, capacity),
        );
        let mut evidence = vec![
            format!("of this process, beyond its blocks: {}", rounded(own.into())),
            format!("of no process: {}", rounded(rest.into())),
        ];
        if ledger.attached {
            evidence.push("the trace was attached late: older blocks are in this figure".to_owned());
        }
        let hints: &[Hint] =
            if ledger.attached { &[advice::FROM_START, advice::LOOK_OUTSIDE] } else { &[advice::LOOK_OUTSIDE] };
        let says = Says {
            device,
            level: Level::Info,
            text,
            size_bytes,
            evidence,
            hints,
            confidence: ledger.confidence,
            about: About::Own,
        };
        out.say(Rule::Unexplained, says);
    }
}

/// Bytes of the process beyond its blocks, and of no process; `None` without figures.
fn unexplained_bytes(ledger: &Ledger) -> Option<(u64, u64)> {
    let sheet = ledger.used.as_ref()?;
    Some((bytes(sheet.bytes(Item::BeyondHal)), bytes(sheet.bytes(Item::Unexplained))))
}
