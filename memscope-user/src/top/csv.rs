//! Moments as CSV.

use std::io::{self, Write};

use crate::analyses::live_use::Moment;
use crate::model::Device;
use crate::text::user_frames;

/// The first line.
pub(crate) const CSV_HEADER: &str = "time_ns,pid,device,layer,kind,name,live_bytes,live_blocks,peak_bytes";

/// A line for each pool, owner and place.
pub(crate) fn write_csv(moment: &Moment, out: &mut dyn Write) -> io::Result<()> {
    let time_ns = moment.sample.time_ns;
    let mut line = |pid: u32, device: Device, layer: &str, (kind, name): (&str, &str), figures: [u64; 3]| {
        let device = device.name_or("");
        let [layer, name] = [layer, name].map(cell);
        let [live, blocks, peak] = figures;
        writeln!(out, "{time_ns},{pid},{device},{layer},{kind},{name},{live},{blocks},{peak}")
    };
    for process in &moment.sample.processes {
        for pool in &process.pools {
            let figures = [pool.live_bytes, pool.live_blocks, pool.peak_bytes];
            line(process.pid, pool.device, pool.pool.event_type(), ("pool", ""), figures)?;
        }
    }
    for owner in &moment.owners {
        let name = owner.owner.map_or("", |name| name.as_str());
        let figures = [owner.live_bytes, owner.blocks, owner.peak_bytes];
        line(owner.pid, owner.device, owner.pool.event_type(), ("owner", name), figures)?;
    }
    for place in &moment.places {
        let frames = user_frames::of(place.site.stacks, 1);
        let name = frames.first().map(|frame| format!("{} {}", frame.at, frame.function)).unwrap_or_default();
        let figures = [place.live_bytes, place.blocks, place.peak_bytes];
        line(place.pid, place.device, place.site.pool.event_type(), ("place", &name), figures)?;
    }
    Ok(())
}

/// A cell, quoted where it has to be, and no formula.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@']);
    if formula || text.contains([',', '"', '\n', '\r']) {
        format!("\"{}{}\"", if formula { "'" } else { "" }, text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
