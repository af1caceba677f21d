//! Blocks by the storages of tensors, where no pool is known that has them: memory of another process, of an allocator that the program brings, of a device
//! of another make. Objects of a known class lie on the heap; what was freed has no block there.

use std::collections::BTreeMap;

use super::{Graph, rules};

/// In a storage: counts of references, of four bytes each, and of eight in 2.1 (`c10/util/intrusive_ptr.h`).
const COUNTS: u64 = 8;
const ADDRESS: u64 = 0x10;
const ADDRESS_OLD: u64 = 0x18;
/// Behind its address: the kind of its device, and its size (`c10/core/StorageImpl.h`, `c10/core/Allocator.h`, 2.1 to 2.14).
const DEVICE: u64 = 0x18;
const SIZE: u64 = 0x20;
/// Kind of a device: memory of the host.
const HOST: u8 = 0;
/// No device has more.
const MAX_BYTES: u64 = 1 << 44;

impl Graph<'_> {
    /// Addresses and sizes of all storages on devices, one for each address.
    pub(in crate::holders) fn storages(&self) -> BTreeMap<u64, u64> {
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        for pointer in self.pointers.device() {
            if let Some(size_bytes) = self.size_of_storage(pointer.place) {
                let known = found.entry(pointer.target).or_default();
                *known = size_bytes.max(*known);
            }
        }
        found
    }

    /// The size of the storage with its address at a place.
    fn size_of_storage(&self, place: u64) -> Option<u64> {
        let node = self.node(place)?;
        if !node.class().is_some_and(rules::is_storage) {
            return None;
        }
        let word = |at| self.memory.word(at);
        let is_address = match place - node.start {
            ADDRESS => true,
            // A second count stands in front of it, not an address.
            ADDRESS_OLD => u32::try_from(word(node.start + ADDRESS)?).is_ok(),
            _ => false,
        };
        let is_used = is_address && word(node.start + COUNTS)? as u32 > 0 && word(place + DEVICE)? as u8 != HOST;
        word(place + SIZE).filter(|size_bytes| is_used && (1..MAX_BYTES).contains(size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use crate::holders::sample::{DEVICE, Sample};

    /// A tensor on a device, a view of it, one of the host, one without memory, and one as 2.1 has it: blocks of 4096 and of 128 bytes.
    #[test]
    fn tensors_without_a_pool() {
        const NPU: u64 = 20;
        let mut sample = Sample::new();
        let old = sample.cpp("N3c1011StorageImplE", &[1, 1, DEVICE + 0x30000, 0, 0, NPU, 128]);
        let old = sample.cpp("N3c1010TensorImplE", &[1, old, 0, 0]);
        let old = sample.tensor_of(old);
        let mut tensor = |address: u64, kind: u64, size_bytes: u64| {
            let storage = sample.cpp("N3c1011StorageImplE", &[1, address, 0, 0, kind, size_bytes]);
            let implementation = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
            sample.tensor_of(implementation)
        };
        let (own, view) = (tensor(DEVICE, NPU, 4096), tensor(DEVICE, NPU, 64));
        let (host, empty) = (tensor(DEVICE + 0x10000, 0, 512), tensor(DEVICE + 0x20000, NPU, 0));
        sample.module("__main__", &[("own", own), ("view", view), ("host", host), ("empty", empty), ("old", old)]);
        let found = sample.ask_all();
        assert_eq!((found.asked.blocks, found.asked.size_bytes, found.groups.len()), (2, 4096 + 128, 2));
        assert_eq!(found.groups[0].addresses, [DEVICE]);
        let mut paths: Vec<String> = found.groups[0].held_by.iter().map(|holder| holder.path.clone()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["__main__.own", "__main__.view"]);
        assert!(found.pool.is_none() && found.notes.iter().any(|note| note.contains("storages")), "{:?}", found.notes);
    }
}
