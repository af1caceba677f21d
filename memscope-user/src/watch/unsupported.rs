//! Stands in for `live` on machines for which there is no handler: block watch is refused before anything is begun.

use std::io;

use super::spec::WatchSpec;
use crate::{
    attach::kernel::{KernelError, WatchMaps},
    probes::ProbeSpec,
    sinks::{SinkError, watch::WatchFiles},
};

/// Gives the files of a process.
pub type Outputs = Box<dyn Fn(u32) -> Result<WatchFiles, SinkError> + Send + Sync>;
/// Tells the user: whether it is a warning, and the text.
pub type Tell = Box<dyn Fn(bool, &str) + Send + Sync>;
/// Opens the kernel side's maps for one more thread.
pub type OpenMaps = Box<dyn Fn() -> Result<WatchMaps, KernelError> + Send>;

/// There is none.
#[derive(Debug)]
pub enum Tap {}

/// There is none.
#[derive(Debug)]
pub enum Watch {}

/// As on other machines.
pub struct WatchOptions {
    /// What is watched.
    pub spec: WatchSpec,
    /// Rows by number, with their flags.
    pub rows: Vec<(u16, &'static ProbeSpec, u8)>,
    /// Where to write.
    pub outputs: Outputs,
    /// Whom to tell.
    pub tell: Tell,
}

const WHY: &str = "blocks can be watched on x86-64 only";

/// Whether processes of this machine can be watched.
pub const fn is_supported() -> Result<(), &'static str> {
    Err(WHY)
}

impl Tap {
    /// Is never called.
    pub fn take(&self, _row: u16, _record: &[u8]) {
        match *self {}
    }
}

impl Watch {
    /// Refuses.
    pub fn start(_options: WatchOptions, _open_maps: OpenMaps) -> io::Result<(Self, Tap)> {
        Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
    }

    /// Is never called.
    #[must_use]
    pub fn finish(self) -> String {
        match self {}
    }
}
