//! The state at a moment of a running trace.

mod past;
mod text;

pub(crate) use self::past::Past;
pub use self::text::{SAMPLE_CSV_HEADER, write_sample, write_sample_csv};
use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::device_use::DeviceUse;
use crate::analyses::fragmentation::FreeSpace;
use crate::model::{Device, Pool};

/// Host memory of a process, as `/proc/PID/status` has it (`proc_pid_status(5)`). `resident_bytes` is the sum of heap, file and shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct HostMemory {
    /// `VmRSS`: pages in memory.
    pub resident_bytes: u64,
    /// `RssAnon`: of those, memory of no file: of `malloc`, and the stacks of threads; the kernel does not separate
    /// them.
    pub heap_bytes: u64,
    /// `RssFile`: of those, pages of files: programs, libraries.
    pub file_bytes: u64,
    /// `RssShmem`: of those, memory that can be shared with other processes.
    pub shared_bytes: u64,
    /// `VmStk`: addresses of the main thread's stack, touched or not.
    pub stack_bytes: u64,
    /// `VmSwap`: anonymous memory that is swapped out.
    pub swapped_bytes: u64,
}

/// Recent rate of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Change {
    /// Over this time: a minute, or less while less is known.
    pub span_ns: u64,
    /// By so much.
    pub change_bytes: i64,
}

/// One pool of a process on a device. Blocks older than the trace are in its figures where they were found at the attach.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct PoolSample {
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Bytes handed out beyond those blocks, by the pool's own figure: from before the attach, or not seen.
    pub unseen_bytes: u64,
    /// Highest live bytes so far, by the pool's own figure where it has one.
    pub peak_bytes: u64,
    /// How the live bytes have changed.
    pub recent: Option<Change>,
    /// Blocks allocated so far.
    pub allocations: u64,
    /// Blocks freed so far, older ones too.
    pub frees: u64,
    /// Requests that failed so far.
    pub failed: u64,
    /// Allocations for each second since the last sample.
    pub allocations_per_second: Option<f64>,
    /// Frees for each second since the last sample.
    pub frees_per_second: Option<f64>,
    /// The free part of its memory; `None` where no memory of it is known.
    pub space: Option<FreeSpace>,
    /// Bytes that the pool holds beyond that, by its own figure.
    pub unknown_bytes: Option<u64>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ProcessSample {
    /// Process.
    pub pid: u32,
    /// Its host memory; `None` when it has ended.
    pub host: Option<HostMemory>,
    /// How its resident memory has changed.
    pub recent: Option<Change>,
    /// Its pools.
    pub pools: Vec<PoolSample>,
}

/// Everything at a moment.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Sample {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Since the last sample, or the begin.
    pub interval_ns: u64,
    /// The trace has ended: every call of it is counted. Others lack those of the last moment, up to about a second.
    pub last: bool,
    /// Records lost so far, so that counts are too low.
    pub lost: u64,
    /// The driver's figures of its devices; `None` when it reports none, or has not for some time.
    pub devices: Option<Vec<DeviceUse>>,
    /// The traced processes.
    pub processes: Vec<ProcessSample>,
}
