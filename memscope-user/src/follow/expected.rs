//! Probes files before a process maps them.

use std::path::Path;

use super::{Follow, ahead::Found};
use crate::{
    kernel::{Kernel, KernelError},
    os::process::environment,
};

impl Follow {
    /// Probes a file that the program is expected to map.
    pub fn expect(&mut self, kernel: &mut Kernel, path: &Path) -> Result<(), KernelError> {
        self.added.extend(self.libraries.attach_path(kernel, path)?);
        self.libraries.take_images().for_each(|image| kernel.know_image(image));
        Ok(())
    }

    /// Probes the libraries that a program started with this environment will find.
    pub fn expect_program(
        &mut self,
        kernel: &mut Kernel,
        program: &Path,
        environment: &[u8],
    ) -> Result<(), KernelError> {
        let found = self.ahead.of_program(program, environment);
        self.probe_ahead(kernel, found)
    }

    /// Probes the libraries that a process will find.
    pub(super) fn look_ahead(&mut self, kernel: &mut Kernel, pid: u32) -> Result<(), KernelError> {
        let found = self.ahead.of_process(pid, &environment(pid).unwrap_or_default());
        self.probe_ahead(kernel, found)
    }

    pub(super) fn probe_ahead(&mut self, kernel: &mut Kernel, found: Vec<Found>) -> Result<(), KernelError> {
        for file in found {
            self.added.extend(self.libraries.attach_ahead(kernel, file)?);
        }
        self.libraries.take_images().for_each(|image| kernel.know_image(image));
        if self.ahead.take_cut()
            && !self.options.hold
            && !self.options.stop
            && !std::mem::replace(&mut self.was_cut, true)
        {
            let text = "the search for libraries ended at its bound (512 files, 300 ms): those that it has not found are probed once they are \
                        mapped, and their first calls may be missed";
            self.messages.push(text.to_owned());
        }
        Ok(())
    }

    /// Probes our tool for mstx, which the program is going to load: then copies of mstx need no search.
    pub fn expect_mstx_tool(&mut self, kernel: &mut Kernel, path: &Path) -> Result<(), KernelError> {
        self.libraries.leave_mstx_to_tool();
        self.expect(kernel, path)
    }
}
