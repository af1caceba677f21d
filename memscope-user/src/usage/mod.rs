//! The driver's own figures, by DCMI (`libdcmi.so`).
//!
//! A call into the driver can hang for good, in a state that no signal ends. So a helper process makes the calls: this
//! program again, with a hidden verb ([`helper`]). [`Sampler`] asks it now and then, and abandons it when it does not
//! answer; neither the trace nor the traced program waits for it. We may be root, so `library` decides which files are
//! loaded at all. Host memory of a process comes from the kernel ([`host`]).

mod dcmi;
pub mod helper;
pub mod host;
mod library;
mod sampler;
mod trigger;

use serde::{Deserialize, Serialize};

pub use sampler::{Notice, Options, Sampler, look};
pub use trigger::Trigger;

/// The helper's answers, one JSON object to a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It can be asked.
    Ready {
        /// The library that it uses.
        library: String,
        /// The devices that there are.
        devices: Vec<u32>,
    },
    /// The requested figures.
    Figures {
        /// By device.
        devices: Vec<DeviceFigures>,
    },
    /// There is no library.
    Absent {
        /// The searched places.
        looked: Vec<String>,
    },
    /// It cannot be used.
    Failed {
        /// Why not.
        reason: String,
    },
}

/// The driver's figures of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// Logical number, as in the driver's flag word.
    pub device: u32,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that there are.
    pub total_bytes: u64,
    /// Process and its bytes; `None` when the driver does not report it.
    pub processes: Option<Vec<(u32, u64)>>,
}
