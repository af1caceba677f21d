//! Facts about a process from `/proc/<pid>`. Read as hostile input.

use std::{fs, io, str::FromStr};

use super::{memory::Memory, secure_env};

/// Fields of `/proc/<pid>/stat` that come before the state: number and name.
const FIRST_BEHIND_NAME: usize = 3;

/// State letter from `/proc/<pid>/stat`; `None` when the process is gone.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    stat_field(pid, 3)
}

/// Whether a process runs or waits: is neither gone nor a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// Start time of a process, in clock ticks since boot (field 22 of `/proc/<pid>/stat`); `None` when it is gone.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(pid, 22)
}

/// The process that has started a process, or has taken it over (field 4 of `/proc/<pid>/stat`); `None` when it is gone.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    stat_field(pid, 4)
}

/// A field of `/proc/<pid>/stat` behind the name, by its number in proc(5).
fn stat_field<T: FromStr>(pid: u32, number: usize) -> Option<T> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any characters, parentheses too.
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(number - FIRST_BEHIND_NAME)?.parse().ok()
}

/// Bytes of a counter in the text of `/proc/<pid>/status`, which has kB: `VmSwap`. `None` for a process without memory.
#[must_use]
pub fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Direct children of all threads of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Short name of a process; other bytes than printable ASCII are replaced.
#[must_use]
pub fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_ascii()
        .iter()
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' })
        .collect()
}

/// Number of a process in the innermost of its pid namespaces, if different from ours.
#[must_use]
pub fn pid_within(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().skip(1).last()?.parse().ok()
}

/// The value of a variable in a block of [`environment`]. If it occurs twice the first counts, as for `getenv`.
#[must_use]
pub fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The environment that a process was started with.
#[must_use]
pub fn environment(pid: u32) -> Option<Vec<u8>> {
    match fs::read(format!("/proc/{pid}/environ")) {
        // Another user's: its address and contents can be read.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (address, len) = secure_env::range(&stat)?;
            let mut bytes = vec![0; len];
            Memory::open(pid).ok()?.read(address as u64, &mut bytes)?;
            Some(bytes)
        }
        read => read.ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use super::*;

    /// A child waits on its input: it lives, is recognised as ours, and has its environment and name.
    #[test]
    fn a_child_is_described() {
        let mut child = Command::new("cat")
            .env_clear()
            .env("ONE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let pid = child.id();
        // Its copied input shows that it has executed.
        let (mut input, mut output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        input.write_all(b"x").expect("written");
        let mut byte = [0];
        io::Read::read_exact(&mut output, &mut byte).expect("copied");
        assert!(is_alive(pid) && children(std::process::id()).contains(&pid));
        assert_eq!((command(pid).as_str(), environment(pid)), ("cat", Some(b"ONE=1\0".to_vec())));
        assert!(start_ticks(pid) >= start_ticks(std::process::id()));
        drop(input);
        // Until it is waited for it is a zombie, which counts as dead.
        while state(pid) != Some('Z') {
            std::thread::yield_now();
        }
        assert!(!is_alive(pid));
        child.wait().expect("ended");
        assert_eq!((state(pid), start_ticks(pid), environment(pid)), (None, None, None));
        assert!(!is_alive(pid));
    }
}
