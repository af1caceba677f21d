//! The traced processes, their programs, and their Python interpreters.

use aya::maps::{Array, HashMap, MapData, MapError};
use memscope_common::{
    PythonLayout,
    config::{ImageKey, OUTER_CHANGES, ProcessState},
};

use super::{
    error::{KernelError, map_error, no_map},
    object::Kernel,
};

const REDUCED: &str = "REDUCED";

impl Kernel {
    /// Puts a process into the trace.
    pub fn trace(&mut self, pid: u32, state: ProcessState) -> Result<(), KernelError> {
        self.processes()?.insert(&pid, &state, 0).map_err(|error| map_error("PROCESSES", &error))?;
        self.processes_changed()
    }

    /// Invalidates the kernel side's cache of traced processes.
    fn processes_changed(&mut self) -> Result<(), KernelError> {
        const NAME: &str = "PROCESS_CHANGES";
        self.process_changes += 1;
        let map = self.ebpf.map_mut(NAME).ok_or(no_map(NAME))?;
        let mut changes: Array<_, u64> = Array::try_from(map).map_err(|error| map_error(NAME, &error))?;
        changes.set(OUTER_CHANGES, &self.process_changes, 0).map_err(|error| map_error(NAME, &error))
    }

    /// Passes the calls of a process about single blocks of pools over, or takes them again.
    pub fn reduce(&mut self, pid: u32, is_reduced: bool) -> Result<(), KernelError> {
        if is_reduced {
            self.reduced()?.insert(&pid, &1, 0).map_err(|error| map_error(REDUCED, &error))?;
        } else {
            // A missing entry is no error.
            let _ = self.reduced()?.remove(&pid);
        }
        self.processes_changed()
    }

    fn reduced(&mut self) -> Result<HashMap<&mut MapData, u32, u32>, KernelError> {
        let map = self.ebpf.map_mut(REDUCED).ok_or(no_map(REDUCED))?;
        HashMap::try_from(map).map_err(|error| map_error(REDUCED, &error))
    }

    /// Takes a process out of the trace, if it is in it.
    pub fn forget(&mut self, pid: u32) -> Result<(), KernelError> {
        let _ = self.reduced()?.remove(&pid);
        match self.processes()?.remove(&pid) {
            Ok(()) => self.processes_changed(),
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(map_error("PROCESSES", &error)),
        }
    }

    /// Processes in the trace, children that were not reported yet among them.
    pub fn traced(&mut self) -> Result<Vec<u32>, KernelError> {
        Ok(self.processes()?.keys().filter_map(Result::ok).collect())
    }

    /// Takes every process out of the trace: all programs return at once from here on.
    pub fn silence(&mut self) -> Result<(), KernelError> {
        const TRIES: usize = 100;
        // A fork may add a child while its parent is being removed.
        for _ in 0..TRIES {
            let pids = self.traced()?;
            if pids.is_empty() {
                break;
            }
            let mut processes = self.processes()?;
            for pid in pids {
                let _ = processes.remove(&pid);
            }
        }
        self.processes_changed()
    }

    fn processes(&mut self) -> Result<HashMap<&mut MapData, u32, ProcessState>, KernelError> {
        let map = self.ebpf.map_mut("PROCESSES").ok_or(no_map("PROCESSES"))?;
        HashMap::try_from(map).map_err(|error| map_error("PROCESSES", &error))
    }

    /// The unknown file that a stopped process has begun to run; returned once.
    pub fn new_image(&mut self, pid: u32) -> Option<ImageKey> {
        let mut images = HashMap::<_, u32, ImageKey>::try_from(self.ebpf.map_mut("NEW_IMAGES")?).ok()?;
        let found = images.get(&pid, 0).ok()?;
        let _ = images.remove(&pid);
        (found.inode != 0).then_some(found)
    }

    /// Programs with this loader, or of this file, need not be stopped from now on. What finds no room is stopped each time.
    pub fn know_image(&mut self, image: ImageKey) {
        let images = self.ebpf.map_mut("KNOWN_IMAGES").map(HashMap::<_, ImageKey, u32>::try_from);
        if let Some(Ok(mut images)) = images {
            let _ = images.insert(&image, &1, 0);
        }
    }

    /// No file is known from now on: each process reports, and waits for, what it maps next.
    pub fn forget_images(&mut self) {
        let images = self.ebpf.map_mut("KNOWN_IMAGES").map(HashMap::<_, ImageKey, u32>::try_from);
        if let Some(Ok(mut images)) = images {
            let known: Vec<ImageKey> = images.keys().filter_map(Result::ok).collect();
            for image in known {
                let _ = images.remove(&image);
            }
        }
    }

    /// Sets the layout of a process's Python interpreter.
    pub fn set_python(&mut self, pid: u32, layout: &PythonLayout) -> Result<(), KernelError> {
        self.interpreters()?.insert(&pid, layout, 0).map_err(|error| map_error("PYTHON", &error))
    }

    /// Forgets a process's Python interpreter.
    pub fn forget_python(&mut self, pid: u32) -> Result<(), KernelError> {
        // A missing entry is no error.
        let _ = self.interpreters()?.remove(&pid);
        Ok(())
    }

    fn interpreters(&mut self) -> Result<HashMap<&mut MapData, u32, PythonLayout>, KernelError> {
        let map = self.ebpf.map_mut("PYTHON").ok_or(no_map("PYTHON"))?;
        HashMap::try_from(map).map_err(|error| map_error("PYTHON", &error))
    }
}
