//! `/etc/ld.so.cache` and `/etc/ld.so.conf`. Read as hostile input: no panics, and bounded results.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use memchr::memmem;

use super::root::Root;

const MAX_BYTES: u64 = 16 << 20;
/// Libraries in a cache.
const MAX_ENTRIES: usize = 1 << 16;
const MAX_PATH: usize = 4096;
/// Folders that configurations name, and files that they include.
const MAX_FOLDERS: usize = 256;
const MAX_INCLUDED: usize = 256;
const MAX_NESTING: usize = 4;

/// The format since glibc 2.2; alone, or behind an older one.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Magic, number of entries, bytes of strings, flags, place of extensions, and room.
const HEADER_BYTES: usize = 48;
/// Flags, name, path, version of the system, capabilities of the processor.
const ENTRY_BYTES: usize = 24;
/// `FLAG_ELF_LIBC6`, with the flags of its class and machine.
const FLAGS: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// Names and paths of the libraries for this machine.
pub(super) fn parse(bytes: &[u8]) -> Vec<(&OsStr, &Path)> {
    // Places of strings count from here, too.
    let Some(cache) = memmem::find(bytes, MAGIC).and_then(|at| bytes.get(at..)) else { return Vec::new() };
    let count = word(cache, MAGIC.len()).map_or(0, |count| count as usize).min(MAX_ENTRIES);
    let entries = cache.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<ENTRY_BYTES>().0.iter().take(count);
    let text = |at: u32| {
        let text = cache.get(at as usize..)?;
        let len = text.iter().take(MAX_PATH).position(|byte| *byte == 0)?;
        Some(OsStr::from_bytes(&text[..len]))
    };
    let library = |entry: &[u8; ENTRY_BYTES]| {
        (word(entry, 0)? == FLAGS).then_some(())?;
        let (name, path) = (text(word(entry, 4)?)?, Path::new(text(word(entry, 8)?)?));
        path.is_absolute().then_some((name, path))
    };
    entries.filter_map(library).collect()
}

/// The contents of a file below a root, unless it is too large for such a file.
pub(super) fn read(root: &Root, path: &Path) -> Option<Vec<u8>> {
    let file: File = root.open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_BYTES).then_some(bytes)
}

/// Folders that a configuration names, with those of the files that it includes.
pub(super) fn folders(root: &Root, path: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), MAX_INCLUDED);
    collect(root, path, MAX_NESTING, &mut left, &mut found);
    found
}

fn collect(root: &Root, path: &Path, nesting: usize, left: &mut usize, found: &mut Vec<PathBuf>) {
    let Some(rest) = left.checked_sub(1) else { return };
    *left = rest;
    let bytes = read(root, path).unwrap_or_default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
        if let Some(patterns) =
            line.strip_prefix(b"include").filter(|rest| rest.first().is_some_and(u8::is_ascii_whitespace))
        {
            let Some(nesting) = nesting.checked_sub(1) else { continue };
            for pattern in patterns.split(u8::is_ascii_whitespace).filter(|pattern| !pattern.is_empty()) {
                let pattern = path.parent().unwrap_or(Path::new("/")).join(OsStr::from_bytes(pattern));
                for path in included(root, &pattern) {
                    collect(root, &path, nesting, left, found);
                }
            }
        } else if line.starts_with(b"/") && line.len() < MAX_PATH && found.len() < MAX_FOLDERS {
            found.push(PathBuf::from(OsString::from(OsStr::from_bytes(line))));
        }
    }
}

/// Files that match a pattern. One `*` in its last part matches anything, as in all patterns in use.
fn included(root: &Root, pattern: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name()) else { return Vec::new() };
    let Some(star) = name.as_bytes().iter().position(|byte| *byte == b'*') else { return vec![pattern.to_owned()] };
    let (head, tail) = (&name.as_bytes()[..star], &name.as_bytes()[star + 1..]);
    let names = root.names(folder).into_iter().filter(|name| {
        let name = name.as_bytes();
        name.len() >= head.len() + tail.len()
            && name.starts_with(head)
            && name.ends_with(tail)
            && !name.starts_with(b".")
    });
    names.map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A cache as `ldconfig` writes it, behind `before`.
    fn cache(before: &[u8], entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let first = HEADER_BYTES + ENTRY_BYTES * entries.len();
        for (flags, name, path) in entries {
            let mut put = |text: &str| {
                let at = (first + strings.len()) as u32;
                strings.extend([text.as_bytes(), &[0]].concat());
                at
            };
            let words = [*flags, put(name), put(path), 0, 0, 0];
            table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let head = [entries.len() as u32, strings.len() as u32, 2, 0, 0, 0, 0];
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        [before, MAGIC, &head, &table, &strings].concat()
    }

    const SAMPLE: [(u32, &str, &str); 4] = [
        (FLAGS, "liba.so.1", "/lib/liba.so.1"),
        (3, "liba.so.1", "/lib32/liba.so.1"),
        (FLAGS, "libb.so", "/opt/b/libb.so"),
        (FLAGS, "libc.so", "relative/libc.so"),
    ];

    /// Makes sure that libraries of this machine are found in a cache, alone and behind the old format, and no others.
    #[test]
    fn libraries_in_caches() {
        let expected = [("liba.so.1", "/lib/liba.so.1"), ("libb.so", "/opt/b/libb.so")];
        let expected = expected.map(|(name, path)| (OsStr::new(name), Path::new(path)));
        assert_eq!(parse(&cache(b"", &SAMPLE)), expected);
        assert_eq!(parse(&cache(b"ld.so-1.7.0\0\0\0\0\0", &SAMPLE)), expected);
        assert_eq!(parse(b"ld.so-1.7.0"), []);
    }

    /// No cut, changed byte or count causes a panic, or a name that is not in the file.
    #[test]
    fn damaged_caches() {
        let whole = cache(b"", &SAMPLE);
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).len() <= 2);
        }
        for at in 0..whole.len() {
            for value in [0, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                assert!(parse(&bytes).iter().all(|(_, path)| path.is_absolute()));
            }
        }
        let mut endless = whole;
        endless[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(parse(&endless).len(), 2);
    }

    /// A configuration's folders are found, with those of files that it includes by a pattern, and one that includes
    /// itself ends.
    #[test]
    fn folders_of_configurations() {
        let place = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("conf.d")).expect("a folder");
        fs::write(
            at("conf"),
            "# none\ninclude conf.d/*.conf\n /opt/x # why\nhwcap 0 nosegneg\nrelative\ninclude conf\n",
        )
        .expect("written");
        fs::write(at("conf.d/b.conf"), "/opt/b").expect("written");
        fs::write(at("conf.d/a.conf"), "/opt/a\n").expect("written");
        fs::write(at("conf.d/.hidden.conf"), "/opt/hidden").expect("written");
        fs::write(at("conf.d/c.other"), "/opt/other").expect("written");
        let found = folders(&Root::own().expect("a root"), &at("conf"));
        assert_eq!(found[..3], ["/opt/a", "/opt/b", "/opt/x"].map(PathBuf::from));
        assert!(
            found.len() <= 3 * MAX_NESTING + 3
                && !found.iter().any(|path| path.ends_with("hidden") || path.ends_with("other"))
        );
    }
}
