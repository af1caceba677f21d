//! What the running kernel can do, by its version: the tests' own word for it, beside what the tracer finds out by trying.

/// Major and minor version.
///
/// # Panics
///
/// When the kernel's release is none.
#[must_use]
pub fn version() -> (u32, u32) {
    let name = nix::sys::utsname::uname().expect("uname");
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().expect("a kernel release"));
    (numbers.next().expect("a major version"), numbers.next().expect("a minor version"))
}

/// Attach cookies; without them there is one program for each probe.
#[must_use]
pub fn has_cookies() -> bool {
    version() >= (5, 15)
}

/// Loops in BPF programs, which walks of Python's frames need.
#[must_use]
pub fn takes_python_stacks() -> bool {
    version() >= (5, 17)
}

/// Probes that may sleep, with which a thread is held; without them `run` misses first calls by default.
#[must_use]
pub fn has_sleepable_probes() -> bool {
    version() >= (6, 0)
}

/// Links for many probes; without them each probe is linked by itself.
#[must_use]
pub fn has_multi_links() -> bool {
    version() >= (6, 6)
}
