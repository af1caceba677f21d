//! Why there is no trace.

use std::io;

use thiserror::Error;

use crate::{
    capture::CaptureError,
    follow::{mstx_tool::MstxToolError, spawn::SpawnError},
    kernel::KernelError,
    sinks::SinkError,
};

/// A [`Listener`](super::Listener)'s reason to refuse.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// A trace did not begin, or did not end in order.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The options conflict, or a file that they name cannot be used.
    #[error("{0}")]
    Options(String),
    /// This kernel lacks a feature that the options need.
    #[error("{0}")]
    Unsupported(String),
    /// A process cannot be traced.
    #[error("{0}")]
    Process(String),
    /// A process is gone, or unreadable.
    #[error("cannot look at process {pid}")]
    Look {
        /// The process.
        pid: u32,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Probes could not be placed in a running process.
    #[error("cannot attach to process {pid}")]
    Attach {
        /// The process.
        pid: u32,
        /// Why not.
        #[source]
        source: KernelError,
    },
    /// The program could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The kernel refused a request.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The library for mstx could not be written.
    #[error(transparent)]
    Mstx(#[from] MstxToolError),
    /// An output could not be opened.
    #[error(transparent)]
    Output(#[from] SinkError),
    /// The capture could not be opened.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The system refused a thread, a process or a descriptor.
    #[error("{what}")]
    System {
        /// Its purpose.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The listener refused.
    #[error(transparent)]
    Listener(Refusal),
    /// The tracer failed while it ended the trace.
    #[error("the trace could not be ended in order: {0}")]
    Fault(String),
}

impl TraceError {
    /// For `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}
