//! Settings that a program was started with.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analyses::answer::{Answer, Context, Subject};
use crate::model::{Device, Setting};

/// Settings of a process's environment that advice depends on, as it was started with them. The program may have changed them since.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Settings {
    /// Process.
    pub pid: u32,
    /// The ones that are set; all others are not.
    pub settings: Vec<Setting>,
}

impl Answer for Settings {
    fn subject(&self) -> Subject {
        Subject::process(self.pid, Device::None)
    }

    fn write(&self, _: &Context<'_>, _: &mut dyn Write) -> io::Result<()> {
        // The advice has them.
        Ok(())
    }
}
