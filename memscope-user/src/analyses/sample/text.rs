//! A sample of a running trace: as a table for people, and as CSV lines.

use std::io::{self, Write};

use super::{Change, HostMemory, PoolSample, ProcessSample, Sample};
use crate::analyses::device_use::DeviceUse;
use crate::model::Device;
use crate::text::DeviceName;
use crate::text::numbers::{rounded, seconds};

/// First line of the CSV.
pub const SAMPLE_CSV_HEADER: &str = "time_ns,pid,device,layer,figure,value";
/// Pools in the table of one sample, those with the most live bytes; the other formats have all.
const TABLE_LINES: usize = 40;
/// Placeholder of an unknown figure.
const ABSENT: &str = "-";

/// Writes a sample as text.
pub fn write_sample(sample: &Sample, out: &mut dyn Write) -> io::Result<()> {
    let end = if sample.last { ", the end" } else { "" };
    writeln!(
        out,
        "{}, {} since the last{end}; lost: {}",
        time(sample.time_ns),
        seconds(sample.interval_ns),
        sample.lost
    )?;
    match &sample.devices {
        None => writeln!(out, "The driver's figures of the devices (DCMI) are not known")?,
        Some(devices) => devices.iter().try_for_each(|device| write_device(device, out))?,
    }
    let mut left = TABLE_LINES;
    for process in &sample.processes {
        write_process(process, sample.devices.as_deref().unwrap_or_default(), out)?;
        if process.host.is_some() && process.pools.is_empty() {
            writeln!(out, "  No allocation or free was seen yet: what is held from before the attach is not known")?;
        }
        write_pools(&process.pools, &mut left, out)?;
    }
    Ok(())
}

fn time(time_ns: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(time_ns.into()).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%F %T").to_string()
}

fn write_device(DeviceUse { device, used_bytes, total_bytes, .. }: &DeviceUse, out: &mut dyn Write) -> io::Result<()> {
    let (used, total) = (rounded((*used_bytes).into()), rounded((*total_bytes).into()));
    writeln!(out, "Device {}: {used} of {total} in use", DeviceName(*device))
}

fn write_process(process: &ProcessSample, devices: &[DeviceUse], out: &mut dyn Write) -> io::Result<()> {
    let ProcessSample { pid, host, recent, .. } = process;
    write!(out, "Process {pid}: ")?;
    let Some(host) = host else { return writeln!(out, "has ended") };
    let HostMemory { resident_bytes, heap_bytes, file_bytes, shared_bytes, stack_bytes, swapped_bytes } = *host;
    write!(out, "resident {}", rounded(resident_bytes.into()))?;
    if let Some(Change { span_ns, change_bytes }) = recent {
        write!(out, " ({} in {})", signed(*change_bytes), seconds(*span_ns))?;
    }
    for (name, bytes) in [("heap", heap_bytes), ("files", file_bytes), ("shared", shared_bytes)] {
        write!(out, ", {name} {}", rounded(bytes.into()))?;
    }
    write!(out, "; stack {}, swapped {}", rounded(stack_bytes.into()), rounded(swapped_bytes.into()))?;
    for (device, used_bytes) in of_process(devices, *pid) {
        write!(out, "; device {} {}", DeviceName(device), rounded(used_bytes.into()))?;
    }
    writeln!(out)
}

/// A process's use of each device, where the driver lists it.
fn of_process(devices: &[DeviceUse], pid: u32) -> impl Iterator<Item = (Device, u64)> {
    devices.iter().filter_map(move |device| {
        let own = device.processes.as_ref()?.iter().find(|process| process.pid == pid)?;
        Some((device.device, own.used_bytes))
    })
}

fn write_pools(pools: &[PoolSample], left: &mut usize, out: &mut dyn Write) -> io::Result<()> {
    const TITLES: [&str; 11] =
        ["Live", "Blocks", "Peak", "Lately", "Allocs", "Frees", "Failed", "Allocs/s", "Frees/s", "Free", "Ratio"];
    if pools.is_empty() {
        return Ok(());
    }
    write!(out, "  {:<6} {:<16}", "Device", "Layer")?;
    TITLES.iter().try_for_each(|title| write!(out, " {title:>11}"))?;
    writeln!(out)?;
    let mut largest: Vec<&PoolSample> = pools.iter().collect();
    largest.sort_by_key(|pool| {
        (std::cmp::Reverse(pool.live_bytes.saturating_add(pool.unseen_bytes)), pool.device, pool.pool)
    });
    for pool in largest.iter().take(*left) {
        write!(out, "  {:<6} {:<16}", DeviceName(pool.device).to_string(), pool.pool.event_type())?;
        cells(pool).iter().try_for_each(|cell| write!(out, " {cell:>11}"))?;
        writeln!(out)?;
        if pool.unseen_bytes > 0 {
            writeln!(out, "  {:<6} {:<16} {:>11}", "", "before attach", rounded(pool.unseen_bytes.into()))?;
        }
    }
    if let Some(more @ 1..) = largest.len().checked_sub(*left) {
        writeln!(out, "  and {more} more")?;
    }
    *left = left.saturating_sub(largest.len());
    Ok(())
}

fn cells(pool: &PoolSample) -> [String; 11] {
    let rate = |rate: Option<f64>| rate.map_or(ABSENT.to_owned(), |rate| format!("{rate:.1}"));
    [
        rounded(pool.live_bytes.into()),
        pool.live_blocks.to_string(),
        rounded(pool.peak_bytes.into()),
        pool.recent.map_or(ABSENT.to_owned(), |recent| signed(recent.change_bytes)),
        pool.allocations.to_string(),
        pool.frees.to_string(),
        pool.failed.to_string(),
        rate(pool.allocations_per_second),
        rate(pool.frees_per_second),
        pool.space.map_or(ABSENT.to_owned(), |space| rounded(space.free_bytes.into())),
        pool.space.map_or(ABSENT.to_owned(), |space| format!("{:.3}", space.ratio)),
    ]
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", rounded(bytes.unsigned_abs().into()))
}

/// Writes a sample as CSV: a line for each figure, with an empty value where it is unknown.
pub fn write_sample_csv(sample: &Sample, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = Lines { time_ns: sample.time_ns, out };
    lines.of_trace("last", Some(u8::from(sample.last)))?;
    lines.of_trace("lost", Some(sample.lost))?;
    match &sample.devices {
        None => lines.of_devices(None, &[("used_bytes", None), ("total_bytes", None)])?,
        Some(devices) => {
            for DeviceUse { device, used_bytes, total_bytes, .. } in devices {
                lines.of_devices(
                    Some(*device),
                    &[("used_bytes", Some(*used_bytes)), ("total_bytes", Some(*total_bytes))],
                )?;
            }
        }
    }
    for process in &sample.processes {
        lines.of_process(process)?;
        for (device, used_bytes) in of_process(sample.devices.as_deref().unwrap_or_default(), process.pid) {
            lines.line(Some(process.pid), Some(device), "device", ("process_used_bytes", Some(used_bytes)))?;
        }
    }
    Ok(())
}

/// The lines of one sample.
struct Lines<'a> {
    time_ns: u64,
    out: &'a mut dyn Write,
}

impl Lines<'_> {
    fn line(
        &mut self,
        pid: Option<u32>,
        device: Option<Device>,
        layer: &str,
        (figure, value): (&str, Option<impl ToString>),
    ) -> io::Result<()> {
        let cell = |text: Option<String>| text.unwrap_or_default();
        let (pid, device) =
            (cell(pid.map(|pid| pid.to_string())), cell(device.map(|device| DeviceName(device).to_string())));
        let value = cell(value.map(|value| value.to_string()));
        // Names of pools need no escaping.
        writeln!(self.out, "{},{pid},{device},{layer},{figure},{value}", self.time_ns)
    }

    fn of_trace(&mut self, figure: &str, value: Option<impl ToString>) -> io::Result<()> {
        self.line(None, None, "trace", (figure, value))
    }

    fn of_devices(&mut self, device: Option<Device>, figures: &[(&str, Option<u64>)]) -> io::Result<()> {
        figures.iter().try_for_each(|figure| self.line(None, device, "device", *figure))
    }

    fn of_process(&mut self, ProcessSample { pid, host, pools, .. }: &ProcessSample) -> io::Result<()> {
        let host = |figure: fn(&HostMemory) -> u64| host.as_ref().map(figure);
        for figure in [
            ("resident_bytes", host(|host| host.resident_bytes)),
            ("heap_bytes", host(|host| host.heap_bytes)),
            ("file_bytes", host(|host| host.file_bytes)),
            ("shared_bytes", host(|host| host.shared_bytes)),
            ("stack_bytes", host(|host| host.stack_bytes)),
            ("swapped_bytes", host(|host| host.swapped_bytes)),
        ] {
            self.line(Some(*pid), None, "host", figure)?;
        }
        pools.iter().try_for_each(|pool| self.of_pool(*pid, pool))
    }

    fn of_pool(&mut self, pid: u32, pool: &PoolSample) -> io::Result<()> {
        let (pid, device, layer) = (Some(pid), Some(pool.device), pool.pool.event_type());
        for (figure, value) in [
            ("live_blocks", Some(pool.live_blocks)),
            ("live_bytes", Some(pool.live_bytes)),
            ("unseen_bytes", Some(pool.unseen_bytes)),
            ("peak_bytes", Some(pool.peak_bytes)),
            ("allocations", Some(pool.allocations)),
            ("frees", Some(pool.frees)),
            ("failed", Some(pool.failed)),
            ("total_bytes", pool.space.map(|space| space.total_bytes)),
            ("free_bytes", pool.space.map(|space| space.free_bytes)),
            ("largest_free_bytes", pool.space.map(|space| space.largest_free_bytes)),
            ("unknown_bytes", pool.unknown_bytes),
        ] {
            self.line(pid, device, layer, (figure, value))?;
        }
        for figure in [
            ("allocations_per_second", pool.allocations_per_second),
            ("frees_per_second", pool.frees_per_second),
            ("free_ratio", pool.space.map(|space| space.ratio)),
        ] {
            self.line(pid, device, layer, figure)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::fragmentation::FreeSpace;
    use crate::backend::ascend::pools;
    use crate::model::{Pool, ProcessUsage};

    fn sample() -> Sample {
        let space = FreeSpace {
            total_bytes: 400,
            used_bytes: 300,
            free_bytes: 100,
            largest_free_bytes: 75,
            returnable_bytes: 0,
            scattered_bytes: 25,
            ratio: 0.25,
        };
        let pool = PoolSample {
            device: Device::Npu(3),
            pool: pools::PTA,
            live_blocks: 2,
            live_bytes: 300,
            unseen_bytes: 1 << 20,
            peak_bytes: 3 << 20,
            recent: Some(Change { span_ns: 1_000_000_000, change_bytes: -2048 }),
            allocations: 5,
            frees: 3,
            failed: 1,
            allocations_per_second: Some(2.5),
            frees_per_second: None,
            space: Some(space),
            unknown_bytes: Some(7),
        };
        let odd = PoolSample { pool: Pool::custom("a,\"b\"\n"), live_bytes: 1, unseen_bytes: 0, space: None, ..pool };
        let host = HostMemory {
            resident_bytes: 6 << 20,
            heap_bytes: 3 << 20,
            file_bytes: 2 << 20,
            shared_bytes: 1 << 20,
            stack_bytes: 132 << 10,
            swapped_bytes: 0,
        };
        let own = ProcessUsage { pid: 42, used_bytes: 1 << 30 };
        let device = Device::Npu(3);
        let device =
            DeviceUse { device, time_ns: 1, used_bytes: 2 << 30, total_bytes: 64 << 30, processes: Some(vec![own]) };
        let process = ProcessSample { pid: 42, host: Some(host), recent: None, pools: vec![odd, pool] };
        let ended = ProcessSample { pid: 43, host: None, recent: None, pools: vec![] };
        Sample {
            time_ns: 1_500_000_000,
            interval_ns: 2_000_000_000,
            last: true,
            lost: 9,
            devices: Some(vec![device]),
            processes: vec![process, ended],
        }
    }

    #[test]
    fn table_for_people() {
        let mut text = Vec::new();
        write_sample(&sample(), &mut text).expect("written");
        let text = String::from_utf8(text).expect("UTF-8");
        let (first, rest) = text.split_once('\n').expect("lines");
        // The zone is that of the machine.
        assert!(first.ends_with(", 2.000 s since the last, the end; lost: 9"), "{first}");
        let expected = "\
Device 3: 2.00 GiB of 64.00 GiB in use
Process 42: resident 6.00 MiB, heap 3.00 MiB, files 2.00 MiB, shared 1.00 MiB; stack 132.00 KiB, swapped 0 bytes; device 3 1.00 GiB
  Device Layer                   Live      Blocks        Peak      Lately      Allocs       Frees      Failed    Allocs/s     Frees/s        Free       Ratio
  3      PTA                300 bytes           2    3.00 MiB   -2.00 KiB           5           3           1         2.5           -   100 bytes       0.250
         before attach       1.00 MiB
";
        assert!(rest.starts_with(expected), "{rest}");
        assert!(rest.ends_with("\nProcess 43: has ended\n"), "{rest}");
        // The odd name is one line, too.
        assert_eq!(rest.lines().count(), 7, "{rest}");
    }

    /// A server that is full and makes no call has a line, too.
    #[test]
    fn idle_process() {
        let host = sample().processes[0].host;
        let idle = ProcessSample { pid: 9, host, recent: None, pools: vec![] };
        let mut text = Vec::new();
        write_sample(&Sample { processes: vec![idle], ..sample() }, &mut text).expect("written");
        let line = "\n  No allocation or free was seen yet: what is held from before the attach is not known\n";
        assert!(String::from_utf8_lossy(&text).ends_with(line));
    }

    #[test]
    fn unknown_figures_of_devices_are_marked() {
        let mut text = Vec::new();
        let sample = Sample { devices: None, processes: vec![], ..sample() };
        write_sample(&sample, &mut text).expect("written");
        assert!(
            String::from_utf8_lossy(&text).ends_with("\nThe driver's figures of the devices (DCMI) are not known\n")
        );
        let mut csv = Vec::new();
        write_sample_csv(&sample, &mut csv).expect("written");
        let expected = "1500000000,,,trace,last,1\n1500000000,,,trace,lost,9\n\
            1500000000,,,device,used_bytes,\n1500000000,,,device,total_bytes,\n";
        assert_eq!(String::from_utf8_lossy(&csv), expected);
    }

    #[test]
    fn lines_for_programs() {
        let mut csv = Vec::new();
        write_sample_csv(&sample(), &mut csv).expect("written");
        let csv = String::from_utf8(csv).expect("UTF-8");
        for line in [
            "1500000000,,3,device,used_bytes,2147483648",
            "1500000000,42,,host,heap_bytes,3145728",
            "1500000000,43,,host,heap_bytes,",
            "1500000000,42,3,PTA,live_bytes,300",
            "1500000000,42,3,PTA,unseen_bytes,1048576",
            "1500000000,42,3,PTA,allocations_per_second,2.5",
            "1500000000,42,3,PTA,frees_per_second,",
            "1500000000,42,3,PTA,free_ratio,0.25",
            "1500000000,42,3,device,process_used_bytes,1073741824",
        ] {
            assert!(csv.lines().any(|it| it == line), "{line} is not in\n{csv}");
        }
        // 4 of trace and device, 6 of each process, 14 of each pool, one of the process on the device.
        assert_eq!(csv.lines().count(), 4 + 6 * 2 + 14 * 2 + 1, "{csv}");
        // Whatever a pool is called, a line has six cells.
        assert!(csv.lines().all(|line| line.split(',').count() == 6), "{csv}");
    }
}
