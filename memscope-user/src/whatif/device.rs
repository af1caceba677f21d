//! The driver below the pool: its memory, the addresses of segments, and the number of calls.

use std::collections::{BTreeMap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use super::MIB;
use super::settings::Settings;

/// The driver charges whole pages.
pub(super) const PAGE_BYTES: u64 = 2 * MIB;
/// Addresses that there are: more than any device has.
const SPACE_BYTES: u64 = 1 << 52;

/// Choice of the next segment's range of free addresses. It only decides which of several free blocks of one size is
/// taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// The lowest that fits.
    Up,
    /// The highest that fits.
    #[default]
    Down,
    /// One that was never used before.
    Fresh,
    /// As in the recording, in this order; further ones are fresh.
    Recorded(VecDeque<u64>),
    /// The highest with a page to spare, which stays free above it: as the driver of the test bench does.
    #[cfg(test)]
    Gapped,
}

/// The device that the pool has its memory from.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// Bytes that this process can have; what others hold is not among them.
    pub memory_bytes: u64,
    /// Total bytes by the driver: fractions and reservations are parts of it.
    pub total_bytes: u64,
    /// Part of the total that the process may have.
    pub fraction: Option<f64>,
    /// A fraction of 1 is a limit, too.
    pub limits_whole_fraction: bool,
    /// Where segments lie.
    pub addresses: Addresses,
}

impl Default for Card {
    fn default() -> Self {
        Self {
            memory_bytes: u64::MAX,
            total_bytes: 64 << 30,
            fraction: None,
            limits_whole_fraction: true,
            addresses: Addresses::default(),
        }
    }
}

impl Card {
    /// Bytes that the fraction allows: that of the device, else that of the settings.
    #[must_use]
    pub fn allowed_bytes(&self, settings: &Settings) -> Option<u64> {
        let fraction = self.fraction.or(settings.fraction);
        let fraction = fraction.filter(|fraction| self.limits_whole_fraction || *fraction < 1.0)?;
        Some((fraction * self.total_bytes as f64) as u64)
    }

    /// Bytes beyond which `throw_on_cudamalloc_oom` and `throw_on_npumalloc_oom` fail a request: the fraction of the settings, or the whole.
    #[must_use]
    pub fn early_limit_bytes(&self, settings: &Settings) -> Option<u64> {
        let fraction = settings.fraction.unwrap_or(1.0);
        settings.rejects_early.then_some((fraction * self.total_bytes as f64) as u64)
    }
}

/// Calls of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Calls {
    /// Plain segments made.
    pub malloc: u64,
    /// Plain segments given back.
    pub free: u64,
    /// Refused for want of memory.
    pub failed: u64,
    /// Pages of physical memory made.
    pub create: u64,
    /// Pages of physical memory given back.
    pub release: u64,
    /// Pages mapped.
    pub map: u64,
    /// Pages unmapped.
    pub unmap: u64,
    /// Ranges of addresses reserved.
    pub reserve: u64,
    /// Times that the device was waited for.
    pub synchronize: u64,
}

impl Calls {
    /// All of them, except those that wait.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { malloc, free, failed, create, release, map, unmap, reserve, synchronize: _ } = *self;
        malloc + free + failed + create + release + map + unmap + reserve
    }
}

/// State of a device.
#[derive(Debug)]
pub(super) struct Device {
    memory_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
    addresses: Addresses,
    /// Free ranges: start and length.
    free: BTreeMap<u64, u64>,
    top: u64,
    pub(super) calls: Calls,
}

impl Device {
    pub(super) fn new(card: &Card) -> Self {
        Self {
            memory_bytes: card.memory_bytes,
            used_bytes: 0,
            peak_bytes: 0,
            addresses: card.addresses.clone(),
            free: BTreeMap::from([(PAGE_BYTES, SPACE_BYTES)]),
            top: PAGE_BYTES,
            calls: Calls::default(),
        }
    }

    /// Takes memory, if there is enough.
    pub(super) const fn charge(&mut self, bytes: u64) -> bool {
        let used_bytes = self.used_bytes.saturating_add(bytes);
        if used_bytes > self.memory_bytes {
            self.calls.failed += 1;
            return false;
        }
        self.used_bytes = used_bytes;
        if self.peak_bytes < used_bytes {
            self.peak_bytes = used_bytes;
        }
        true
    }

    /// Takes memory at these addresses, if there is enough and no other range is there.
    pub(super) fn occupy(&mut self, start: u64, bytes: u64) -> bool {
        if !self.charge(bytes) {
            return false;
        }
        if matches!(self.addresses, Addresses::Fresh | Addresses::Recorded(_)) {
            return true;
        }
        let range = self.free.range(..=start).next_back().map(|(start, length)| (*start, *length));
        let fits = |(free, length): &(u64, u64)| start.saturating_add(bytes) <= free + length;
        let Some((free, length)) = range.filter(fits) else { return false };
        self.carve(Some((free, length)), bytes, start - free);
        true
    }

    pub(super) const fn refund(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    /// The process can have these many bytes from here on.
    pub(super) const fn leave(&mut self, bytes: u64) {
        self.memory_bytes = bytes;
    }

    /// Memory of others in the process, as the recording has it.
    pub(super) fn others(&mut self, bytes: i64) {
        self.used_bytes = self.used_bytes.saturating_add_signed(bytes);
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
    }

    pub(super) const fn free_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.used_bytes)
    }

    pub(super) const fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Start of a range for this many bytes.
    pub(super) fn range(&mut self, bytes: u64) -> u64 {
        match &mut self.addresses {
            Addresses::Recorded(given) => given.pop_front().unwrap_or_else(|| Self::fresh(&mut self.top, bytes)),
            Addresses::Fresh => Self::fresh(&mut self.top, bytes),
            Addresses::Up => {
                let hit = self.free.iter().find(|(_, length)| **length >= bytes);
                let hit = hit.map(|(start, length)| (*start, *length));
                self.carve(hit, bytes, 0)
            }
            Addresses::Down => {
                let hit = self.highest(bytes);
                let skip = hit.map_or(0, |(_, length)| length - bytes);
                self.carve(hit, bytes, skip)
            }
            #[cfg(test)]
            Addresses::Gapped => {
                let hit = self.highest(bytes + PAGE_BYTES);
                let skip = hit.map_or(0, |(_, length)| length - bytes - PAGE_BYTES);
                self.carve(hit, bytes, skip)
            }
        }
    }

    const fn fresh(top: &mut u64, bytes: u64) -> u64 {
        let start = *top;
        // Recorded ones lie below 2^48.
        *top = if start < 1 << 56 { 1 << 56 } else { start } + bytes;
        *top - bytes
    }

    fn highest(&self, bytes: u64) -> Option<(u64, u64)> {
        self.free.iter().rev().find(|(_, length)| **length >= bytes).map(|(start, length)| (*start, *length))
    }

    /// Takes `bytes` out of a free range, `skip` behind its start.
    fn carve(&mut self, range: Option<(u64, u64)>, bytes: u64, skip: u64) -> u64 {
        // Charging ends long before addresses do.
        let Some((start, length)) = range else { return Self::fresh(&mut self.top, bytes) };
        self.free.remove(&start);
        if skip > 0 {
            self.free.insert(start, skip);
        }
        let end = start + skip + bytes;
        if end < start + length {
            self.free.insert(end, start + length - end);
        }
        start + skip
    }

    /// A range is free again.
    pub(super) fn give_back(&mut self, start: u64, bytes: u64) {
        if matches!(self.addresses, Addresses::Fresh | Addresses::Recorded(_)) {
            return;
        }
        let (mut start, mut bytes) = (start, bytes);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            (start, bytes) = (before, bytes + length);
        }
        if let Some(behind) = self.free.remove(&(start + bytes)) {
            bytes += behind;
        }
        self.free.insert(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(addresses: Addresses, mib: u64) -> Device {
        Device::new(&Card { memory_bytes: mib * MIB, addresses, ..Card::default() })
    }

    /// A returned range is the first to be used again, in the order of the policy.
    #[test]
    fn ranges_by_policy() {
        let mut up = device(Addresses::Up, 100);
        let [one, two, three] = [4, 6, 4].map(|mib| up.range(mib * MIB));
        assert_eq!([one, two, three], [2 * MIB, 6 * MIB, 12 * MIB]);
        up.give_back(one, 4 * MIB);
        up.give_back(two, 6 * MIB);
        assert_eq!(up.range(8 * MIB), one);

        let mut down = device(Addresses::Down, 100);
        let [one, two] = [4, 6].map(|mib| down.range(mib * MIB));
        assert_eq!(one - two, 6 * MIB);
        down.give_back(one, 4 * MIB);
        assert_eq!(down.range(4 * MIB), one);

        let mut fresh = device(Addresses::Fresh, 100);
        let one = fresh.range(4 * MIB);
        fresh.give_back(one, 4 * MIB);
        assert_eq!(fresh.range(4 * MIB), one + 4 * MIB);

        let mut occupied = device(Addresses::Up, 100);
        assert!(occupied.occupy(4 * MIB, 4 * MIB) && !occupied.occupy(6 * MIB, 4 * MIB));
        assert_eq!([2, 2, 2].map(|mib| occupied.range(mib * MIB)), [2, 8, 10].map(|mib| mib * MIB));

        let mut recorded = device(Addresses::Recorded(VecDeque::from([7, 3])), 100);
        assert_eq!([recorded.range(1), recorded.range(1)], [7, 3]);
    }

    /// A request that does not fit is refused and counted; others take their part.
    #[test]
    fn memory_is_charged() {
        let mut device = device(Addresses::Up, 10);
        device.others(4 << 20);
        assert!(device.charge(6 * MIB));
        assert!(!device.charge(1));
        assert_eq!((device.calls.failed, device.free_bytes(), device.peak_bytes()), (1, 0, 10 * MIB));
        device.others(-(4 << 20));
        device.refund(6 * MIB);
        assert_eq!(device.free_bytes(), 10 * MIB);
    }

    #[test]
    fn fractions_allow() {
        let card = Card { total_bytes: 1000, fraction: Some(0.5), ..Card::default() };
        let plain = Settings::default();
        assert_eq!(card.allowed_bytes(&plain), Some(500));
        let whole = Card { fraction: Some(1.0), ..card };
        assert_eq!(whole.allowed_bytes(&plain), Some(1000));
        assert_eq!(Card { limits_whole_fraction: false, ..whole }.allowed_bytes(&plain), None);
    }
}
