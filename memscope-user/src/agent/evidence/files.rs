//! Names and folders of the files of a host.
//!
//! Folders are opened one after the other and no link is followed below the directory. Names are made of the host's name, the boot and
//! numbers: nothing of a traced program is in a path.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use super::rows::Table;

/// Folders are for us alone: rows name functions of other users' programs.
const FOLDER_MODE: u32 = 0o700;
pub(super) const END: &str = ".parquet";
/// Engines do not read names that begin with a dot.
const TEMPORARY: (&str, &str) = (".", ".tmp");
const SEQUENCE_DIGITS: usize = 16;
const BOOT_DIGITS: usize = 12;

/// The owner of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The host, of letters, digits, `.` and `-` alone.
    pub(super) host: String,
    /// The boot.
    pub(super) boot: String,
}

impl Owner {
    pub(super) fn new(host: &str, boot_id: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let mut host: String = host.trim().chars().take(64).map(plain).collect();
        if host.is_empty() {
            host.push_str("unknown");
        }
        if host.starts_with('.') {
            host.replace_range(..1, "-");
        }
        let mut boot: String = boot_id.chars().filter(char::is_ascii_hexdigit).take(BOOT_DIGITS).collect();
        while boot.len() < BOOT_DIGITS {
            boot.push('0');
        }
        Self { host, boot }
    }

    pub(super) fn name(&self, sequence: u64) -> String {
        format!("{}-{}-{sequence:0SEQUENCE_DIGITS$}", self.host, self.boot)
    }

    /// The name of a file that is not whole yet.
    pub(super) fn hidden(&self, sequence: u64) -> String {
        let (begin, end) = TEMPORARY;
        format!("{begin}{}{end}", self.name(sequence))
    }

    /// Whether it is a name of a file of this host, of any boot.
    pub(super) fn is_own(&self, name: &str) -> bool {
        let mut parts = name.rsplitn(3, '-');
        let is = |part: &str, digits| part.len() >= digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        parts.next().is_some_and(|sequence| is(sequence, SEQUENCE_DIGITS))
            && parts.next().is_some_and(|boot| is(boot, BOOT_DIGITS))
            && parts.next() == Some(&self.host)
    }
}

/// A file of ours: the hour comes first, so that the oldest is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Own {
    pub(super) date: String,
    pub(super) hour: String,
    pub(super) table: Table,
    pub(super) name: String,
}

impl Own {
    /// Below the directory.
    pub(super) fn path(&self) -> String {
        let Self { date, hour, table, name } = self;
        format!("{}/{}/{date}/{hour}/{name}", version_folder(), table.name())
    }

    fn folder(&self, root: &Folder) -> io::Result<Folder> {
        root.enter(self.table.name())?.enter(&self.date)?.enter(&self.hour)
    }

    /// Opens it to read.
    pub(super) fn open(&self, root: &Folder) -> io::Result<File> {
        let folder = self.folder(root)?;
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(folder.child(&self.name))
    }
}

/// Files of a host below the folder of our schema, with their sizes. What has a hidden name is left to `on_hidden`.
pub(super) fn find(root: &Folder, owner: &Owner, mut on_hidden: impl FnMut(&Folder, &str)) -> BTreeMap<Own, u64> {
    let (begin, end) = TEMPORARY;
    let mut own = BTreeMap::new();
    for table in Table::ALL {
        let Ok(folder) = root.enter(table.name()) else { continue };
        for date in folder.names().filter(|name| name.starts_with("date=")) {
            let Ok(folder) = folder.enter(&date) else { continue };
            for hour in folder.names().filter(|name| name.starts_with("hour=")) {
                let Ok(folder) = folder.enter(&hour) else { continue };
                for name in folder.names() {
                    let hidden = name.strip_prefix(begin).and_then(|name| name.strip_suffix(end));
                    if hidden.is_some_and(|name| owner.is_own(name)) {
                        on_hidden(&folder, &name);
                    }
                    if name.strip_suffix(END).is_some_and(|name| owner.is_own(name)) {
                        let bytes = fs::symlink_metadata(folder.child(&name)).map_or(0, |file| file.len());
                        own.insert(Own { date: date.clone(), hour: hour.clone(), table, name }, bytes);
                    }
                }
            }
        }
    }
    own
}

/// A schema has a folder of its own.
pub(super) fn version_folder() -> String {
    format!("v{}", super::VERSION)
}

/// Removes a file, and its folders where they are empty now.
pub(super) fn remove(root: &Folder, file: &Own) -> io::Result<()> {
    let table = root.enter(file.table.name())?;
    let date = table.enter(&file.date)?;
    let hour = date.enter(&file.hour)?;
    fs::remove_file(hour.child(&file.name))?;
    if fs::remove_dir(date.child(&file.hour)).is_ok() {
        let _ = fs::remove_dir(table.child(&file.date));
    }
    Ok(())
}

/// Names of the folders of a minute's hour, in UTC.
pub(super) fn partition(epoch_minute: i32) -> io::Result<(String, String)> {
    let time = jiff::Timestamp::from_second(i64::from(epoch_minute) * 60).map_err(io::Error::other)?;
    Ok((time.strftime("date=%Y-%m-%d").to_string(), time.strftime("hour=%H").to_string()))
}

/// An open folder. Paths of its children go through its handle (`/proc/self/fd`), whoever moves it meanwhile.
pub(super) struct Folder {
    pub(super) file: File,
}

impl Folder {
    /// The directory of the settings, which has to be there: an empty mount point must not be filled.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
        Ok(Self { file })
    }

    pub(super) fn child(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd())).join(name)
    }

    pub(super) fn enter(&self, name: &str) -> io::Result<Self> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        Ok(Self { file: OpenOptions::new().read(true).custom_flags(flags).open(self.child(name))? })
    }

    pub(super) fn make(self, name: &str) -> io::Result<Self> {
        match self.enter(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entered => return entered,
        }
        match DirBuilder::new().mode(FOLDER_MODE).create(self.child(name)) {
            // Another host was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        self.file.sync_all()?;
        self.enter(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> + use<> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        entries.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a machine is called, its name is one part of a path.
    #[test]
    fn names_are_plain() {
        let host = |name: &str| Owner::new(name, "").host;
        assert_eq!(host("node-1.example\n"), "node-1.example");
        assert_eq!(host("../../etc/passwd"), "-.-..-etc-passwd");
        assert_eq!(host("a b\0c/\u{e9}_d"), "a-b-c---d");
        assert_eq!((host(""), host(&"x".repeat(500)).len()), ("unknown".to_owned(), 64));
        assert_eq!(Owner::new("a", "../..").boot, "000000000000");
        let owner = Owner::new("a", "0f1e2d3c4b5a");
        assert!(owner.is_own(&owner.name(7)));
        for other in [
            "a-b-0f1e2d3c4b5a-0000000000000007",
            "a-0f1e-0000000000000007",
            "a",
            "a-0f1e2d3c4b5a-7",
            "b-0f1e2d3c4b5a-0000000000000007",
        ] {
            assert!(!owner.is_own(other), "{other}");
        }
    }
}
