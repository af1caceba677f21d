//! Processes without any known memory.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Report, Subject};
use crate::model::Device;

/// Processes that were attached to, and neither took nor gave back device memory since: their memory is from before the
/// attach, and in no other figure.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Silent {
    /// Their numbers, at most 1024.
    pub pids: Vec<u32>,
    /// Further ones.
    pub left_out: u64,
}

impl Answer for Silent {
    fn subject(&self) -> Subject {
        Subject { pid: None, device: Device::None, pool: None }
    }

    fn write(&self, _: &Context<'_>, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn write_end(found: &[&Self], _: Report, out: &mut dyn Write) -> io::Result<()> {
        found.iter().try_for_each(|found| super::text::write(found, out))
    }
}
