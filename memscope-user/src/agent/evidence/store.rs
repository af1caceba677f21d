//! Files in the directory. A file has its name once it is whole and on the disk, and no file of that name was there: a reader sees all of
//! it or nothing, whatever ends the agent.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    files::{END, Folder, Own, Owner, find, partition, remove, version_folder},
    rows::Table,
};

/// For us alone, as the folders.
const FILE_MODE: u32 = 0o600;
/// Names that are tried where files of these names are there already.
const MAX_NAMES: usize = 16;

/// Files that are remembered without another look.
const LOOK_AT: usize = 4096;

/// Who may make and remove folders now.
pub(super) type Turn = Arc<Mutex<()>>;

/// What was done for one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Its rows.
    pub(super) rows: u64,
    /// Older files that were removed for it.
    pub(super) removed_files: u64,
}

/// Writes files, and keeps them below a size in all.
pub(super) struct Store {
    directory: PathBuf,
    owner: Owner,
    next: u64,
    max_bytes: u64,
    turn: Turn,
    /// Files of this host with their sizes, as they were last looked at; with those written since.
    own: Option<BTreeMap<Own, u64>>,
    /// Number of files at which another look is due: others may have uploaded or moved most of them.
    look_at: usize,
}

impl Store {
    /// `first`: number of the first file; a later agent's is higher, whatever was moved elsewhere meanwhile.
    pub(super) fn new(directory: PathBuf, owner: Owner, first: u64, max_bytes: u64) -> Self {
        Self { directory, owner, next: first, max_bytes, turn: Turn::default(), own: None, look_at: LOOK_AT }
    }

    /// For others that remove files.
    #[cfg(any(test, feature = "object-store"))]
    pub(super) fn turn(&self) -> Turn {
        Arc::clone(&self.turn)
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
        let turn = Arc::clone(&self.turn);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
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
        let name = self.owner.hidden(self.next);
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
        if self.own.as_ref().is_some_and(|own| own.len() < self.look_at && sum(own) <= most) {
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
        self.look_at = LOOK_AT.max(2 * own.len());
        self.own = Some(own);
        Ok(removed_files)
    }

    /// Looks for files of this host, and removes what was left under a hidden name by an agent that was killed.
    fn look(&self, root: &Folder) -> BTreeMap<Own, u64> {
        let current = self.owner.hidden(self.next);
        find(root, &self.owner, |folder, name| {
            if name != current {
                // It stays where that fails, and no reader looks at it.
                let _ = fs::remove_file(folder.child(name));
            }
        })
    }
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

#[cfg(test)]
mod tests;
