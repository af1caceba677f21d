//! What each family of the page is called in `OpenTelemetry`, and which instrument it is. `docs/agent.md` has the same table.

/// How values of an instrument may be added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows.
    Counter,
    /// Grows and falls; values of different attributes may be added up, but for layers, which nest.
    UpDownCounter,
    /// A value of the moment that cannot be added up.
    Gauge,
    /// Counts by class.
    Histogram,
}

impl Kind {
    /// As the table of the documentation says it.
    #[cfg(test)]
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "Counter",
            Self::UpDownCounter => "UpDownCounter",
            Self::Gauge => "Gauge",
            Self::Histogram => "Histogram",
        }
    }
}

/// An instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instrument {
    /// Family of the page that it is made of.
    pub(super) family: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// By UCUM.
    pub(super) unit: &'static str,
}

const fn of(family: &'static str, name: &'static str, kind: Kind, unit: &'static str) -> Instrument {
    Instrument { family, name, kind, unit }
}

use Kind::{Counter, Gauge, Histogram, UpDownCounter};

/// All instruments, in the order of the page's families.
pub(super) const INSTRUMENTS: &[Instrument] = &[
    of("memscope_memory_live_bytes", "memscope.memory.live", UpDownCounter, "By"),
    of("memscope_memory_live_blocks", "memscope.memory.live_blocks", UpDownCounter, "{block}"),
    of("memscope_memory_live_older_bytes", "memscope.memory.live_older", Gauge, "By"),
    of("memscope_memory_untracked_bytes", "memscope.memory.untracked", UpDownCounter, "By"),
    of("memscope_memory_growth_bytes_per_second", "memscope.memory.growth", Gauge, "By/s"),
    of("memscope_leak_suspect_growth_bytes_per_second", "memscope.leak_suspect.growth", Gauge, "By/s"),
    of("memscope_pool_full_seconds", "memscope.pool.full", Gauge, "s"),
    of("memscope_pool_reserved_bytes", "memscope.pool.reserved", UpDownCounter, "By"),
    of("memscope_pool_active_bytes", "memscope.pool.active", UpDownCounter, "By"),
    of("memscope_pool_allocated_bytes", "memscope.pool.allocated", UpDownCounter, "By"),
    of("memscope_device_memory_used_bytes", "memscope.device.memory.used", UpDownCounter, "By"),
    of("memscope_device_memory_total_bytes", "memscope.device.memory.total", UpDownCounter, "By"),
    of("memscope_device_memory_unexplained_bytes", "memscope.device.memory.unexplained", UpDownCounter, "By"),
    of("memscope_process_memory_bytes", "memscope.process.memory", UpDownCounter, "By"),
    of("memscope_process", "memscope.process.info", Gauge, "1"),
    of("memscope_allocations", "memscope.allocations", Counter, "{block}"),
    of("memscope_frees", "memscope.frees", Counter, "{block}"),
    of("memscope_allocated_bytes", "memscope.memory.allocated", Counter, "By"),
    of("memscope_freed_bytes", "memscope.memory.freed", Counter, "By"),
    of("memscope_blocks_before_attach_freed", "memscope.blocks_before_attach.freed", Counter, "{block}"),
    of("memscope_allocation_failures", "memscope.allocation.failures", Counter, "{request}"),
    of("memscope_allocation_size_bytes", "memscope.allocation.size", Histogram, "By"),
    of("memscope_events", "memscope.events", Counter, "{event}"),
    of("memscope_events_lost", "memscope.events_lost", Counter, "{event}"),
    of("memscope_map_fill_ratio", "memscope.map.fill", Gauge, "1"),
    of("memscope_targets", "memscope.targets", Gauge, "{process}"),
    of("memscope_agent_pool_readings", "memscope.agent.pool_readings", Counter, "{reading}"),
    of("memscope_agent_pool_reading_age_seconds", "memscope.agent.pool_reading.age", Gauge, "s"),
    of("memscope_bundles", "memscope.bundles", Counter, "{file}"),
    of("memscope_agent_evidence_files", "memscope.agent.evidence.files", Counter, "{file}"),
    of("memscope_agent_evidence_rows", "memscope.agent.evidence.rows", Counter, "{row}"),
    of("memscope_agent_evidence_dropped_rows", "memscope.agent.evidence.dropped_rows", Counter, "{row}"),
    of("memscope_agent_evidence_uploads", "memscope.agent.evidence.uploads", Counter, "{file}"),
    of("memscope_agent_evidence_waiting_bytes", "memscope.agent.evidence.waiting", UpDownCounter, "By"),
    of("memscope_agent", "memscope.agent.info", Gauge, "1"),
    of("memscope_agent_cpu_seconds", "memscope.agent.cpu.time", Counter, "s"),
    of("memscope_agent_overhead_ratio", "memscope.agent.overhead", Gauge, "1"),
    of("memscope_agent_budget_ratio", "memscope.agent.budget", Gauge, "1"),
    of("memscope_agent_level", "memscope.agent.level", Gauge, "1"),
    of("memscope_agent_level_changes", "memscope.agent.level_changes", Counter, "{change}"),
    of("memscope_agent_memory_bytes", "memscope.agent.memory", UpDownCounter, "By"),
    of("memscope_agent_series_dropped", "memscope.agent.series_dropped", Counter, "{series}"),
    of("memscope_agent_runtime_requests", "memscope.agent.runtime.requests", Counter, "{request}"),
    of("memscope_agent_otlp_requests", "memscope.agent.otlp.requests", Counter, "{request}"),
    of("memscope_agent_otlp_dropped", "memscope.agent.otlp.dropped", Counter, "{record}"),
];

/// The attribute for a label of the page.
pub(super) const ATTRIBUTES: &[(&str, &str)] = &[
    ("namespace", "k8s.namespace.name"),
    ("pod_name", "k8s.pod.name"),
    ("container_name", "k8s.container.name"),
    ("container_id", "container.id"),
    ("id", "hw.id"),
    ("layer", "memscope.layer"),
    ("pool", "memscope.pool"),
    ("process_id", "process.pid"),
    ("comm", "process.executable.name"),
    ("rank", "memscope.rank"),
    ("reason", "memscope.reason"),
    ("age", "memscope.age"),
    ("window", "memscope.window"),
    ("slot", "memscope.slot"),
    ("state", "memscope.state"),
    ("part", "memscope.part"),
    ("result", "memscope.result"),
    ("map", "memscope.map"),
    ("version", "service.version"),
    ("arch", "host.arch"),
    ("mode", "memscope.mode"),
];

/// Labels of which the attribute is a number.
pub(super) const NUMBERS: &[&str] = &["process_id", "age", "slot"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::metrics::{self, FAMILIES};

    /// Each family of the page has its instrument, in the same order, and what only grows stays that.
    #[test]
    fn every_family_has_an_instrument() {
        let families: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(INSTRUMENTS.iter().map(|instrument| instrument.family).collect::<Vec<_>>(), families);
        for (family, instrument) in FAMILIES.iter().zip(INSTRUMENTS) {
            let fits = match family.kind {
                metrics::Kind::Counter => instrument.kind == Counter,
                metrics::Kind::Histogram => instrument.kind == Histogram,
                metrics::Kind::Info => instrument.kind == Gauge,
                metrics::Kind::Gauge => matches!(instrument.kind, Gauge | UpDownCounter),
            };
            assert!(fits, "{}", family.name);
            assert_eq!(family.unit == Some("bytes"), instrument.unit == "By", "{}", family.name);
        }
        let mut names: Vec<&str> = INSTRUMENTS.iter().map(|instrument| instrument.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name stands for one instrument");
    }

    /// The table for readers has each instrument with its kind and unit, and no other.
    #[test]
    fn docs_have_every_instrument() {
        let docs = include_str!("../../../../docs/agent.md");
        let rows: Vec<Vec<&str>> = docs
            .lines()
            .filter(|line| line.starts_with("| `memscope.") && line.contains("` | `memscope_"))
            .map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
            .collect();
        let expected: Vec<Vec<String>> = FAMILIES
            .iter()
            .zip(INSTRUMENTS)
            .map(|(family, it)| {
                let family = format!("{}{}", family.name, family.kind.suffix());
                vec![String::new(), it.name.into(), family, it.kind.name().into(), it.unit.into(), String::new()]
            })
            .collect();
        assert_eq!(rows, expected);
    }

    /// Names have at most the letters that receivers take.
    #[test]
    fn attributes_have_one_name_each() {
        for (number, (label, attribute)) in ATTRIBUTES.iter().enumerate() {
            assert!(
                attribute.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.')),
                "{attribute}"
            );
            let later = &ATTRIBUTES[number + 1..];
            assert!(!later.iter().any(|(other, name)| other == label || name == attribute), "{label}");
        }
        assert!(NUMBERS.iter().all(|label| ATTRIBUTES.iter().any(|(known, _)| known == label)));
    }
}
