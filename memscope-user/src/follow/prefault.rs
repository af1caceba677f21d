//! Brings the constants of programs into memory, where the kernel side cannot wait for a page (before Linux 6.0).
//!
//! The text of a mark is often a literal that was never touched before the call. Its page is in the page cache, but not
//! in the process: a program of the kernel side cannot read it, and user space may be late, if the process ends soon.
//! Reading a byte of each page through `/proc/<pid>/mem` maps it, which the process cannot notice.

use crate::os::{
    maps::{self, Line},
    memory::Memory,
};

/// Larger mappings are data, not texts of marks.
const MAX_MAPPING_BYTES: u64 = 1 << 20;
/// Of one process.
const MAX_BYTES: u64 = 8 << 20;

/// Maps the pages, as far as possible. A page that is present costs a read, some 0.5 µs.
pub(super) fn bring_in(pid: u32, page_bytes: u32) {
    let (Ok(maps), Ok(memory)) = (maps::read(pid), Memory::open(pid)) else { return };
    for (start, end) in constants(&maps) {
        for page in (start..end).step_by(page_bytes as usize) {
            // The mapping may be gone by now.
            if memory.read(page, &mut [0]).is_none() {
                break;
            }
        }
    }
}

/// Mappings of files that can be read alone.
fn constants(maps: &[u8]) -> Vec<(u64, u64)> {
    let mut left = MAX_BYTES;
    let is_constant = |line: &Line<'_>| line.id.inode != 0 && line.readable && !line.writable && !line.executable;
    let lines = maps::lines(maps).filter(is_constant);
    let mut found = Vec::new();
    for Line { start, end, .. } in lines {
        let len = end.saturating_sub(start);
        if len <= MAX_MAPPING_BYTES && len <= left {
            left -= len;
            found.push((start, end));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_small_mappings_of_files_that_can_be_read_alone() {
        let maps = b"1000-2000 r--p 00000000 08:02 1 /app\n2000-3000 r-xp 00001000 08:02 1 /app\n\
            3000-4000 rw-p 00002000 08:02 1 /app\n5000-6000 r--p 00000000 00:00 0 [vvar]\n\
            7000-8000 ---p 00002000 08:02 1 /app\n100000-200000 r--p 00000000 08:02 2 /lib\n\
            200000-301000 r--p 00000000 08:02 3 /data\ngarbage\n";
        assert_eq!(constants(maps), [(0x1000, 0x2000), (0x10_0000, 0x20_0000)]);
        let one = |n: u64| format!("{:x}-{:x} r--p 00000000 08:02 {n} /lib\n", n << 24, (n << 24) + (1 << 20));
        let many: Vec<String> = (0..20).map(one).collect();
        // Inode 0 is none; eight of the others are the limit.
        assert_eq!(constants(many.concat().as_bytes()).len(), 8);
    }

    /// An untouched page of this program's own file is present afterwards.
    #[test]
    fn untouched_pages_are_mapped() {
        use std::os::fd::AsRawFd as _;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4 * 4096).expect("four pages");
        // SAFETY: a new mapping of a file that stays open.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 4 * 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let start = at.expose_provenance() as u64;
        let is_mapped = |page: u64| {
            let pagemap = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
            let mut word = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut word, (start / 4096 + page) * 8).expect("a word");
            u64::from_le_bytes(word) >> 63 == 1
        };
        let before: Vec<bool> = (0..4).map(is_mapped).collect();
        bring_in(std::process::id(), 4096);
        let after: Vec<bool> = (0..4).map(is_mapped).collect();
        assert_eq!((before, after), (vec![false; 4], vec![true; 4]));
    }
}
