//! The smallest device on which a run fits.
//!
//! A run fits in less than its peak: cached memory is given back before a request fails. So it is replayed under
//! limits.

use schemars::JsonSchema;
use serde::Serialize;

use super::bounds::in_pages;
use super::device::{Card, PAGE_BYTES};
use super::replay::{Blind, Replay, Setup, Until};
use super::requests::Requests;

/// Limits above the found one that are tried, too: more memory is not always enough, in theory.
const TRIED_ABOVE: u64 = 32;

/// The least memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Least {
    /// Bytes, in pages of 2 MiB: all that this process needs of the device.
    pub bytes: u64,
    /// Number of times that the whole cache has to be given back then, each with a synchronisation of the device.
    pub retries: u64,
    /// Larger sizes that were tried and do not suffice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps_bytes: Vec<u64>,
}

/// The least memory that suffices on one of the devices, with the others unlimited; `None`: the run fails with any
/// amount.
#[must_use]
pub fn least(requests: &Requests, setup: &Setup, device: u8, thorough: bool) -> Option<Least> {
    let run = |memory_bytes: u64| {
        let of = |index: u8| {
            let memory_bytes = if index == device { memory_bytes } else { u64::MAX };
            Setup { card: Card { memory_bytes, ..setup.card.clone() }, ..setup.clone() }
        };
        let outcome = Replay::new(requests, of, Until::Divergence).run(&mut Blind).0;
        (outcome.fits(), outcome.devices[usize::from(device)])
    };
    let (fits, free) = run(u64::MAX);
    if !fits {
        return None;
    }
    let (mut low, mut high) = (0, in_pages(free.device_peak_bytes) / PAGE_BYTES);
    let mut retries = free.figures.retries;
    while high - low > 1 {
        let middle = low.midpoint(high);
        let (fits, found) = run(middle * PAGE_BYTES);
        if fits {
            (high, retries) = (middle, found.figures.retries);
        } else {
            low = middle;
        }
    }
    let tried = (1..=TRIED_ABOVE).filter(|_| thorough).map(|pages| (high + pages) * PAGE_BYTES);
    let gaps_bytes = tried.filter(|bytes| *bytes < free.device_peak_bytes && !run(*bytes).0).collect();
    Some(Least { bytes: high * PAGE_BYTES, retries, gaps_bytes })
}
