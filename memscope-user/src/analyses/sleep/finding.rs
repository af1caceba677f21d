//! What stays while a server sleeps.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Confidence, Device};
use crate::text::numbers::{counted, rounded};

/// Sleeps of a server (vLLM's sleep mode): it gives physical memory back and takes it again when it wakes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Sleeps {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Seen sleeps.
    pub sleeps: u64,
    /// Live bytes of the driver when the last of them began.
    pub before_bytes: u64,
    /// Lowest live bytes during the first of them.
    pub first_low_bytes: u64,
    /// Lowest live bytes during the last of them.
    pub last_low_bytes: u64,
    /// How sure.
    pub confidence: Confidence,
}

impl Answer for Sleeps {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, self.device)
    }

    fn weight_bytes(&self) -> u64 {
        self.before_bytes
    }

    fn write(&self, _: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
        let device = crate::text::DeviceName(self.device);
        writeln!(
            out,
            "Asleep on device {device}: {} of {} stayed in the last of {}",
            rounded(self.last_low_bytes.into()),
            rounded(self.before_bytes.into()),
            counted(self.sleeps, "sleep"),
        )
    }
}
