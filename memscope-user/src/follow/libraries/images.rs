//! Files that the kernel side recognises when a process maps them, so that the process need not wait.

use memscope_common::config::{IMAGE_LOADER, IMAGE_OPEN, ImageKey, MINOR_BITS};

use super::{Libraries, Library, names::is_loader};
use crate::os::maps::{FileId, mapped_files};

impl Libraries {
    /// Makes an examined file known to the kernel side, if it is kept open.
    pub(super) fn note_open(&mut self, id: FileId, library: &Library) {
        if library.error.is_none() && library.same_as.is_none() {
            self.new_images.push(image_key(id, IMAGE_OPEN));
        }
    }

    /// Makes a probed loader known to the kernel side.
    pub(super) fn note_loader(&mut self, id: FileId, library: &Library) {
        if is_probed_loader(library) {
            self.new_images.push(image_key(id, IMAGE_LOADER));
        }
    }

    /// Loaders that were probed, and files kept open, since the last call. Some file systems give files other numbers
    /// than the kernel has for them.
    pub fn take_images(&mut self) -> impl Iterator<Item = ImageKey> + use<> {
        std::mem::take(&mut self.new_images).into_iter()
    }

    /// Whether the loader that a process has mapped is probed.
    #[must_use]
    pub fn has_probed_loader(&self, pid: u32) -> bool {
        let mapped = mapped_files(pid).unwrap_or_default();
        let mut loaders = mapped.iter().filter(|mapped| is_loader(mapped.file_name())).peekable();
        loaders.peek().is_some() && loaders.all(|mapped| self.files.get(&mapped.id).is_some_and(is_probed_loader))
    }
}

pub(super) fn image_key(id: FileId, kind: u32) -> ImageKey {
    ImageKey { inode: id.inode, device: id.device.0 << MINOR_BITS | id.device.1, kind, generation: 0, size: 0 }
}

/// Whether a file is a probed loader, under this name or another.
pub(super) fn is_probed_loader(library: &Library) -> bool {
    let name = library.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    is_loader(name) && (!library.placed.is_empty() || library.same_as.is_some())
}
