//! Libraries that a file needs, and the folders it names: read piece by piece, since whole libraries are large. The
//! file is hostile input.

use std::{
    ffi::OsString,
    fs::File,
    os::unix::{ffi::OsStringExt as _, fs::FileExt as _},
};

const MAX_SEGMENTS: usize = 128;
const MAX_DYNAMIC_BYTES: u64 = 64 << 10;
const MAX_NEEDED: usize = 256;
const MAX_STRING: usize = 4096;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;

/// Of a file with dynamic linking, or without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::follow) struct Needs {
    /// `DT_NEEDED`.
    pub(super) needed: Vec<OsString>,
    /// `DT_RPATH`, as it stands there.
    pub(super) rpath: Option<OsString>,
    /// `DT_RUNPATH`, as it stands there.
    pub(super) runpath: Option<OsString>,
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn read<const LEN: usize>(file: &File, at: u64) -> Option<[u8; LEN]> {
    let mut bytes = [0; LEN];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn piece(file: &File, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

impl Needs {
    /// Of a file; `None` if it is no program or library for this machine.
    pub(in crate::follow) fn of(file: &File) -> Option<Self> {
        let header: [u8; HEADER_BYTES] = read(file, 0)?;
        let fits = header.starts_with(b"\x7fELF\x02\x01") && short(&header, 18)? == MACHINE;
        let count = usize::from(short(&header, 56)?);
        let usable = fits && usize::from(short(&header, 54)?) == SEGMENT_BYTES && count <= MAX_SEGMENTS;
        usable.then_some(())?;
        let segments = piece(file, long(&header, 32)?, count * SEGMENT_BYTES)?;
        let (segments, _) = segments.as_chunks::<SEGMENT_BYTES>();
        Some(Self::dynamic(file, segments).unwrap_or_default())
    }

    /// Whether it names folders of its own.
    pub(in crate::follow) const fn names_folders(&self) -> bool {
        self.rpath.is_some() || self.runpath.is_some()
    }

    fn dynamic(file: &File, segments: &[[u8; SEGMENT_BYTES]]) -> Option<Self> {
        let of_kind = |wanted: u64| {
            segments.iter().filter(move |segment| long(*segment, 0).is_some_and(|kind| kind & 0xffff_ffff == wanted))
        };
        let dynamic = of_kind(DYNAMIC).next()?;
        let len = long(dynamic, 32)?.min(MAX_DYNAMIC_BYTES) as usize;
        let bytes = piece(file, long(dynamic, 8)?, len)?;
        let (entries, _) = bytes.as_chunks::<16>();
        let entries: Vec<(u64, u64)> = entries
            .iter()
            .filter_map(|entry| Some((long(entry, 0)?, long(entry, 8)?)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let (address, strings_len) = (value(5)?, value(10)?);
        let strings = of_kind(LOAD).find_map(|segment| {
            let into = address.checked_sub(long(segment, 16)?)?;
            (into < long(segment, 32)?).then(|| long(segment, 8)?.checked_add(into))?
        })?;
        let text = |at: u64| {
            (at < strings_len).then_some(())?;
            let mut bytes = vec![0; MAX_STRING.min(usize::try_from(strings_len - at).ok()?)];
            let len = file.read_at(&mut bytes, strings.checked_add(at)?).ok()?;
            bytes.truncate(bytes[..len].iter().position(|byte| *byte == 0)?);
            (!bytes.is_empty()).then(|| OsString::from_vec(bytes))
        };
        let needed = entries.iter().filter(|(tag, _)| *tag == 1).take(MAX_NEEDED);
        Some(Self {
            needed: needed.filter_map(|(_, at)| text(*at)).collect(),
            rpath: value(15).and_then(text),
            runpath: value(29).and_then(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, os::unix::ffi::OsStrExt as _};

    use super::*;

    /// Makes sure that this test needs the C library, and that a text needs nothing.
    #[test]
    fn needs_of_this_program() {
        let own = Needs::of(&File::open("/proc/self/exe").expect("open")).expect("a program");
        assert!(own.needed.iter().any(|name| name.as_bytes().starts_with(b"libc.so")), "{own:?}");
        let mut text = tempfile::tempfile().expect("a file");
        text.write_all(&[b'x'; 500]).expect("written");
        assert_eq!(Needs::of(&text), None);
    }

    /// Makes sure that no cut and no changed byte of headers makes it panic.
    #[test]
    fn damaged_files() {
        let bytes = fs::read("/bin/true").expect("readable");
        let of = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(bytes).expect("written");
            Needs::of(&file)
        };
        assert!(of(&bytes).is_some_and(|needs| !needs.needed.is_empty()));
        for len in (0..bytes.len().min(1200)).step_by(7).chain([bytes.len() / 2]) {
            let _ = of(&bytes[..len]);
        }
        for at in 0..900.min(bytes.len()) {
            let mut changed = bytes.clone();
            changed[at] = 0xff;
            let _ = of(&changed);
        }
    }
}
