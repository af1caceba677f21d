//! Which allocator a process has: others than glibc's are named, since their blocks are not understood.

use crate::holders::source::{Mapping, Source};

/// Libraries that bring an allocator, by the start of their names.
const LIBRARIES: [(&str, &str); 6] = [
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libsnmalloc", "snmalloc"),
    ("libhoard", "Hoard"),
    ("libscudo", "Scudo"),
];
/// musl's C library, and its loader, which is the same file.
const MUSL: [&str; 2] = ["ld-musl-", "libc.musl-"];

/// Allocators with descriptions of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    Jemalloc,
    Tcmalloc,
}

/// The library of such an allocator, by its first mapping. Builds for debugging put heads of their own in front.
pub(super) fn paged(source: &dyn Source) -> Option<(&Mapping, Make)> {
    let files = source.mappings().iter().filter(|mapping| mapping.is_file() && mapping.file_offset == 0);
    let mut found = files.filter_map(|mapping| {
        let name = mapping.file_name();
        let make = match LIBRARIES.iter().find(|(library, _)| name.starts_with(library))?.1 {
            "jemalloc" => Make::Jemalloc,
            "tcmalloc" if !name.contains("_debug") => Make::Tcmalloc,
            _ => return None,
        };
        Some((mapping, make))
    });
    found.next()
}

/// The allocator behind `malloc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::holders) enum Allocator {
    Glibc,
    /// Its name.
    Other(String),
}

/// Recognised by its mappings.
pub(in crate::holders) fn allocator(source: &dyn Source) -> Allocator {
    let files = source.mappings().iter().filter(|mapping| mapping.is_file());
    let mut has_glibc = false;
    for name in files.map(Mapping::file_name) {
        if let Some((_, allocator)) = LIBRARIES.iter().find(|(library, _)| name.starts_with(library)) {
            return Allocator::Other(format!("{allocator} ({name})"));
        }
        if MUSL.iter().any(|musl| name.starts_with(musl)) {
            return Allocator::Other("musl's allocator".to_owned());
        }
        has_glibc |= name.starts_with("libc.so") || name.starts_with("libc-2.");
    }
    if has_glibc { Allocator::Glibc } else { Allocator::Other("an allocator linked into the program".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::image::Image;

    #[test]
    fn allocators_by_what_is_mapped() {
        let of = |files: &[&str]| {
            let mut image = Image::default();
            for (at, file) in (1_u64..).zip(files) {
                image.file(at << 20, 4096, file);
            }
            allocator(&image)
        };
        let other = |name: &str| Allocator::Other(name.to_owned());
        assert_eq!(of(&["/usr/bin/python3", "/lib/x86_64-linux-gnu/libc.so.6"]), Allocator::Glibc);
        assert_eq!(of(&["/lib/libc-2.28.so"]), Allocator::Glibc);
        assert_eq!(of(&["/lib/libc.so.6", "/usr/lib/libjemalloc.so.2"]), other("jemalloc (libjemalloc.so.2)"));
        assert_eq!(of(&["/usr/lib/libtcmalloc_minimal.so.4"]), other("tcmalloc (libtcmalloc_minimal.so.4)"));
        assert_eq!(of(&["/lib/ld-musl-x86_64.so.1"]), other("musl's allocator"));
        assert_eq!(of(&["/bin/static"]), other("an allocator linked into the program"));
    }
}
