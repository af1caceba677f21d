//! Contents of watched blocks (contract §5.3): files of bytes, or one list of checksums per device.
//!
//! The reference puts the checksums of all devices into the file of the first; here each device has its own.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::SinkError;
use super::row::Name;
use super::tree::{FILE_MODE, OutputTree, ProcessDir, stamp};
use crate::hash::HashMap;

const HEADER: &str = "Tensor info,Check data sum\n";
const DIRECTORY: &str = "watch_dump";
const EXTENSION: &str = ".bin";
/// Longest name of a file, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Files of one process.
#[derive(Debug)]
pub struct WatchFiles {
    tree: OutputTree,
    process: ProcessDir,
    sums: HashMap<u32, (File, PathBuf)>,
}

impl WatchFiles {
    /// Files below a process's directory.
    #[must_use]
    pub fn new(tree: OutputTree, process: ProcessDir) -> Self {
        Self { tree, process, sums: HashMap::default() }
    }

    /// Writes a checksum under the name that the bytes would have. Gives the path of the file if it is new.
    pub fn write_sum(&mut self, device: u32, stem: &str, sum: u64) -> Result<Option<PathBuf>, SinkError> {
        self.write_line(device, stem, Some(sum))
    }

    fn write_line(&mut self, device: u32, stem: &str, sum: Option<u64>) -> Result<Option<PathBuf>, SinkError> {
        let mut new = None;
        if !self.sums.contains_key(&device) {
            let name = format!("watch_dump_data_check_sum_{}.csv", stamp(&jiff::Zoned::now()));
            let (mut file, place) =
                self.tree.create(&self.process, &[&format!("device_{device}"), DIRECTORY], &name, FILE_MODE)?;
            let path = place.path().to_owned();
            file.write_all(HEADER.as_bytes()).map_err(SinkError::io(&path))?;
            new = Some(path.clone());
            self.sums.insert(device, (file, path));
        }
        let Some((file, path)) = self.sums.get_mut(&device) else { return Ok(None) };
        let mut line = Vec::new();
        Name::Plain(&format!("{stem}{EXTENSION}")).write_csv(&mut line);
        line.extend_from_slice(format!(",{}\n", sum.map(|sum| format!("{sum:016x}")).unwrap_or_default()).as_bytes());
        file.write_all(&line).map_err(SinkError::io(&*path))?;
        Ok(new)
    }

    /// The same for a block that could not be read: the second cell is empty, so that nothing compares equal to it.
    pub fn write_unread(&mut self, device: u32, stem: &str) -> Result<Option<PathBuf>, SinkError> {
        self.write_line(device, stem, None)
    }

    /// Begins a file of bytes.
    pub fn create_content(&self, device: u32, stem: &str) -> Result<Content, SinkError> {
        let directories = [&*format!("device_{device}"), DIRECTORY];
        let (file, place) = self.tree.create(&self.process, &directories, &file_name(stem), FILE_MODE)?;
        Ok(Content { file, path: place.path().to_owned() })
    }
}

/// An open file of bytes.
#[derive(Debug)]
pub struct Content {
    file: File,
    path: PathBuf,
}

impl Content {
    /// Takes the next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.file.write_all(bytes).map_err(SinkError::io(&self.path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, as not all of its bytes could be read.
    pub fn discard(self) -> io::Result<()> {
        // The name is ours: we made it with `O_EXCL`, so no other program's file is under it.
        self.file.set_len(0)
    }
}

/// The name of the file: characters that would lead elsewhere, or nowhere, are replaced; too long names keep their
/// ends, which differ.
fn file_name(stem: &str) -> String {
    let plain = |character: char| match character {
        '/' => '.',
        other if other.is_control() => '_',
        other => other,
    };
    let name: String = stem.chars().map(plain).collect();
    let most = MAX_NAME_BYTES - EXTENSION.len();
    if name.len() <= most {
        return name + EXTENSION;
    }
    let tail = name.ceil_char_boundary(name.len() - most / 2);
    let head = name.floor_char_boundary(most - (name.len() - tail));
    format!("{}{}{EXTENSION}", &name[..head], &name[tail..])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn files() -> (tempfile::TempDir, WatchFiles) {
        let root = tempfile::tempdir().expect("temporary directory");
        let tree = OutputTree::open(root.path(), None).expect("directory");
        let process = tree.make_process_dir(7).expect("directory");
        (root, WatchFiles::new(tree, process))
    }

    /// The layout of the contract; one list for each device.
    #[test]
    fn checksums() {
        let (_root, mut files) = files();
        let path = files.write_sum(3, "3_77/op_1-w_0_before", 0xab).expect("writable").expect("a new file");
        assert_eq!(files.write_unread(3, "3_77/op_1-w_0_after").expect("writable"), None);
        assert_eq!(files.write_sum(3, "3_77/a,\"b_1-w_0_after", u64::MAX).expect("writable"), None);
        let other = files.write_sum(4, "4_77/op_1-w_0_before", 1).expect("writable").expect("a new file");
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(
            text,
            "Tensor info,Check data sum\n3_77/op_1-w_0_before.bin,00000000000000ab\n\
             3_77/op_1-w_0_after.bin,\n\
             \"3_77/a,\"\"b_1-w_0_after.bin\",ffffffffffffffff\n"
        );
        for (path, device) in [(path, "device_3"), (other, "device_4")] {
            let folder = path.parent().expect("a folder");
            assert!(folder.ends_with(format!("{device}/watch_dump")), "{}", path.display());
            let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
            let stamp = name.strip_prefix("watch_dump_data_check_sum_").and_then(|rest| rest.strip_suffix(".csv"));
            assert!(
                stamp.is_some_and(|stamp| stamp.len() == 14 && stamp.bytes().all(|b| b.is_ascii_digit())),
                "{name}"
            );
            assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o7777, 0o600);
        }
    }

    #[test]
    fn contents() {
        let (_root, files) = files();
        let mut content = files.create_content(0, "0_77/a/b_1-w_0_after").expect("creatable");
        content.write(&[0, 1]).and_then(|()| content.write(&[255])).expect("writable");
        assert!(
            content.path().ends_with("device_0/watch_dump/0_77.a.b_1-w_0_after.bin"),
            "{}",
            content.path().display()
        );
        assert_eq!(std::fs::read(content.path()).expect("readable"), [0, 1, 255]);
        assert!(files.create_content(0, "0_77/a/b_1-w_0_after").is_err(), "never over another file");
    }

    /// Make sure that no name leads out of the folder, and that long ones stay apart.
    #[test]
    fn hostile_names() {
        assert_eq!(file_name("0_1/../../etc_1-w\n_0_after"), "0_1.......etc_1-w__0_after.bin");
        let long = |n| file_name(&format!("0_1/{}_{n}-w_0_after", "é".repeat(400)));
        assert_ne!(long(1), long(2));
        assert!((250..=255).contains(&long(1).len()) && long(1).ends_with("_1-w_0_after.bin"), "{}", long(1));
    }
}
