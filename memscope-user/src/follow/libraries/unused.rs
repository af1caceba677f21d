//! Gives files back that no traced process has mapped any more.
//!
//! A trace that follows a machine for months sees each container's libraries, and those of each version that was installed. An open file and
//! a probe keep a deleted file on the disk, and a file system from its end.

use std::collections::HashSet;

use memscope_common::config::{IMAGE_LOADER, IMAGE_OPEN};

use super::{
    Libraries, Probed,
    images::{image_key, is_probed_loader},
};
use crate::{
    kernel::{Kernel, LinkSet},
    os::maps::FileId,
};

impl Libraries {
    /// Files that are known here and that no process had mapped at this look and at the one before. `further`: those of other parts.
    pub(in crate::follow) fn unused(
        &mut self,
        mapped: &HashSet<FileId>,
        further: impl Iterator<Item = FileId>,
    ) -> HashSet<FileId> {
        let known = self.files.keys().chain(self.looked.keys()).copied().chain(further);
        let idle: HashSet<FileId> = known.filter(|id| !mapped.contains(id)).collect();
        let before = std::mem::replace(&mut self.idle, idle);
        self.idle.intersection(&before).copied().collect()
    }

    /// Closes these files and takes their probes out. What remains is made known to the kernel side again.
    pub(in crate::follow) fn forget(&mut self, kernel: &mut Kernel, unused: &HashSet<FileId>) {
        let is_unused = |id: &FileId| unused.contains(id);
        self.files.retain(|id, _| !is_unused(id));
        self.looked.retain(|id, _| !is_unused(id));
        self.unprobed.retain(|id, _| !is_unused(id));
        self.idle.retain(|id| !is_unused(id));
        let out: Vec<LinkSet> = self.take_unused(is_unused).map(|probed| probed.links).collect();
        self.presences.forget(&out);
        kernel.detach_sets(&out);
        let is_open = |id: &&FileId| self.files.get(id).is_some_and(|file| file.same_as.is_none());
        let probed = self.probed.iter().flat_map(|probed| &probed.ids);
        let open = probed.chain(self.unprobed.keys()).filter(is_open).chain(self.looked.keys());
        let loaders = self.files.iter().filter(|(_, file)| is_probed_loader(file)).map(|(id, _)| id);
        let open = open.map(|id| image_key(*id, IMAGE_OPEN));
        self.new_images = open.chain(loaders.map(|id| image_key(*id, IMAGE_LOADER))).collect();
    }

    /// Forgets which files were searched for what they may have, but for those that are mapped.
    pub(in crate::follow) fn forget_searched(&mut self, mapped: &HashSet<FileId>) {
        self.seen.retain(|id| mapped.contains(id));
        self.without_copy.retain(|(id, _)| mapped.contains(id));
    }

    /// Takes these numbers from the files with probes, and the files that have none left.
    fn take_unused(&mut self, is_unused: impl Fn(&FileId) -> bool) -> impl Iterator<Item = Probed> {
        self.probed.extract_if(.., move |probed| {
            probed.ids.retain(|id| !is_unused(id));
            probed.ids.is_empty()
        })
    }
}
