//! Call stacks of a live trace.

use std::{
    collections::HashSet,
    sync::{Arc, mpsc::Receiver},
};

use super::{TraceError, options::TraceOptions};
use crate::{
    crew::Crew,
    follow::interpreters::Layouts,
    kernel::{Kernel, NativeStacks, StackOptions},
    os::maps::FileId,
    ring::Batch,
    stacks::{
        self, CompleteCode, FinishStacks, SharedMappings, Stage, SymbolOptions, code, mappings::Mappings,
        unwind::Unwinder,
    },
};

/// The stacks to take. A depth of 0 means none: the cell is empty either way (contract §3.2).
pub(super) fn options(options: &TraceOptions) -> StackOptions {
    let wanted = options.call_stacks;
    let some = |depth: Option<u32>| depth.filter(|depth| *depth > 0);
    StackOptions { native_depth: some(wanted.c), python_depth: some(wanted.python), automatic: wanted.automatic }
}

/// Stacks of a trace that runs.
pub(super) struct Live {
    mappings: Option<SharedMappings>,
}

impl Live {
    /// A process has mapped a file, or is new.
    pub(super) fn look_ahead(&self, pid: u32) {
        if let Some(mappings) = &self.mappings {
            mappings.look_ahead(pid);
        }
    }

    /// Files that are open for stacks.
    pub(super) fn files(&self) -> Vec<FileId> {
        self.mappings.iter().flat_map(|mappings| mappings.lock().files().collect::<Vec<_>>()).collect()
    }

    /// Closes these files, which no traced process has mapped.
    pub(super) fn forget(&self, unused: &HashSet<FileId>) {
        if let Some(mappings) = &self.mappings {
            mappings.lock().forget(unused);
        }
    }
}

/// Puts the stage for stacks behind the reader, if any are taken. `layouts` are those of the followed interpreters.
pub(super) fn start(
    trace: &TraceOptions,
    kernel: &Kernel,
    layouts: Layouts,
    batches: Receiver<Batch>,
    crew: &Crew,
) -> Result<(Receiver<Batch>, Live), TraceError> {
    let StackOptions { native_depth, python_depth, .. } = kernel.stacks();
    if native_depth.is_none() && python_depth.is_none() {
        return Ok((batches, Live { mappings: None }));
    }
    let (mut mappings, mut unfinished) = (None, None);
    if let Some(NativeStacks { depth, rules, processes }) = kernel.native_stacks()? {
        let processes = Arc::new(processes);
        let of = Arc::clone(&processes);
        mappings = Some(SharedMappings::new(Mappings::new(Box::new(move |pid| of.generation(pid)))));
        let living = Box::new(move || processes.generations().ok());
        let unwinder =
            Unwinder::new(rules, living, depth).map_err(TraceError::system("cannot map the table of unwind rules"))?;
        unfinished = Some(Box::new(unwinder) as Box<dyn FinishStacks>);
    }
    let symbols = SymbolOptions { inlined: trace.inlined };
    let codes = python_depth.map(|_| -> CompleteCode { Box::new(move |record| code::complete(record, &layouts)) });
    let stage = Stage { mappings: mappings.clone(), symbols, unfinished, codes };
    let batches =
        stacks::start(batches, stage, crew).map_err(TraceError::system("cannot start the thread for call stacks"))?;
    Ok((batches, Live { mappings }))
}
