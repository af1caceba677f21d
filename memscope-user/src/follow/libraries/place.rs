//! Puts the probes of one file into it, once.

use std::{fs::File, io, os::fd::AsFd as _, path::Path};

use super::{Libraries, Library, Probed, RowChoice, plan::Plan};
use crate::{
    error_chain,
    kernel::{Kernel, KernelError, same_file::Likeness},
    os::maps::FileId,
};

impl Libraries {
    /// Probes an open file, unless it is one that has its probes under another name.
    pub(super) fn attach_file(
        &mut self,
        kernel: &mut Kernel,
        id: FileId,
        path: &Path,
        file: io::Result<File>,
    ) -> Result<Library, KernelError> {
        let Plan { mut library, points, ops, presence, likeness, file } = self.plan_file(Some(kernel), path, file)?;
        let Some((file, likeness)) = file.zip(likeness) else { return Ok(library) };
        if let Some(known) = self.same(kernel, &likeness, &file) {
            known.ids.push(id);
            return Ok(Library { same_as: Some(known.path.clone()), ..Library::at(path) });
        }
        let op_points = self.number_ops(kernel, ops)?;
        let is_of_scripts = presence.is_some();
        let links = kernel.new_set();
        if let Err(error) = kernel.attach(links, file.as_fd(), &points) {
            kernel.detach_sets(&[links]);
            library.error = Some(refused(error)?);
            library.placed.clear();
            library.ops = None;
            return Ok(library);
        }
        if let Err(error) = kernel.attach_objects(links, file.as_fd(), &op_points) {
            // Its other functions are probed.
            library.error = Some(refused(error)?);
            library.ops = None;
        }
        if points.is_empty() && op_points.is_empty() {
            self.unprobed.insert(id, file);
            return Ok(library);
        }
        if let Some(place) = presence
            && let Ok(file) = file.try_clone()
        {
            self.unannounced.push((links, (place, file, path.to_path_buf())));
        }
        self.probed.push(Probed { ids: vec![id], links, likeness, file, path: path.to_path_buf() });
        if is_of_scripts && self.choice != RowChoice::ALL {
            self.choose_all(kernel)?;
        }
        Ok(library)
    }

    /// A file that is the same and has its probes.
    fn same(&mut self, kernel: &mut Kernel, likeness: &Likeness, file: &File) -> Option<&mut Probed> {
        let mut alike = self.probed.iter_mut().filter(|known| known.likeness == *likeness);
        alike.find(|known| likeness.is_same(kernel, &known.file, file))
    }
}

/// Why a file cannot be probed, as others can; any other failure is the trace's.
fn refused(error: KernelError) -> Result<String, KernelError> {
    match error {
        KernelError::Attach { .. } => Ok(error_chain(&error)),
        other => Err(other),
    }
}
