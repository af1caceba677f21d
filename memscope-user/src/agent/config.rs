//! The agent's settings: a TOML file, each value of which has a default. See `docs/agent.md`.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use thiserror::Error;

#[cfg(feature = "object-store")]
use super::evidence;
use super::{otlp, rules::Rules};

/// A larger file is no file of settings.
const MAX_BYTES: u64 = 1 << 20;
/// A bundle with more has tens of megabytes.
const MAX_RECENT_EVENTS: usize = 100_000;
/// Less holds no hour of a busy node.
const LEAST_EVIDENCE_BYTES: u64 = 1 << 20;

/// Why there are no settings.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file with headers for the OTLP receiver cannot be used.
    #[error("cannot use otlp.headers_file `{}`", path.display())]
    Headers {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What it says makes no sense.
    #[error("settings `{}`: {text}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What and where, and what was probably meant.
        text: String,
    },
    /// A value is out of its range, or two do not go together.
    #[error("settings: {0}")]
    Value(String),
}

/// All settings.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who is traced.
    pub rules: Rules,
    /// Looking for processes.
    pub discovery: Discovery,
    /// The page of numbers.
    pub metrics: Metrics,
    /// What the agent may take.
    pub budget: BudgetSettings,
    /// Call stacks.
    pub stacks: StackSettings,
    /// Names of pods and containers.
    pub names: NameSettings,
    /// What is kept of failed requests.
    pub bundles: BundleSettings,
    /// Tables by minute.
    pub evidence: EvidenceSettings,
    /// Where commands reach the agent.
    pub control: ControlSettings,
    /// Sending to an OpenTelemetry collector.
    pub otlp: OtlpSettings,
    /// A library that is asked instead of the driver's DCMI, for tests.
    pub driver_library: Option<PathBuf>,
}

/// Looking for processes.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// From one look at the processes to the next.
    pub interval_seconds: f64,
    /// A process that maps no Ascend library is looked at again after twice the time, up to this one.
    pub longest_seconds: f64,
    /// Processes traced at once.
    pub max_processes: usize,
    /// From one look for files that no traced process has mapped any more to the next; at the second one they are given back.
    pub forget_seconds: f64,
}

/// The page of numbers.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where the page is; empty: nowhere.
    pub listen: String,
    /// Listen elsewhere than on this machine although the page has no lock.
    pub insecure_listen: bool,
    /// From one page to the next.
    pub interval_seconds: f64,
    /// Series of the page at most.
    pub max_series: usize,
    /// Series of single processes.
    pub per_process: bool,
}

/// What the agent may take.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSettings {
    /// Processor time of all parts, in cores.
    pub cores: f64,
    /// What one stop of a traced thread at a probe costs it, in nanoseconds.
    pub trap_ns: u32,
    /// Events of one process in a second, beyond which it is traced without its pools for a while, or left out.
    pub events_per_process: u64,
    /// Bytes of the buffer between kernel and agent.
    pub ring_bytes: u32,
}

/// Call stacks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct StackSettings {
    /// Frames of C and C++; 0: none are taken.
    pub native: u32,
    /// Frames of Python; 0: none are taken.
    pub python: u32,
}

/// Names of pods and containers.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct NameSettings {
    /// Where the kubelet has logs of containers: their names name pods; empty: pods are known by UID alone.
    pub container_logs: PathBuf,
    /// Socket of the container runtime, which knows labels, too; empty: it is not asked.
    pub runtime_socket: PathBuf,
}

/// What is kept of failed requests.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct BundleSettings {
    /// Where a bundle is written when a process runs out of memory; empty: nowhere.
    pub directory: PathBuf,
    /// Bundles kept; the oldest are removed.
    pub max_files: usize,
    /// Read the memory of that process, for what holds its blocks.
    pub holders: bool,
    /// Newest events of that process in the bundle; 0: none.
    pub recent_events: usize,
}

/// Tables by minute.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct EvidenceSettings {
    /// Where they are written; empty: nowhere.
    pub directory: PathBuf,
    /// What one file of a table is of: a divisor of an hour.
    pub interval_minutes: u32,
    /// What the files of this host may take there; the oldest are removed.
    pub max_bytes: u64,
    /// Variables of a process that name its job; the first one that is set counts.
    pub job_from: Vec<String>,
    /// Where files go then.
    pub upload: UploadSettings,
}

/// Uploading to an object store with the interface of S3.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct UploadSettings {
    /// `s3://bucket/folder`; empty: nothing is uploaded.
    pub url: String,
    /// The server, `https://host`; empty: that of `AWS_ENDPOINT_URL`, else Amazon's.
    pub endpoint: String,
    /// The region of requests; empty: that of `AWS_REGION`, else `us-east-1`.
    pub region: String,
    /// The bucket is a part of the server's name.
    pub virtual_hosted: bool,
    /// Ask the store to replace no object.
    pub put_if_absent: bool,
}

/// Where commands reach the agent.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ControlSettings {
    /// The socket; empty: none.
    pub socket: PathBuf,
    /// Group that may ask; without, root alone.
    pub group: String,
}

/// Sending to an OpenTelemetry collector.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpSettings {
    /// The receiver, `http://host:port`; empty: nothing is sent.
    pub endpoint: String,
    /// From one message with numbers to the next, in whole pages.
    pub interval_seconds: f64,
    /// An answer has to be there in this time.
    pub timeout_seconds: f64,
    /// Bytes that may wait to be sent; the oldest messages are dropped.
    pub max_queue_bytes: usize,
    /// Headers of all requests, one `name: value` on a line, for its owner alone; empty: none.
    pub headers_file: PathBuf,
    /// Whether events are sent, as log records.
    pub logs: bool,
}

impl Default for Discovery {
    fn default() -> Self {
        Self { interval_seconds: 1.0, longest_seconds: 60.0, max_processes: 1024, forget_seconds: 300.0 }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9478".to_owned(),
            insecure_listen: false,
            interval_seconds: 10.0,
            max_series: 5000,
            per_process: true,
        }
    }
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self { cores: 0.02, trap_ns: 800, events_per_process: 50_000, ring_bytes: 16 << 20 }
    }
}

impl Default for StackSettings {
    fn default() -> Self {
        Self { native: 32, python: 32 }
    }
}

impl Default for NameSettings {
    fn default() -> Self {
        Self { container_logs: PathBuf::from("/var/log/containers"), runtime_socket: PathBuf::new() }
    }
}

impl Default for BundleSettings {
    fn default() -> Self {
        Self { directory: PathBuf::new(), max_files: 100, holders: true, recent_events: 1000 }
    }
}

impl Default for EvidenceSettings {
    fn default() -> Self {
        let job_from = ["JOB_NAME", "VC_JOB_NAME", "TRAINING_JOB_NAME", "SLURM_JOB_ID"].map(str::to_owned).into();
        Self {
            directory: PathBuf::new(),
            interval_minutes: 60,
            max_bytes: 2 << 30,
            job_from,
            upload: UploadSettings::default(),
        }
    }
}

impl Default for UploadSettings {
    fn default() -> Self {
        let [url, endpoint, region] = [const { String::new() }; 3];
        Self { url, endpoint, region, virtual_hosted: false, put_if_absent: true }
    }
}

impl Default for ControlSettings {
    fn default() -> Self {
        Self { socket: PathBuf::from(super::DEFAULT_SOCKET), group: String::new() }
    }
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            interval_seconds: 60.0,
            timeout_seconds: 10.0,
            max_queue_bytes: 8 << 20,
            headers_file: PathBuf::new(),
            logs: true,
        }
    }
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fail = |source| ConfigError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(fail)?.len() > MAX_BYTES {
            return Err(fail(io::Error::other("it has more than 1 MiB")));
        }
        let text = fs::read_to_string(path).map_err(fail)?;
        let config = Self::parse(&text).map_err(|text| ConfigError::Parse { path: path.to_owned(), text })?;
        config.check()?;
        Ok(config)
    }

    /// Reads a text.
    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let advice = meant(error.message()).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            format!("{place}{}{advice}", error.message())
        })
    }

    /// Whether the values make sense.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        let times = [
            ("discovery.interval_seconds", self.discovery.interval_seconds, 0.05),
            ("discovery.longest_seconds", self.discovery.longest_seconds, self.discovery.interval_seconds),
            ("discovery.forget_seconds", self.discovery.forget_seconds, 0.1),
            ("metrics.interval_seconds", self.metrics.interval_seconds, 0.1),
            ("budget.cores", self.budget.cores, 0.001),
            ("otlp.interval_seconds", self.otlp.interval_seconds, 0.1),
            ("otlp.timeout_seconds", self.otlp.timeout_seconds, 0.1),
        ];
        for (name, value, least) in times {
            // A day, a thousand cores: more is a slip.
            if !(least..=86_400.0).contains(&value) {
                return wrong(format!("{name} is {value}: it must be between {least} and 86400"));
            }
        }
        if self.budget.ring_bytes < 1 << 16 || !self.budget.ring_bytes.is_power_of_two() {
            return wrong(format!(
                "budget.ring_bytes is {}: it must be a power of two, of 65536 at least",
                self.budget.ring_bytes
            ));
        }
        if self.metrics.max_series < 100 {
            return wrong(format!("metrics.max_series is {}: it must be 100 at least", self.metrics.max_series));
        }
        if self.bundles.recent_events > MAX_RECENT_EVENTS {
            return wrong(format!(
                "bundles.recent_events is {}: it must be {MAX_RECENT_EVENTS} at most",
                self.bundles.recent_events
            ));
        }
        if self.otlp.max_queue_bytes < 1 << 16 {
            return wrong(format!("otlp.max_queue_bytes is {}: it must be 65536 at least", self.otlp.max_queue_bytes));
        }
        self.check_names()?;
        otlp::check(&self.otlp).map_err(ConfigError::Value)?;
        self.evidence.check()?;
        self.listen().map(|_| ())
    }

    /// Whether labels can be known.
    fn check_names(&self) -> Result<(), ConfigError> {
        let socket = &self.names.runtime_socket;
        let wrong = |text: String| Err(ConfigError::Value(text));
        if !socket.as_os_str().is_empty() && !socket.is_absolute() {
            return wrong(format!("names.runtime_socket is `{}`: it must be an absolute path", socket.display()));
        }
        let with_labels = self.rules.list.iter().position(|rule| !rule.labels.is_empty());
        match with_labels {
            Some(at) if socket.as_os_str().is_empty() => wrong(format!(
                "rule {} asks for labels of pods, which the container runtime alone knows: set names.runtime_socket, such as \
                 \"/run/containerd/containerd.sock\"",
                at + 1
            )),
            _ => Ok(()),
        }
    }

    /// Where the page is, if it is anywhere.
    pub fn listen(&self) -> Result<Option<SocketAddr>, ConfigError> {
        let Metrics { listen, insecure_listen, .. } = &self.metrics;
        if listen.is_empty() {
            return Ok(None);
        }
        let address: SocketAddr = listen.parse().map_err(|_| {
            ConfigError::Value(format!("metrics.listen is `{listen}`: an address and a port, such as 127.0.0.1:9478"))
        })?;
        if !address.ip().is_loopback() && !insecure_listen {
            return Err(ConfigError::Value(format!(
                "metrics.listen is `{listen}`, which others can reach, and the page has no lock: listen on 127.0.0.1 behind a proxy \
                 that has one, or set metrics.insecure_listen = true"
            )));
        }
        Ok(Some(address))
    }
}

impl EvidenceSettings {
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        let Self { directory, interval_minutes, max_bytes, .. } = self;
        if !(1..=60).contains(interval_minutes) || 60 % interval_minutes != 0 {
            return wrong(format!("evidence.interval_minutes is {interval_minutes}: it must divide 60"));
        }
        if *max_bytes < LEAST_EVIDENCE_BYTES {
            return wrong(format!("evidence.max_bytes is {max_bytes}: it must be {LEAST_EVIDENCE_BYTES} at least"));
        }
        if !directory.as_os_str().is_empty() {
            if !directory.is_absolute() {
                return wrong(format!("evidence.directory is `{}`: it must be an absolute path", directory.display()));
            }
            if !cfg!(feature = "parquet") {
                return wrong("evidence.directory is set, and this program was built without Parquet".to_owned());
            }
        }
        self.upload.check(directory)
    }
}

impl UploadSettings {
    fn check(&self, directory: &Path) -> Result<(), ConfigError> {
        if *self == Self::default() {
            return Ok(());
        }
        if directory.as_os_str().is_empty() {
            let text = "evidence.upload is set without evidence.directory, where files wait";
            return Err(ConfigError::Value(text.to_owned()));
        }
        #[cfg(feature = "object-store")]
        return evidence::check_upload(self).map_err(ConfigError::Value);
        #[cfg(not(feature = "object-store"))]
        Err(ConfigError::Value("evidence.upload is set, and this program was built without object stores".to_owned()))
    }
}

/// The name that an unknown one was probably meant to be, by the parser's words.
fn meant(message: &str) -> Option<&str> {
    const SLIPS: usize = 3;
    let rest = message.strip_prefix("unknown field `")?;
    let (unknown, rest) = rest.split_once('`')?;
    let names = rest.split('`').skip(1).step_by(2);
    let near = names.map(|name| (strsim::osa_distance(unknown, name), name)).filter(|(far, _)| *far <= SLIPS);
    near.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests;
