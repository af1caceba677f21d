//! The files that a process runs and has mapped, and whether user space knows them.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::task_struct,
    helpers::generated::{bpf_find_vma, bpf_get_current_task_btf},
    macros::map,
    maps::HashMap,
};
use memscope_common::config::{IMAGE_LOADER, IMAGE_OPEN, IMAGE_SEEN, IMAGE_STATIC, ImageKey};

use crate::{
    current,
    kernel_memory::{field, pointer},
    settings::setting,
    user_memory,
    verifier::{bpf_loop, read_once},
};

/// Probed loaders, programs without a loader and libraries that user space has examined. Full: further ones are not
/// learnt.
#[map]
static KNOWN_IMAGES: HashMap<ImageKey, u32> = HashMap::with_max_entries(16384, 0);

/// Fills the key that is its last argument.
type TakeFile = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut ImageKey) -> u64;

/// The loader of the program that the current process begins, or the program if it has none; inode
/// 0 if unknown.
#[inline(always)]
pub(super) fn of_program() -> ImageKey {
    let mut key = ImageKey::default();
    if setting!(offsets.known) == 0 {
        return key;
    }
    let mm = pointer(current::task(), setting!(offsets.task_mm));
    match loader_base(mm) {
        None => {}
        Some(0) => fill(&mut key, pointer(mm, setting!(offsets.mm_exe_file)), IMAGE_STATIC),
        Some(base) => {
            find_file(base, take_loader, &mut key);
        }
    }
    key
}

/// Whether user space knows the loader or program.
#[inline(always)]
pub(super) fn is_known_program(key: &ImageKey) -> bool {
    // SAFETY: a live map value, not read.
    key.inode != 0 && unsafe { KNOWN_IMAGES.get(key) }.is_some()
}

/// `AT_BASE` of a program: where its loader is mapped; 0 if it has none.
#[inline(always)]
fn loader_base(mm: *mut c_void) -> Option<u64> {
    const AT_BASE: u64 = 7;
    const ENTRIES: u32 = 16;
    const ENTRY_BYTES: u32 = 16;
    for index in 0..ENTRIES {
        let at = setting!(offsets.mm_auxv) + index * ENTRY_BYTES;
        if field::<u64>(mm, at) == AT_BASE {
            return Some(field::<u64>(mm, at + 8));
        }
    }
    None
}

/// Fills the key of the file mapped at an address. Returns whether anything is mapped there.
#[inline(always)]
fn find_file(address: u64, take: TakeFile, key: &mut ImageKey) -> bool {
    // SAFETY: the callback takes a task, a mapping and a key; a helper without arguments gives the
    // task.
    unsafe {
        let task: *mut task_struct = bpf_get_current_task_btf();
        bpf_find_vma(task, address, take as *mut c_void, (&raw mut *key).cast(), 0) == 0
    }
}

#[inline(never)]
unsafe extern "C" fn take_loader(_task: *mut c_void, vma: *mut c_void, key: *mut ImageKey) -> u64 {
    // SAFETY: the caller's.
    fill(unsafe { &mut *key }, pointer(vma, setting!(offsets.vma_file)), IMAGE_LOADER);
    0
}

#[inline(never)]
unsafe extern "C" fn take_library(_task: *mut c_void, vma: *mut c_void, key: *mut ImageKey) -> u64 {
    let file = pointer(vma, setting!(offsets.vma_file));
    // SAFETY: the caller's.
    let key = unsafe { &mut *key };
    fill(key, file, IMAGE_SEEN);
    let inode = pointer(file, setting!(offsets.file_inode));
    key.generation = field::<u32>(inode, setting!(offsets.inode_generation));
    key.size = field::<u32>(inode, setting!(offsets.inode_size));
    0
}

/// Fills the key of a file.
#[inline(always)]
fn fill(key: &mut ImageKey, file: *mut c_void, kind: u32) {
    let inode = pointer(file, setting!(offsets.file_inode));
    let superblock = pointer(inode, setting!(offsets.inode_super));
    key.inode = field::<u64>(inode, setting!(offsets.inode_number));
    key.device = field::<u32>(superblock, setting!(offsets.super_device));
    key.kind = kind;
}

/// A walk along the loader's list of loaded libraries.
#[repr(C)]
struct Walk {
    /// Address of the next entry (`link_map`); 0 is the end.
    next: u64,
    /// The file of the entry, once it is found.
    key: ImageKey,
    /// 1: adds all files to the known ones.
    learns: u64,
    /// 1: a file was unknown, or not found.
    unknown: u64,
}

/// Whether all files in the loader's list are known. `LEARNS`: adds them.
#[inline(always)]
pub(super) fn all_known<const LEARNS: bool>(first: u64) -> bool {
    const MAX_LIBRARIES: u64 = 8192;
    if first == 0 {
        return false;
    }
    let mut walk = Walk { next: first, key: ImageKey::default(), learns: LEARNS.into(), unknown: 0 };
    // SAFETY: the callback takes a number and a walk.
    unsafe { bpf_loop(MAX_LIBRARIES, next_library as *mut c_void, (&raw mut walk).cast()) };
    // SAFETY: a local variable, which the loop changes.
    unsafe { read_once(&raw const walk.unknown) == 0 && read_once(&raw const walk.next) == 0 }
}

/// Looks at one entry of a [`Walk`].
#[inline(never)]
unsafe extern "C" fn next_library(_index: u32, walk: *mut Walk) -> u64 {
    /// `l_addr`, `l_name`, `l_ld`, `l_next`.
    const DYNAMIC: usize = 2;
    const NEXT: usize = 3;
    // SAFETY: the caller's.
    let walk = unsafe { &mut *walk };
    let mut entry = [0_u64; 4];
    if walk.next == 0 || !user_memory::copy_waiting(&mut entry, walk.next) {
        return 1;
    }
    let found = find_file(entry[DYNAMIC], take_library, &mut walk.key);
    walk.next = entry[NEXT];
    let known = found && is_known_library(&walk.key);
    if walk.learns != 0 && found && !known {
        let _ = KNOWN_IMAGES.insert(&walk.key, &1, 0);
    } else if !known {
        walk.unknown = 1;
        return 1;
    }
    0
}

/// Whether user space knows the library. One without a file is the kernel's own (the vDSO).
#[inline(always)]
fn is_known_library(key: &ImageKey) -> bool {
    let open = ImageKey { kind: IMAGE_OPEN, generation: 0, size: 0, ..*key };
    // SAFETY: live map values, not read.
    key.inode == 0 || unsafe { KNOWN_IMAGES.get(key).is_some() || KNOWN_IMAGES.get(&open).is_some() }
}
