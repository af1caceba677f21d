//! Gives back what no traced process uses any more; only of a trace without an end.

use std::{
    collections::{BTreeSet, HashSet},
    io,
};

use super::{Follow, Interpreters};
use crate::{
    kernel::{Kernel, KernelError},
    os::maps::{FileId, mapped_files},
};

impl Follow {
    /// Closes files that no traced process had mapped at this look and at the one before, and takes their probes out. Call it from time to time.
    /// `mapped`: what [`mapped_by`] has found of [`Follow::all_traced`], now or a while ago. `further`: files that others have open; returns those of
    /// all that are to be closed.
    pub fn forget_unused(
        &mut self,
        kernel: &mut Kernel,
        mapped: &HashSet<FileId>,
        further: Vec<FileId>,
    ) -> Result<HashSet<FileId>, KernelError> {
        self.libraries.forget_searched(mapped);
        let examined = self.interpreters.iter().flat_map(Interpreters::files);
        let mut unused = self.libraries.unused(mapped, examined.chain(further));
        if unused.is_empty() {
            return Ok(unused);
        }
        // Whoever maps one from here on says so, and is looked at after this: then the file is a new one.
        kernel.forget_images();
        self.static_programs.clear();
        match mapped_by(self.all_traced(kernel)?) {
            Some(mapped) => unused.retain(|id| !mapped.contains(id)),
            None => unused.clear(),
        }
        self.libraries.forget(kernel, &unused);
        if let Some(interpreters) = &mut self.interpreters {
            interpreters.forget(kernel, &unused);
        }
        self.libraries.take_images().for_each(|image| kernel.know_image(image));
        Ok(unused)
    }

    /// All processes that may run code with probes.
    pub fn all_traced(&self, kernel: &mut Kernel) -> Result<Vec<u32>, KernelError> {
        let pids: BTreeSet<u32> = self.processes.keys().copied().chain(kernel.traced()?).collect();
        Ok(pids.into_iter().collect())
    }
}

/// All files that these processes have mapped; `None`: not known of one of them. One that has ended has none.
#[must_use]
pub fn mapped_by(pids: Vec<u32>) -> Option<HashSet<FileId>> {
    let mut mapped = HashSet::new();
    for pid in pids {
        match mapped_files(pid) {
            Ok(files) => mapped.extend(files.iter().map(|file| file.id)),
            Err(error) if is_gone(&error) => {}
            Err(_) => return None,
        }
    }
    Some(mapped)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}
