//! `/proc/<pid>/maps`: which files a process has mapped. Read as hostile input.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number as `maps` prints it.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}

/// One mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Which file.
    pub id: FileId,
    /// An address range that maps it, as `map_files` names it.
    pub range: String,
    /// Its path as the process sees it; ` (deleted)` cut off.
    pub path: PathBuf,
}

impl Mapped {
    /// Last part of the path.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or("")
    }
}

/// Longest text read: a process has at most 65 530 mappings by default (`vm.max_map_count`), of some 100 bytes each.
const MAX_BYTES: u64 = 64 << 20;

/// The text of a process's mappings, for [`lines`].
pub fn read(pid: u32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// The lines that make sense.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(line)
}

/// Executable files that `pid` has mapped, each once.
pub fn mapped_files(pid: u32) -> io::Result<Vec<Mapped>> {
    Ok(parse(&read(pid)?))
}

fn parse(text: &[u8]) -> Vec<Mapped> {
    let mut found: Vec<Mapped> = Vec::new();
    for mapped in lines(text).filter_map(executable_file) {
        if !found.iter().any(|other| other.id == mapped.id) {
            found.push(mapped);
        }
    }
    found
}

/// One line of the file.
#[expect(clippy::struct_excessive_bools, reason = "each is a right of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Addresses, as they stand there.
    pub range: &'a str,
    /// First address.
    pub start: u64,
    /// Behind the last address.
    pub end: u64,
    /// May be read.
    pub readable: bool,
    /// May be written.
    pub writable: bool,
    /// May be executed.
    pub executable: bool,
    /// Changes are the process's own.
    pub private: bool,
    /// Where in the file the mapping begins.
    pub file_offset: u64,
    /// The file; inode 0 is none.
    pub id: FileId,
    /// Path, or a name in brackets, or nothing; ` (deleted)` cut off.
    pub name: &'a [u8],
}

/// `start-end perms offset major:minor inode   path`
#[must_use]
pub fn line(line: &[u8]) -> Option<Line<'_>> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (head, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        std::str::from_utf8(head).ok()
    };
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let range = field()?;
    let (start, end) = range.split_once('-')?;
    let perms = field()?;
    let file_offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let name = rest.trim_ascii_start();
    Some(Line {
        range,
        start: hex(start)?,
        end: hex(end)?,
        readable: perms.contains('r'),
        writable: perms.contains('w'),
        executable: perms.contains('x'),
        private: perms.contains('p'),
        file_offset,
        id: FileId { device, inode },
        name: name.strip_suffix(b" (deleted)").unwrap_or(name),
    })
}

fn executable_file(Line { range, executable, id, name, .. }: Line<'_>) -> Option<Mapped> {
    if !executable || id.inode == 0 {
        return None;
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(name)).to_path_buf();
    path.is_absolute().then(|| Mapped { id, range: plain_range(range), path })
}

/// `map_files` names ranges without leading zeros.
pub(crate) fn plain_range(range: &str) -> String {
    let plain = |hex: &str| {
        let cut = hex.trim_start_matches('0');
        if cut.is_empty() { "0".to_owned() } else { cut.to_owned() }
    };
    range.split_once('-').map_or_else(|| range.to_owned(), |(start, end)| format!("{}-{}", plain(start), plain(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_file_mappings_are_found_once() {
        let text = b"00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus daemon\n\
            00651000-00652000 r--p 00051000 08:02 173521      /usr/bin/dbus daemon\n\
            7f00-7f10 r-xp 00001000 08:02 173521      /usr/bin/dbus daemon\n\
            7f20-7f30 r-xp 00000000 fe:10 77 /lib/libx.so (deleted)\n\
            7ffe-7fff r-xp 00000000 00:00 0                   [vdso]\n\
            garbage\n";
        let found = parse(text);
        let names: Vec<_> = found.iter().map(|mapped| (mapped.file_name(), mapped.range.as_str())).collect();
        assert_eq!(names, [("dbus daemon", "400000-452000"), ("libx.so", "7f20-7f30")]);
        assert_eq!(found[1].id, FileId { device: (0xfe, 0x10), inode: 77 });
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for text in [&b""[..], b"\n\n", b"- - - - -", b"0-0 x 0 :: 1 /a", b"\xff\xfe rwxp 0 1:1 5 \xff"] {
            let _ = parse(text);
        }
    }
}
