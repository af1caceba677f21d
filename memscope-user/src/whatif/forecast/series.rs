//! What pools held over time: the highest values of equal intervals, which grow as the run does.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};

use crate::analyses::Observer;
use crate::model::{Device, DeviceUsage, Event, EventKind, PoolOperators, RunEnd};
use crate::robust::Point;

/// Intervals of a series, and the length of the first ones. At twice as many intervals, neighbours are joined.
const FINE: (usize, u64) = (4096, 10_000_000);
/// The same of a series that is one of thousands, for weeks: 6 KiB.
const BY_MINUTE: (usize, u64) = (128, 60_000_000_000);
/// Series of a recording; of further processes there are none. A server may start workers for weeks.
const MAX_SERIES: usize = 512;

/// A figure of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Memory that it holds from the driver.
    Reserved,
    /// The program's part of it.
    Allocated,
}

/// Figures of the pool of one process on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: u32,
    start_ns: u64,
    end_ns: u64,
    interval_ns: u64,
    /// Intervals that are joined to.
    intervals: usize,
    /// The highest of both in each interval; unchanged in absent ones.
    peaks: Vec<Option<[u64; 2]>>,
    /// The last figures.
    pub(super) last: [u64; 2],
    /// What the pool could have: its own memory, and what the driver had free, when that was least.
    pub(super) room_bytes: Option<u64>,
    /// The process ended before the recording did.
    pub(super) ended: bool,
}

impl Series {
    pub(super) fn new(pid: u32, device: u32, start_ns: u64) -> Self {
        Self::with(FINE, pid, device, start_ns)
    }

    /// A series of figures by minute, which takes little memory, of a pool that the caller knows.
    #[must_use]
    pub fn by_minute(start_ns: u64) -> Self {
        Self::with(BY_MINUTE, 0, 0, start_ns)
    }

    fn with((intervals, interval_ns): (usize, u64), pid: u32, device: u32, start_ns: u64) -> Self {
        Self { pid, device, start_ns, end_ns: start_ns, interval_ns, intervals, ..Self::default() }
    }

    /// Both figures, reserved and allocated, at a time that is not before the last one.
    pub fn add(&mut self, time_ns: u64, figures: [u64; 2]) {
        self.end_ns = self.end_ns.max(time_ns);
        while self.index(time_ns) >= 2 * self.intervals {
            let pair = |pair: &[Option<[u64; 2]>]| pair.iter().flatten().copied().reduce(highest);
            self.peaks = self.peaks.chunks(2).map(pair).collect();
            self.interval_ns *= 2;
        }
        let index = self.index(time_ns);
        if index >= self.peaks.len() {
            self.peaks.resize(index + 1, None);
            // The figures at the start of the interval count in it.
            self.peaks[index] = Some(self.last);
        }
        let peak = &mut self.peaks[index];
        *peak = Some(peak.map_or(figures, |known| highest(known, figures)));
        self.last = figures;
    }

    /// Intervals that it has.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.peaks.len()
    }

    /// The driver's figures of the device. Others may come and go: the least room counts.
    pub(super) fn driver(&mut self, used_bytes: u64, total_bytes: u64) {
        let room = self.last[0].saturating_add(total_bytes.saturating_sub(used_bytes));
        self.room_bytes = Some(self.room_bytes.map_or(room, |least| least.min(room)));
    }

    /// When the recording of it ended, nanoseconds since the Unix epoch.
    #[must_use]
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    fn index(&self, time_ns: u64) -> usize {
        usize::try_from(time_ns.saturating_sub(self.start_ns) / self.interval_ns).unwrap_or(usize::MAX)
    }

    /// Seconds from the first figure to the end.
    pub(super) fn seconds(&self) -> f64 {
        (self.end_ns - self.start_ns) as f64 / 1e9
    }

    /// Highest values by time, in seconds.
    pub(super) fn points(&self, held: Held) -> Vec<Point> {
        let interval = self.interval_ns as f64 / 1e9;
        let value = |figures: &[u64; 2]| match held {
            Held::Reserved => figures[0] as f64,
            Held::Allocated => figures[1] as f64,
        };
        let mut last = None;
        let filled = self.peaks.iter().map(|peak| {
            last = peak.as_ref().map(value).or(last);
            last
        });
        let points = filled.enumerate().filter_map(|(index, value)| Some(((index as f64 + 0.5) * interval, value?)));
        points.collect()
    }
}

fn highest(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [one[0].max(other[0]), one[1].max(other[1])]
}

/// Takes the series of a run.
#[derive(Debug)]
pub struct Collector {
    running: BTreeMap<(u32, u32), Series>,
    done: Vec<Series>,
    out: Sender<Vec<Series>>,
}

impl Collector {
    /// Of all processes. The series come when the run has ended.
    #[must_use]
    pub fn new() -> (Self, Receiver<Vec<Series>>) {
        let (out, made) = mpsc::channel();
        (Self { running: BTreeMap::new(), done: Vec::new(), out }, made)
    }

    /// What the pools of all living processes hold at the moment.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.running.values().map(|series| series.last[0]).sum()
    }

    /// The recording is over: all series.
    #[must_use]
    pub fn take(&mut self, end: &RunEnd) -> Vec<Series> {
        self.end(None, end.time_ns);
        std::mem::take(&mut self.done)
    }

    fn add(&mut self, event: &Event, device: Device, used_bytes: u64, total_bytes: Option<u64>) {
        let (Device::Npu(device), Some(total_bytes)) = (device, total_bytes) else { return };
        let key = (event.pid, device);
        if self.running.len() + self.done.len() >= MAX_SERIES && !self.running.contains_key(&key) {
            return;
        }
        let series = self.running.entry(key).or_insert_with(|| Series::new(event.pid, device, event.time_ns));
        series.add(event.time_ns, [total_bytes, used_bytes]);
    }

    fn driver(&mut self, device: Device, usage: &DeviceUsage) {
        let Device::Npu(device) = device else { return };
        let on_device = self.running.iter_mut().filter(|((_, of), _)| *of == device);
        on_device.for_each(|(_, series)| series.driver(usage.used_bytes, usage.total_bytes));
    }

    fn end(&mut self, pid: Option<u32>, time_ns: u64) {
        let ended = |key: &(u32, u32)| pid.is_none_or(|pid| pid == key.0);
        let keys: Vec<(u32, u32)> = self.running.keys().copied().filter(ended).collect();
        for mut series in keys.into_iter().filter_map(|key| self.running.remove(&key)) {
            // To the end nothing changed.
            series.add(time_ns.max(series.end_ns), series.last);
            series.ended = pid.is_some();
            self.done.push(series);
        }
    }
}

impl Observer for Collector {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) if alloc.block.pool.operators() == Some(PoolOperators::Torch) => {
                self.add(event, alloc.block.device, alloc.used_bytes, alloc.total_bytes);
            }
            EventKind::Free(free)
                if free.block.pool.operators() == Some(PoolOperators::Torch) && free.cause.gave_back() =>
            {
                self.add(event, free.block.device, free.used_bytes, free.total_bytes);
            }
            EventKind::DeviceUsage(usage) => self.driver(event.device, usage),
            EventKind::ProcessEnd => self.end(Some(event.pid), event.time_ns),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) {
        let all = self.take(end);
        // The receiver may be gone.
        let _ = self.out.send(all);
    }
}
