//! Rows that are placed only if an output or an answer needs them: a probe costs the program at every call.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use super::{Libraries, Library};
use crate::{
    backend,
    capture::Note,
    error_chain,
    kernel::{Kernel, KernelError, LinkSet},
    os::elf::ElfFile,
    probes::{CallKind, FailingCall, LaunchCall, Layer, PoolCall, ProbeSpec},
};

/// The rows to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowChoice {
    /// Launches, and what only names them: kernel names and stream numbers.
    pub launches: bool,
    /// Allocations of ACL and the runtime, around those of the driver: caller, size, and final result.
    pub requests: bool,
    /// Blocks that other streams use: which call had them do so.
    pub stream_uses: bool,
}

impl RowChoice {
    /// All of them.
    pub const ALL: Self = Self { launches: true, requests: true, stream_uses: true };

    /// Whether a built-in row is among the chosen ones.
    #[must_use]
    pub const fn takes(self, spec: &ProbeSpec) -> bool {
        match (spec.layer, spec.meaning) {
            (
                Layer::Acl | Layer::Runtime,
                CallKind::Launch(LaunchCall::Launch | LaunchCall::KernelName | LaunchCall::StreamId),
            ) => self.launches,
            (Layer::Acl | Layer::Runtime, CallKind::Failing(FailingCall::Alloc | FailingCall::AllocHost)) => {
                self.requests
            }
            (_, CallKind::Pool(PoolCall::RecordStream)) => self.stream_uses,
            _ => true,
        }
    }
}

impl Libraries {
    /// A script was found, which may ask for anything at any time: places all optional rows, also in files that are
    /// probed already.
    pub(super) fn choose_all(&mut self, kernel: &mut Kernel) -> Result<(), KernelError> {
        let left_out = std::mem::replace(&mut self.choice, RowChoice::ALL);
        let specs: Vec<_> = backend::builtin().filter(|spec| !left_out.takes(spec)).collect();
        let mut rows = Vec::with_capacity(specs.len());
        for spec in specs {
            // Some are kept back for loaders.
            if kernel.room() <= super::LOADER_ROWS {
                self.unserved.push(spec.symbol);
                continue;
            }
            let number = kernel.add_row(&spec.row())?;
            self.note(Note::Rows { first: number, rows: vec![spec.describe()] });
            rows.push((number, spec));
        }
        self.rows.extend_from_slice(&rows);
        let files: Vec<(LinkSet, File, PathBuf)> = self
            .probed
            .iter()
            .filter_map(|known| Some((known.links, known.file.try_clone().ok()?, known.path.clone())))
            .collect();
        for (links, file, path) in files {
            let library = self.attach_more(kernel, links, (&file, &path), &rows)?;
            if !library.placed.is_empty() || library.error.is_some() {
                self.extended.push(library);
            }
        }
        Ok(())
    }

    /// Probes further rows of a file that is probed already.
    fn attach_more(
        &mut self,
        kernel: &mut Kernel,
        links: LinkSet,
        (file, path): (&File, &Path),
        rows: &[(u16, &'static ProbeSpec)],
    ) -> Result<Library, KernelError> {
        use std::os::fd::AsFd as _;

        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
        let rows: Vec<_> = rows.iter().filter(|(_, spec)| super::names::matches(spec, &name)).copied().collect();
        let mut plan = super::Plan::new(path);
        if rows.is_empty() {
            return Ok(plan.library);
        }
        match super::read_whole(file) {
            Ok(bytes) => match ElfFile::parse(&bytes) {
                Ok(elf) => self.plan_rows(&elf, &rows, &mut plan),
                Err(error) => plan.library.error = Some(error_chain(&error)),
            },
            Err(error) => plan.library.error = Some(error_chain(&error)),
        }
        match kernel.attach(links, file.as_fd(), &plan.points) {
            Err(error @ KernelError::Attach { .. }) => {
                plan.library.error = Some(error_chain(&error));
                plan.library.placed.clear();
            }
            attached => attached?,
        }
        Ok(plan.library)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(choice: RowChoice) -> Vec<&'static str> {
        backend::builtin().filter(|spec| !choice.takes(spec)).map(|spec| spec.symbol).collect()
    }

    /// No function on the path of launches is probed for a trace without launches, and no other row is left out.
    #[test]
    fn launches_are_left_out() {
        let found = left_out(RowChoice { launches: false, ..RowChoice::ALL });
        for symbol in ["rtKernelLaunch", "aclrtLaunchKernel", "rtsLaunchKernelWithConfig", "rtFunctionRegister"] {
            assert!(found.contains(&symbol), "{symbol}");
        }
        assert!(found.contains(&"aclrtStreamGetId") && found.contains(&"rtKernelLaunchFwk"));
        for symbol in ["rtSetDevice", "aclrtGetMemInfo", "rtMalloc", "halMemAlloc", "mstxMarkA"] {
            assert!(!found.contains(&symbol), "{symbol}");
        }
        assert!(left_out(RowChoice::ALL).is_empty());
    }

    /// No function around an allocation of the driver is probed if no analysis needs its caller.
    #[test]
    fn requests_are_left_out() {
        let found = left_out(RowChoice { requests: false, ..RowChoice::ALL });
        for symbol in ["aclrtMalloc", "aclrtMallocAlign32", "aclrtMallocPhysical", "rtMalloc", "rtMallocHost"] {
            assert!(found.contains(&symbol), "{symbol}");
        }
        for symbol in ["halMemAlloc", "halMemCreate", "halMemFree", "aclrtHostRegisterV2", "rtKernelLaunch"] {
            assert!(!found.contains(&symbol), "{symbol}");
        }
        assert_eq!(left_out(RowChoice { stream_uses: false, ..RowChoice::ALL }), ["NpuCachingAllocator::recordStream"]);
    }
}
