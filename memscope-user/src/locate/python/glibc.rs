//! Where glibc keeps a thread's values, from the descriptors that it has for debuggers (`libthread_db`).

use memscope_common::PythonLayout;

use crate::os::{
    elf::{ElfFile, Machine},
    memory::Memory,
};

/// glibc's description of `struct pthread`; offsets and sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pthread {
    /// Pointers to the blocks of values.
    specific: u32,
    /// One entry of a block.
    entry: u32,
    /// The value in an entry.
    value: u32,
    /// Entries of a block.
    per_block: u32,
    /// From the thread pointer to the struct.
    from_thread_pointer: i32,
}

/// Blocks of a thread.
const BLOCKS: u32 = 32;

impl Pthread {
    /// From a file that may be glibc's; `None` if it is not.
    pub(super) fn of_file(file: &ElfFile<'_>) -> Option<Self> {
        const NAMES: [&[u8]; 5] = [
            b"_thread_db_pthread_specific",
            b"_thread_db_pthread_key_data_data",
            b"_thread_db_sizeof_pthread_key_data",
            b"_thread_db_sizeof_pthread_key_data_level2",
            b"_thread_db_sizeof_pthread",
        ];
        let mut found = [None; NAMES.len()];
        for symbol in file.symbols().ok()?.filter(|symbol| symbol.defined) {
            if let Some(at) = NAMES.iter().position(|name| *name == symbol.name) {
                found[at] = Some(symbol.vaddr);
            }
        }
        let word = |which: usize, index: usize| {
            let bytes = file.bytes_at(found[which]?, 12)?;
            bytes.get(4 * index..)?.first_chunk().copied().map(u32::from_le_bytes)
        };
        // A descriptor is: bits of an element, elements, offset. A size is one word.
        let (specific, value, entry) = (word(0, 2)?, word(1, 2)?, word(2, 0)?);
        let (block, size) = (word(3, 0)?, word(4, 0)?);
        let from_thread_pointer = match file.machine() {
            Machine::Aarch64 => i32::try_from(size).ok()?.checked_neg()?,
            _ => 0,
        };
        let per_block = block.checked_div(entry)?;
        let sound = (1..=64).contains(&per_block)
            && entry <= 64
            && value.checked_add(8)? <= entry
            && specific < size
            && size <= 1 << 16;
        sound.then_some(Self { specific, entry, value, per_block, from_thread_pointer })
    }

    /// Keys with which the thread `pthread` keeps one of `values`.
    pub(super) fn keys(&self, memory: &Memory, pthread: u64, values: &[u64]) -> Vec<u32> {
        let mut keys = Vec::new();
        for block in 0..BLOCKS {
            let at = pthread.wrapping_add(u64::from(self.specific) + 8 * u64::from(block));
            let Some(start) = memory.word(at).filter(|start| *start != 0) else { continue };
            let mut bytes = vec![0; (self.per_block * self.entry) as usize];
            if memory.read(start, &mut bytes).is_none() {
                continue;
            }
            let value = |index: u32| bytes.get((index * self.entry + self.value) as usize..)?.first_chunk();
            let holds = |index: &u32| value(*index).is_some_and(|word| values.contains(&u64::from_le_bytes(*word)));
            keys.extend((0..self.per_block).filter(holds).map(|index| block * self.per_block + index));
        }
        keys
    }

    /// Sets the place of a thread's value for the key.
    pub(super) fn fill(&self, layout: &mut PythonLayout, key: u32) {
        let block = (key / self.per_block) as i32;
        layout.self_at = self.from_thread_pointer;
        layout.block_at = self.from_thread_pointer + self.specific as i32 + 8 * block;
        layout.value_at = key % self.per_block * self.entry + self.value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leads_to_block_and_entry() {
        // glibc 2.36 on x86-64, and as it would be with the struct before the thread pointer.
        let mut pthread = Pthread { specific: 0x510, entry: 16, value: 8, per_block: 32, from_thread_pointer: 0 };
        let mut layout = PythonLayout::default();
        pthread.fill(&mut layout, 3);
        assert_eq!((layout.self_at, layout.block_at, layout.value_at), (0, 0x510, 3 * 16 + 8));
        pthread.from_thread_pointer = -0x7c0;
        pthread.fill(&mut layout, 65);
        assert_eq!((layout.self_at, layout.block_at, layout.value_at), (-0x7c0, 0x510 - 0x7c0 + 16, 16 + 8));
    }
}
