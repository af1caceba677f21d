//! Recovers variables that ld.so removed in secure-execution mode, for the traced program.
//!
//! A program with file capabilities must not be made to load other code, so the C library removes `LD_LIBRARY_PATH` and
//! the like from its environment (`ld.so(8)`, secure-execution mode). The program that it runs has no such
//! capabilities, only the caller's rights, and shall find the same libraries as without us.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt as _,
};

use nix::unistd::{Gid, Uid};

/// Linux takes no larger environment.
const MAX_BYTES: u64 = 8 << 20;

/// Whether this program was started with more rights than its caller has (set-uid, file capabilities).
#[must_use]
pub fn has_borrowed_rights() -> bool {
    // SAFETY: reads a word that the kernel left at the start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The program's environment, as far as it is UTF-8: ours, and the removed variables.
#[must_use]
pub fn program_environment() -> Vec<(String, String)> {
    let text = |text: OsString| text.into_string().ok();
    let all = env::vars_os().chain(variables());
    all.filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// The variables missing in our environment.
#[must_use]
pub fn variables() -> Vec<(OsString, OsString)> {
    // With another user's rights, the caller's variables are not for the program.
    if !has_borrowed_rights() || Uid::current() != Uid::effective() || Gid::current() != Gid::effective() {
        return Vec::new();
    }
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let Some((from, len)) = range(&stat) else { return Vec::new() };
    // SAFETY: the kernel has put the strings of the environment there; they live as long as this process, and nothing writes to
    // them.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(from), len) };
    parse(bytes).filter(|(name, _)| env::var_os(name).is_none()).collect()
}

/// Address and bytes of the strings, from `/proc/<pid>/stat` (fields 50 and 51, `proc_pid_stat(5)`).
pub(crate) fn range(stat: &str) -> Option<(usize, usize)> {
    const FIRST_BEHIND_NAME: usize = 3;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(50 - FIRST_BEHIND_NAME);
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (from, end) = (number()?, number()?);
    let len = end.checked_sub(from).filter(|len| from != 0 && *len <= MAX_BYTES)?;
    Some((usize::try_from(from).ok()?, usize::try_from(len).ok()?))
}

fn parse(bytes: &[u8]) -> impl Iterator<Item = (OsString, OsString)> {
    bytes.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        Some((OsStr::from_bytes(&entry[..at]).to_owned(), OsStr::from_bytes(&entry[at + 1..]).to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_in_the_fiftieth_field() {
        let fields: Vec<String> = (3..53).map(|field| (field * 1000).to_string()).collect();
        let stat = format!("77 (a) b (c)) {}", fields.join(" "));
        assert_eq!(range(&stat), Some((50_000, 1000)));
        assert_eq!(range("77 (a) R 1 2"), None);
        assert_eq!(range(&stat.replace(" 50000 ", " 0 ")), None);
        assert_eq!(range(&stat.replace(" 50000 ", " 52000 ")), None);
        assert_eq!(range(&stat.replace(" 51000 ", " 51000000000 ")), None);
    }

    #[test]
    fn entries_without_a_name_are_none() {
        let of = |bytes: &[u8]| parse(bytes).collect::<Vec<_>>();
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        assert_eq!(of(b"A=1\0B=x=y\0\0=z\0C\0D=\0"), [pair("A", "1"), pair("B", "x=y"), pair("D", "")]);
    }

    /// The kernel's addresses lead to this process's own strings.
    #[test]
    fn own_environment_is_found() {
        let stat = fs::read_to_string("/proc/self/stat").expect("readable");
        let (from, len) = range(&stat).expect("an environment");
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(from), len) };
        let path = parse(bytes).find(|(name, _)| name == "PATH").map(|(_, value)| value);
        assert_eq!(path, env::var_os("PATH"));
    }
}
