//! Which numbers there are. `docs/agent.md` has the same table.

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value of the moment.
    Gauge,
    /// A count that never falls while the agent runs.
    Counter,
    /// Counts by class.
    Histogram,
    /// Labels alone.
    Info,
}

impl Kind {
    /// As the formats call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// What its samples have behind the family's name.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Gauge | Self::Histogram => "",
            Self::Counter => "_total",
            Self::Info => "_info",
        }
    }
}

/// A family of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What its samples are.
    pub kind: Kind,
    /// Their unit, if the name has one.
    pub unit: Option<&'static str>,
    /// What it means.
    pub help: &'static str,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Another one.
    Real(f64),
    /// Counts by class, the last one beyond all bounds, and the sum of all that was counted.
    Histogram {
        /// Upper bounds.
        bounds: &'static [u64],
        /// One more than there are bounds.
        counts: Vec<u64>,
        /// Sum.
        sum: u64,
    },
}

/// Labels of a sample, in their order.
pub type Labels = Vec<(&'static str, String)>;

/// A sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of its family.
    pub family: &'static str,
    /// Its labels.
    pub labels: Labels,
    /// Its value.
    pub number: Number,
    /// When its counts began, nanoseconds since the Unix epoch; `None`: with the agent. Prometheus does not ask for it.
    pub start_ns: Option<u64>,
}

impl Sample {
    /// A whole number.
    #[must_use]
    pub const fn whole(family: &'static str, labels: Labels, number: u64) -> Self {
        Self { family, labels, number: Number::Whole(number), start_ns: None }
    }

    /// Another one.
    #[must_use]
    pub const fn real(family: &'static str, labels: Labels, number: f64) -> Self {
        Self { family, labels, number: Number::Real(number), start_ns: None }
    }

    /// The same, of counts that began at that time.
    #[must_use]
    pub fn since(mut self, start_ns: Option<u64>) -> Self {
        self.start_ns = start_ns;
        self
    }
}

const fn family(name: &'static str, kind: Kind, unit: Option<&'static str>, help: &'static str) -> Family {
    Family { name, kind, unit, help }
}

const BYTES: Option<&str> = Some("bytes");
const SECONDS: Option<&str> = Some("seconds");
const RATIO: Option<&str> = Some("ratio");

/// All families, in the order of the page.
pub const FAMILIES: &[Family] = &[
    family(
        "memscope_memory_live_bytes",
        Kind::Gauge,
        BYTES,
        "Bytes allocated and not freed, by layer and pool. Layers nest: never add them up.",
    ),
    family("memscope_memory_live_blocks", Kind::Gauge, None, "Blocks allocated and not freed."),
    family(
        "memscope_memory_live_older_bytes",
        Kind::Gauge,
        BYTES,
        "Live bytes of blocks older than the age in seconds, to the minute.",
    ),
    family(
        "memscope_memory_untracked_bytes",
        Kind::Gauge,
        BYTES,
        "What a pool says it has handed out beyond the blocks that are known by place: from before the attach, without room, or not seen.",
    ),
    family(
        "memscope_memory_growth_bytes_per_second",
        Kind::Gauge,
        None,
        "Median slope (Theil-Sen) of the live bytes over up to an hour of one-minute points.",
    ),
    family(
        "memscope_leak_suspect_growth_bytes_per_second",
        Kind::Gauge,
        None,
        "Slope of the fastest growing places; `status` shows where they are.",
    ),
    family(
        "memscope_pool_full_seconds",
        Kind::Gauge,
        SECONDS,
        "Forecast: when a growing pool holds all that the driver has free on the device. Absent without growth, and beyond 60 times what was seen.",
    ),
    family("memscope_pool_reserved_bytes", Kind::Gauge, BYTES, "What a pool says it holds from the driver."),
    family("memscope_pool_active_bytes", Kind::Gauge, BYTES, "What a pool says is handed out or waits for a stream."),
    family("memscope_pool_allocated_bytes", Kind::Gauge, BYTES, "What a pool says it has handed out."),
    family("memscope_device_memory_used_bytes", Kind::Gauge, BYTES, "Device memory in use by whomever, from DCMI."),
    family("memscope_device_memory_total_bytes", Kind::Gauge, BYTES, "Device memory, from DCMI."),
    family(
        "memscope_device_memory_unexplained_bytes",
        Kind::Gauge,
        BYTES,
        "Device memory in use beyond the live blocks of the driver that are traced.",
    ),
    family("memscope_process_memory_bytes", Kind::Gauge, BYTES, "Live bytes by process; the number is the host's."),
    family(
        "memscope_process",
        Kind::Info,
        None,
        "Processes that are traced, or are left out for a while with a pool that was read.",
    ),
    family("memscope_allocations", Kind::Counter, None, "Blocks allocated."),
    family("memscope_frees", Kind::Counter, None, "Blocks freed that were allocated since the attach."),
    family("memscope_allocated_bytes", Kind::Counter, BYTES, "Bytes allocated."),
    family("memscope_freed_bytes", Kind::Counter, BYTES, "Bytes freed."),
    family(
        "memscope_blocks_before_attach_freed",
        Kind::Counter,
        None,
        "Frees of blocks that were allocated before the attach, or never seen.",
    ),
    family(
        "memscope_allocation_failures",
        Kind::Counter,
        None,
        "Requests that failed, however often they were tried; `recovered` ones succeeded at a further attempt.",
    ),
    family("memscope_allocation_size_bytes", Kind::Histogram, BYTES, "Sizes of allocated blocks."),
    family("memscope_events", Kind::Counter, None, "Events seen."),
    family("memscope_events_lost", Kind::Counter, None, "Records lost, so that figures may be too low."),
    family("memscope_map_fill_ratio", Kind::Gauge, RATIO, "How full a table of the agent is."),
    family(
        "memscope_targets",
        Kind::Gauge,
        None,
        "Processes that map an Ascend library, by what the agent does with them.",
    ),
    family(
        "memscope_agent_pool_readings",
        Kind::Counter,
        None,
        "Readings of the pools of processes that are reduced or left out for a while.",
    ),
    family(
        "memscope_agent_pool_reading_age_seconds",
        Kind::Gauge,
        SECONDS,
        "Age of the oldest sums on this page of a process that is reduced or left out.",
    ),
    family("memscope_bundles", Kind::Counter, None, "Bundles of processes that ran out of memory."),
    family(
        "memscope_agent_evidence_files",
        Kind::Counter,
        None,
        "Files of evidence, written or not, and old ones removed for others.",
    ),
    family("memscope_agent_evidence_rows", Kind::Counter, None, "Rows of evidence written."),
    family("memscope_agent_evidence_dropped_rows", Kind::Counter, None, "Rows of evidence that found no room."),
    family("memscope_agent_evidence_uploads", Kind::Counter, None, "Uploads of files of evidence, done or failed."),
    family(
        "memscope_agent_evidence_waiting_bytes",
        Kind::Gauge,
        Some("bytes"),
        "Files of evidence that wait to be uploaded.",
    ),
    family("memscope_agent", Kind::Info, None, "The agent."),
    family(
        "memscope_agent_cpu_seconds",
        Kind::Counter,
        SECONDS,
        "Processor time of the agent: its process, the BPF programs, and the stops at probes (estimated).",
    ),
    family(
        "memscope_agent_overhead_ratio",
        Kind::Gauge,
        RATIO,
        "Processor time of all parts over the last interval, in cores.",
    ),
    family("memscope_agent_budget_ratio", Kind::Gauge, RATIO, "What the settings allow of it."),
    family(
        "memscope_agent_level",
        Kind::Gauge,
        None,
        "0 all, 1 no Python stacks, 2 no stacks, 3 busy processes without pools, 4 detached.",
    ),
    family("memscope_agent_level_changes", Kind::Counter, None, "Changes of the level."),
    family("memscope_agent_memory_bytes", Kind::Gauge, BYTES, "Resident memory of the agent."),
    family("memscope_agent_series_dropped", Kind::Counter, None, "Series left out because the page was full."),
    family(
        "memscope_agent_runtime_requests",
        Kind::Counter,
        None,
        "Requests to the container runtime, by how they ended.",
    ),
    family("memscope_agent_otlp_requests", Kind::Counter, None, "Requests to the OTLP receiver, by how they ended."),
    family(
        "memscope_agent_otlp_dropped",
        Kind::Counter,
        None,
        "Data points and log records that no OTLP receiver took: refused, or pushed out of a full queue.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit is the end of the name (`OpenMetrics`), and counters have no suffix of their own.
    #[test]
    fn names_follow_the_formats() {
        for family in FAMILIES {
            let name = family.name;
            assert!(name.starts_with("memscope_"), "{name}");
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_')), "{name}");
            assert!(!name.ends_with("_total") && !name.ends_with("_info"), "{name}");
            assert!(family.unit.is_none_or(|unit| name.ends_with(&format!("_{unit}"))), "{name}");
            assert!(!family.help.contains(['\n', '\\']) && family.help.ends_with('.'), "{name}");
            let same = FAMILIES.iter().filter(|other| other.name == name).count();
            assert_eq!(same, 1, "{name}");
        }
    }

    /// Rules and dashboards ask for no number that is not there, and for labels of npu-exporter alone besides.
    #[test]
    fn rules_and_dashboards_name_families() {
        let texts = [
            include_str!("../../../packaging/agent/prometheus/rules.yml"),
            include_str!("../../../packaging/agent/prometheus/rules_test.yml"),
            include_str!("../../../packaging/agent/grafana/memscope.json"),
        ];
        let mut named = 0;
        for text in texts {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
            for word in words.filter(|word| word.starts_with("memscope_")) {
                let is_of = |family: &&Family| {
                    let rest = word.strip_prefix(family.name);
                    let suffixes = match family.kind {
                        Kind::Histogram => &["_bucket", "_count", "_sum"][..],
                        kind => &[kind.suffix()],
                    };
                    rest.is_some_and(|rest| suffixes.contains(&rest))
                };
                assert!(FAMILIES.iter().any(|family| is_of(&family)), "{word}");
                named += 1;
            }
        }
        assert!(named > 50, "{named}");
    }

    /// The table for readers has each family with its kind, and no other.
    #[test]
    fn docs_have_every_family() {
        let docs = include_str!("../../../docs/agent.md");
        let rows: Vec<(&str, &str)> = docs
            .lines()
            .filter_map(|line| line.strip_prefix("| `memscope_")?.split_once("` | "))
            .map(|(name, rest)| (name, rest.split(" |").next().unwrap_or_default()))
            .collect();
        let expected: Vec<(String, &str)> = FAMILIES
            .iter()
            .map(|family| {
                (format!("{}{}", &family.name["memscope_".len()..], family.kind.suffix()), family.kind.name())
            })
            .collect();
        let rows: Vec<(String, &str)> = rows.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
        assert_eq!(rows, expected);
    }
}
