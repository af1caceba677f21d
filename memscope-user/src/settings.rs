//! Settings of a program's environment that advice depends on. No other variable is read: an environment holds secrets.

/// Their names.
pub const NAMES: [&str; 4] =
    ["PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE", "HCCL_BUFFSIZE", "MULTI_STREAM_MEMORY_REUSE"];

/// Longest value, in bytes; longer ones are cut.
pub const MAX_VALUE: usize = 512;

/// The value as it is kept.
#[must_use]
pub fn kept(value: &str) -> String {
    value[..value.floor_char_boundary(MAX_VALUE)].to_owned()
}
