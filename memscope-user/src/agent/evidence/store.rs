//! Files in the directory. A file has its name once it is whole and on the disk, and no file of that name was there: a reader sees all of
//! it or nothing, whatever ends the agent.
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

/// Folders and files are for us alone: rows name functions of other users' programs.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const END: &str = ".parquet";
/// Engines do not read names that begin with a dot.
const TEMPORARY: (&str, &str) = (".", ".tmp");
/// Names that are tried where files of these names are there already.
const MAX_NAMES: usize = 16;
const SEQUENCE_DIGITS: usize = 16;
const BOOT_DIGITS: usize = 12;

/// What was done for one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Its rows.
    pub(super) rows: u64,
    /// Older files that were removed for it.
    pub(super) removed_files: u64,
}

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

    fn name(&self, sequence: u64) -> String {
        format!("{}-{}-{sequence:0SEQUENCE_DIGITS$}", self.host, self.boot)
    }

    /// Whether it is a name of a file of this host, of any boot.
    fn is_own(&self, name: &str) -> bool {
        let mut parts = name.rsplitn(3, '-');
        let is = |part: &str, digits| part.len() >= digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        parts.next().is_some_and(|sequence| is(sequence, SEQUENCE_DIGITS))
            && parts.next().is_some_and(|boot| is(boot, BOOT_DIGITS))
            && parts.next() == Some(&self.host)
    }
}

/// A file of ours: the hour comes first, so that the oldest is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Own {
    date: String,
    hour: String,
    table: Table,
    name: String,
}

/// Writes files, and keeps them below a size in all.
pub(super) struct Store {
    directory: PathBuf,
    owner: Owner,
    next: u64,
    max_bytes: u64,
    /// Files of this host with their sizes, as they were last looked at; with those written since.
    own: Option<BTreeMap<Own, u64>>,
}

impl Store {
    /// `first`: number of the first file; a later agent's is higher, whatever was moved elsewhere meanwhile.
    pub(super) const fn new(directory: PathBuf, owner: Owner, first: u64, max_bytes: u64) -> Self {
        Self { directory, owner, next: first, max_bytes, own: None }
    }

    #[cfg(feature = "parquet")]
    pub(super) fn host(&self) -> &str {
        &self.owner.host
    }

    /// Writes a file of a table, for the hour of that minute.
    pub(super) fn put(
        &mut self,
        table: Table,
        epoch_minute: i32,
        write: impl FnOnce(File) -> io::Result<u64>,
    ) -> io::Result<Stored> {
        let root = Folder::open(&self.directory)?;
        let (date, hour) = partition(epoch_minute)?;
        let folder = [&version_folder(), table.name(), &date, &hour].into_iter().try_fold(root, Folder::make)?;
        let written = self.write(&folder, write)?;
        let removed_files = self.make_room(written.bytes)?;
        let name = self.publish(&written)?;
        folder.file.sync_all()?;
        if let Some(own) = &mut self.own {
            own.insert(Own { date, hour, table, name }, written.bytes);
        }
        Ok(Stored { rows: written.rows, removed_files })
    }

    /// Writes it under a hidden name, to the disk.
    fn write<'a>(
        &mut self,
        folder: &'a Folder,
        write: impl FnOnce(File) -> io::Result<u64>,
    ) -> io::Result<Written<'a>> {
        let (begin, end) = TEMPORARY;
        let name = format!("{begin}{}{end}", self.owner.name(self.next));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(folder.child(&name))?;
        let mut written = Written { folder, name, rows: 0, bytes: 0 };
        written.rows = write(file.try_clone()?)?;
        file.sync_all()?;
        written.bytes = file.metadata()?.len();
        Ok(written)
    }

    /// Gives it its name, if no file has it.
    fn publish(&mut self, written: &Written<'_>) -> io::Result<String> {
        for _ in 0..MAX_NAMES {
            let name = format!("{}{END}", self.owner.name(self.next));
            self.next += 1;
            match fs::hard_link(written.folder.child(&written.name), written.folder.child(&name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result.map(|()| name),
            }
        }
        Err(io::Error::other("files of all names that were tried are there already"))
    }

    /// Removes our oldest files until one of this size fits. Files that another tool has moved away count no longer.
    fn make_room(&mut self, bytes: u64) -> io::Result<u64> {
        let most = self.max_bytes.saturating_sub(bytes);
        let sum = |own: &BTreeMap<Own, u64>| own.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        if self.own.as_ref().is_some_and(|own| sum(own) <= most) {
            return Ok(0);
        }
        let root = Folder::open(&self.directory)?.make(&version_folder())?;
        let mut own = self.look(&root);
        let mut all = sum(&own);
        let mut removed_files = 0;
        while all > most
            && let Some((file, bytes)) = own.pop_first()
        {
            all -= bytes;
            removed_files += u64::from(remove(&root, &file).is_ok());
        }
        self.own = Some(own);
        Ok(removed_files)
    }

    /// Looks for files of this host, and removes what was left under a hidden name by an agent that was killed.
    fn look(&self, root: &Folder) -> BTreeMap<Own, u64> {
        let (begin, end) = TEMPORARY;
        let current = format!("{begin}{}{end}", self.owner.name(self.next));
        let mut own = BTreeMap::new();
        for table in Table::ALL {
            let Ok(folder) = root.enter(table.name()) else { continue };
            for date in folder.names().filter(|name| name.starts_with("date=")) {
                let Ok(folder) = folder.enter(&date) else { continue };
                for hour in folder.names().filter(|name| name.starts_with("hour=")) {
                    let Ok(folder) = folder.enter(&hour) else { continue };
                    for name in folder.names() {
                        let hidden = name.strip_prefix(begin).and_then(|name| name.strip_suffix(end));
                        if hidden.is_some_and(|name| self.owner.is_own(name)) && name != current {
                            // It stays where that fails, and no reader looks at it.
                            let _ = fs::remove_file(folder.child(&name));
                        }
                        if name.strip_suffix(END).is_some_and(|name| self.owner.is_own(name)) {
                            let bytes = fs::symlink_metadata(folder.child(&name)).map_or(0, |file| file.len());
                            own.insert(Own { date: date.clone(), hour: hour.clone(), table, name }, bytes);
                        }
                    }
                }
            }
        }
        own
    }
}

/// A schema has a folder of its own.
fn version_folder() -> String {
    format!("v{}", super::VERSION)
}

/// Removes a file, and its folders where they are empty now.
fn remove(root: &Folder, file: &Own) -> io::Result<()> {
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
fn partition(epoch_minute: i32) -> io::Result<(String, String)> {
    let time = jiff::Timestamp::from_second(i64::from(epoch_minute) * 60).map_err(io::Error::other)?;
    Ok((time.strftime("date=%Y-%m-%d").to_string(), time.strftime("hour=%H").to_string()))
}

/// A whole file under a hidden name, which goes in any case.
struct Written<'a> {
    folder: &'a Folder,
    name: String,
    rows: u64,
    bytes: u64,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        // What stays is removed by a later look.
        let _ = fs::remove_file(self.folder.child(&self.name));
    }
}

/// An open folder. Paths of its children go through its handle (`/proc/self/fd`), whoever moves it meanwhile.
struct Folder {
    file: File,
}

impl Folder {
    /// The directory of the settings, which has to be there: an empty mount point must not be filled.
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
        Ok(Self { file })
    }

    fn child(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd())).join(name)
    }

    fn enter(&self, name: &str) -> io::Result<Self> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        Ok(Self { file: OpenOptions::new().read(true).custom_flags(flags).open(self.child(name))? })
    }

    fn make(self, name: &str) -> io::Result<Self> {
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

    fn names(&self) -> impl Iterator<Item = String> + use<> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        entries.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
    }
}

#[cfg(test)]
mod tests;
