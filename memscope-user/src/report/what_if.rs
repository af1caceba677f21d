//! Other settings of the pool as the page shows them: a row for each, by process and device.

use serde_json::{Value, json};

use crate::model::Device;
use crate::whatif::answers::{Advice, Answer, DeviceAnswer};

/// Processes with a table at most.
const MAX_PROCESSES: usize = 64;

/// What other settings of the pool would give.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WhatIf {
    /// Advice, by process.
    pub advices: Vec<Advice>,
    /// Processes without advice: they have more requests than `most`.
    pub left_out: Vec<u32>,
    /// Most requests of a process with advice.
    pub most: u64,
}

/// Tables by process and device, and what was left out.
pub(super) fn value(found: &WhatIf) -> Value {
    let tables = found.advices.iter().take(MAX_PROCESSES).flat_map(tables);
    json!({ "tables": tables.collect::<Vec<_>>(), "left_out": found.left_out, "most": found.most })
}

fn tables(advice: &Advice) -> impl Iterator<Item = Value> {
    advice.now.devices.iter().enumerate().map(|(at, now)| {
        let bounds = advice.bounds.iter().find(|bounds| bounds.device == now.device);
        let better = advice.better.iter().filter_map(|answer| Some(row(answer, device_of(answer, now.device)?, at)));
        json!({
            "pid": advice.pid,
            "device": Device::Npu(now.device),
            "settings_found": advice.check.settings_found,
            "whole": advice.check.is_whole(),
            "events": advice.check.events,
            "agreeing": advice.check.agreeing,
            "tried": advice.tried,
            "now": row(&advice.now, now, at),
            "better": better.collect::<Vec<_>>(),
            "in_use_bytes": bounds.map(|bounds| bounds.floor_bytes),
            "packed_bytes": bounds.and_then(|bounds| bounds.packed_bytes),
        })
    })
}

fn device_of(answer: &Answer, device: u32) -> Option<&DeviceAnswer> {
    answer.devices.iter().find(|of| of.device == device)
}

/// `at` is the place of the device among those of the process.
fn row(answer: &Answer, device: &DeviceAnswer, at: usize) -> Value {
    json!({
        "settings": answer.settings,
        "sure": answer.sure,
        "reserved_peak_bytes": device.reserved_peak_bytes,
        "driver_calls": device.driver_calls,
        "retries": device.retries,
        "least_bytes": answer.least.get(at).map(|least| least.bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::Bounds;
    use crate::whatif::answers::{Span, Sure};

    fn answer(settings: &str, sure: Sure, peaks: &[(u32, u64, u64)]) -> Answer {
        let device = |&(device, least, most): &(u32, u64, u64)| DeviceAnswer {
            device,
            reserved_peak_bytes: Span { least, most },
            ..DeviceAnswer::default()
        };
        Answer {
            settings: settings.to_owned(),
            sure,
            refused: None,
            notes: Vec::new(),
            fits: None,
            part: None,
            devices: peaks.iter().map(device).collect(),
            least: Vec::new(),
            replays: 1,
        }
    }

    /// Each device has its own rows, in the order of the advice, and the bounds of its number.
    #[test]
    fn devices_have_their_own_tables() {
        let bounds = |device, floor_bytes| Bounds { device, floor_bytes, ..Bounds::default() };
        let advice = Advice {
            pid: 7,
            check: crate::whatif::SelfCheck { events: 9, agreeing: 9, ..Default::default() },
            call_times: crate::whatif::CallTimes::default(),
            gaps: crate::whatif::Gaps::default(),
            now: answer("", Sure::Exact, &[(0, 40, 40), (1, 20, 20)]),
            better: vec![answer("expandable_segments:True", Sure::Range, &[(1, 16, 18), (0, 30, 30)])],
            tried: 5,
            bounds: vec![bounds(1, 15), bounds(0, 29)],
        };
        let found = value(&WhatIf { advices: vec![advice], left_out: vec![9], most: 3 });
        let tables = found["tables"].as_array().expect("tables");
        let brief = |table: &Value| {
            let peak =
                |row: &Value| (row["reserved_peak_bytes"]["least"].clone(), row["reserved_peak_bytes"]["most"].clone());
            (table["device"].clone(), peak(&table["now"]), peak(&table["better"][0]), table["in_use_bytes"].clone())
        };
        let number = |n: u64| json!(n);
        let first = (json!("npu:0"), (number(40), number(40)), (number(30), number(30)), number(29));
        let second = (json!("npu:1"), (number(20), number(20)), (number(16), number(18)), number(15));
        assert_eq!(tables.iter().map(brief).collect::<Vec<_>>(), [first, second]);
        assert_eq!((&found["left_out"], &tables[1]["better"][0]["sure"]), (&json!([9]), &json!("range")));
        assert_eq!((&tables[0]["whole"], &tables[0]["tried"]), (&json!(true), &json!(5)));
    }
}
