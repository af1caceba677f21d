//! SQLite's own way to files (`unix`), without looking for the real paths of databases.
//!
//! A database is opened as `/proc/self/fd/<folder>/<name>`: the file, its log, index and journal are made and removed
//! in that very folder, whatever happens to the path that led to it. SQLite would replace the first part by the
//! folder's current path, which its owner can swap. At the last step it follows no links (`O_NOFOLLOW`).

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::OnceLock;

use rusqlite::{Connection, OpenFlags, ffi};

/// Its name, for SQLite.
const NAME: &CStr = c"memscope-by-handle";

/// Opens a database by its path, unresolved.
pub(crate) fn open(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    match *REGISTERED.get_or_init(register) {
        ffi::SQLITE_OK => Connection::open_with_flags_and_vfs(path, flags, NAME),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

fn register() -> c_int {
    // SAFETY: gives a structure of SQLite's own that stays, or null.
    let unix = unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()) };
    // SAFETY: as above; a copy has the same functions, which look at nothing but the fields.
    let Some(unix) = (unsafe { unix.as_ref() }) else { return ffi::SQLITE_ERROR };
    let own =
        ffi::sqlite3_vfs { zName: NAME.as_ptr(), pNext: std::ptr::null_mut(), xFullPathname: Some(full_path), ..*unix };
    // SAFETY: it is never freed, as SQLite wants; 0: not the default for others.
    unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(own)), 0) }
}

/// The path as it is.
unsafe extern "C" fn full_path(_: *mut ffi::sqlite3_vfs, path: *const c_char, room: c_int, to: *mut c_char) -> c_int {
    // SAFETY: SQLite gives a text that ends.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    if usize::try_from(room).is_ok_and(|room| bytes.len() <= room) {
        // SAFETY: there is room for as many bytes, and SQLite's buffer is another one.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        ffi::SQLITE_OK
    } else {
        ffi::SQLITE_CANTOPEN
    }
}
