//! Opens the files that users name. A pipe or a device would block its reader for good, so it is refused at once.

use std::{
    fs::{File, FileType, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Opens a regular file for reading; never waits for a writer of a pipe.
///
/// # Errors
///
/// The system's, or one that names the kind of file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Regular files do not know of `O_NONBLOCK`.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(refusal(kind)) }
}

/// The error for this kind of file.
pub(crate) fn refusal(kind: FileType) -> io::Error {
    let text = if kind.is_dir() {
        "it is a folder, and a file is needed"
    } else if kind.is_fifo() {
        "it is a pipe, and a regular file is needed: write its contents to a file first"
    } else if kind.is_char_device() || kind.is_block_device() {
        "it is a device, and a regular file is needed"
    } else {
        "it is no regular file"
    };
    let kind = if kind.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
    io::Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// A pipe without a writer and an endless device are refused at once, each by its name.
    #[test]
    fn pipes_devices_and_folders_are_refused() {
        let place = tempfile::tempdir().expect("temporary directory");
        let pipe = place.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        for (path, named) in
            [(pipe.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device"), (place.path(), "a folder")]
        {
            let text = open(path).expect_err("refused").to_string();
            assert!(text.contains(named), "{text}");
        }
        let file = place.path().join("file");
        fs::write(&file, "x").expect("written");
        open(&file).expect("a regular file");
        assert_eq!(open(Path::new("/no/such/file")).expect_err("absent").kind(), io::ErrorKind::NotFound);
    }
}
