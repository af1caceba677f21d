//! The driver's figures of a device.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Device, ProcessUsage};

/// The driver's last figures of a device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DeviceUse {
    /// Device.
    pub device: Device,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Bytes in use, by whomever.
    pub used_bytes: u64,
    /// Bytes that the device has.
    pub total_bytes: u64,
    /// The processes on it; `None` when the driver does not list them.
    pub processes: Option<Vec<ProcessUsage>>,
}

impl Answer for DeviceUse {
    fn subject(&self) -> Subject {
        Subject { pid: None, device: self.device, pool: None }
    }

    fn write(&self, _: &Context<'_>, _: &mut dyn Write) -> io::Result<()> {
        // The ledger has it.
        Ok(())
    }
}
