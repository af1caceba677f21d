//! Series with a known answer.

use super::*;
use crate::analyses::script::{Script, observe};
use crate::backend::ascend::pools;
use crate::model::{Device, RunEnd};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;
/// 1 MiB a second, in bytes an hour.
const HOURLY: f64 = 3600.0 * 1_048_576.0;

/// Figures each second; `of` returns the memory of the pool, all of it the program's.
fn series(seconds: u64, of: impl Fn(u64) -> [u64; 2]) -> Series {
    let mut series = Series::new(7, 0, 0);
    for second in 0..seconds {
        series.add(second * SECOND, of(second));
    }
    series
}

/// A little noise without a trend: 0 to 7 MiB, in an order without neighbours.
fn noise(second: u64) -> u64 {
    (second * 5 % 8) << 20
}

/// 1 MiB a second from 10 GiB on: 54 GiB are reached after 44 Ki seconds, with an hour already past.
#[test]
fn a_straight_line_reaches_its_limit() {
    let found = forecast(&series(3600, |second| [10 * GIB + (second << 20) + noise(second); 2]), Some(54 * GIB));
    let Forecast { growth, bytes_per_hour: Some([low, middle, high]), seconds_left: Some(left), .. } = found.reserved
    else {
        panic!("{found:?}")
    };
    let truth = f64::from(44 * 1024 - 3600);
    assert_eq!((growth, found.fragmentation), (Growth::Grows, false));
    assert!((middle - HOURLY).abs() < 0.01 * HOURLY, "{middle}");
    assert!(low <= 1.01 * HOURLY && high >= 0.99 * HOURLY, "{low} {high}");
    let [Some(early), Some(middle), Some(late)] = left else { panic!("{left:?}") };
    assert!(early < truth && truth < late && (middle - truth).abs() < 0.03 * truth, "{early} {middle} {late}");
}

/// What only goes up and down has no date.
#[test]
fn without_growth_nothing_is_said() {
    let found = forecast(&series(3600, |second| [10 * GIB + noise(second); 2]), Some(12 * GIB));
    assert_eq!((found.reserved.growth, found.reserved.seconds_left), (Growth::NotSeen, None));
}

/// The pool grows and the program's part does not.
#[test]
fn growth_of_the_pool_alone_is_fragmentation() {
    let found = forecast(&series(3600, |second| [10 * GIB + (second << 20), 9 * GIB + noise(second)]), None);
    assert_eq!((found.reserved.growth, found.allocated.growth), (Growth::Grows, Growth::NotSeen));
    assert!(found.fragmentation && found.reserved.seconds_left.is_none());
}

/// Growth that sets in late counts from there on: 1 MiB a second for the last third.
#[test]
fn growth_that_sets_in_late() {
    let of = |second: u64| [10 * GIB + (second.saturating_sub(2400) << 20) + noise(second); 2];
    let found = forecast(&series(3600, of), Some(20 * GIB));
    let [_, middle, _] = found.reserved.bytes_per_hour.expect("a slope");
    assert!((middle - HOURLY).abs() < 0.1 * HOURLY, "{middle}");
}

#[test]
fn short_recordings_say_nothing() {
    let found = forecast(&series(1, |_| [GIB; 2]), Some(2 * GIB));
    assert_eq!(found.reserved.growth, Growth::TooShort);
}

/// The first five of eight values of a ramp with one outlier: its slope is that of the others.
#[test]
fn outliers_do_not_turn_the_line() {
    let points: Vec<robust::Point> = (0..9)
        .map(|index| (f64::from(index), if index == 4 { 1000.0 } else { 2.0 * f64::from(index) + 1.0 }))
        .collect();
    let (slope, rest) = robust::line(&points);
    assert!((slope - 2.0).abs() < 1e-9 && (rest - 1.0).abs() < 1e-9, "{slope} {rest}");
}

/// Long runs take as much memory as short ones, and no peak is lost.
#[test]
fn series_are_bounded() {
    let mut series = Series::new(7, 0, 0);
    for index in 0..100_000_u64 {
        let bytes = if index == 50_001 { 99 } else { 5 };
        series.add(index * SECOND, [bytes, 1]);
    }
    let points = series.points(Held::Reserved);
    assert!(points.len() < 9000, "{}", points.len());
    assert_eq!(points.iter().filter(|point| point.1 > 5.0).count(), 1);
}

/// From events: the pool's own figures, by process and device.
#[test]
fn events_become_series() {
    let mut script = Script::new(7, Device::Npu(3));
    script.reported(Some((100, 200))).alloc(pools::PTA, 0x100, 100).alloc(pools::HAL, 0x200, 100);
    script.reported(Some((50, 300))).free(pools::PTA, 0x100);
    let (collector, made) = Collector::new();
    observe(collector, script.events(), &RunEnd::default());
    let all = made.try_recv().expect("a run");
    assert_eq!((all.len(), all[0].pid, all[0].device, all[0].last), (1, 7, 3, [300, 50]));
}

/// The driver has 100 bytes free while the pool holds 200, then 150 while it holds 300: the least room is 300. Other devices do not count,
/// and a given limit comes first.
#[test]
fn the_driver_says_the_limit() {
    const TOTAL: u64 = 1 << 36;
    let mut script = Script::new(7, Device::Npu(3));
    script.reported(Some((100, 200))).alloc(pools::PTA, 0x100, 100).usage(TOTAL - 100, None);
    script.reported(Some((150, 300))).alloc(pools::PTA, 0x200, 50).usage(TOTAL - 150, None);
    script.on(8, Device::Npu(4)).usage(TOTAL, None);
    let (collector, made) = Collector::new();
    observe(collector, script.events(), &RunEnd::default());
    let all = made.try_recv().expect("a run");
    let limit = |given| {
        let found = forecast(&all[0], given);
        (found.limit_bytes, found.limit_from)
    };
    assert_eq!(limit(None), (Some(300), Some(LimitFrom::Driver)));
    assert_eq!(limit(Some(77)), (Some(77), Some(LimitFrom::Given)));
    let alone = forecast(&Series::new(7, 0, 0), None);
    assert_eq!((alone.limit_bytes, alone.limit_from), (None, None));
}

/// A process that ends is said to have ended, at its own end; one that goes on has the end of the recording.
#[test]
fn ends_of_processes() {
    let mut script = Script::new(7, Device::Npu(0));
    script.reported(Some((1, 2))).alloc(pools::PTA, 0x100, 1).process_end();
    script.on(8, Device::Npu(0)).reported(Some((3, 4))).alloc(pools::PTA, 0x100, 3);
    let (collector, made) = Collector::new();
    observe(collector, script.events(), &RunEnd { time_ns: 1000, ..RunEnd::default() });
    let all = made.try_recv().expect("a run");
    let ends: Vec<_> = all.iter().map(|series| forecast(series, None)).collect();
    assert_eq!(ends.iter().map(|found| (found.pid, found.ended)).collect::<Vec<_>>(), [(7, true), (8, false)]);
    assert!(ends[0].until_ns < 1000 && ends[1].until_ns == 1000, "{ends:?}");
}

/// A server that starts workers for ever does not fill the memory.
#[test]
fn series_of_many_processes_are_bounded() {
    let mut script = Script::new(1, Device::Npu(0));
    for pid in 1..=600 {
        script.on(pid, Device::Npu(0)).reported(Some((1, 2))).alloc(pools::PTA, 0x100, 1).process_end();
    }
    let (collector, made) = Collector::new();
    observe(collector, script.events(), &RunEnd::default());
    assert_eq!(made.try_recv().expect("a run").len(), 512);
}
