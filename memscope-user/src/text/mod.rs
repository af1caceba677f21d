//! Spelling that texts for people share: numbers, times, devices, stacks.

pub(crate) mod clock;
pub(crate) mod frame;
pub(crate) mod groups;
pub(crate) mod numbers;
pub(crate) mod stacks;
pub(crate) mod user_frames;

use std::fmt;

use crate::model::Device;

/// A device as a word.
pub(crate) struct DeviceName(pub(crate) Device);

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Device::Npu(number) => write!(f, "{number}"),
            Device::Cpu => f.write_str("host"),
            Device::None => f.write_str("N/A"),
        }
    }
}
