//! Names of kernels, such as `5.10-x86_64`.

use anyhow::{Context as _, Result};

use crate::arch::{self, Arch};

/// Series and the Debian release that has it.
const SERIES: [(&str, &str); 3] = [("5.10", "bullseye"), ("6.1", "bookworm"), ("6.12", "trixie")];

/// A kernel of Debian's.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) series: &'static str,
    pub(super) release: &'static str,
    pub(super) arch: &'static Arch,
}

impl Kernel {
    /// Every series on every architecture.
    pub(super) fn all() -> Result<Vec<Self>> {
        let names =
            SERIES.iter().flat_map(|(series, _)| arch::all().iter().map(move |arch| format!("{series}-{}", arch.name)));
        names.map(|name| Self::named(&name)).collect()
    }

    pub(super) fn named(name: &str) -> Result<Self> {
        let known = SERIES.map(|(series, _)| series).join(", ");
        let (series, arch) =
            name.split_once('-').with_context(|| format!("`{name}` is not SERIES-ARCH, such as 5.10-x86_64"))?;
        let (series, release) = *SERIES
            .iter()
            .find(|row| row.0 == series)
            .with_context(|| format!("no kernel series `{series}`: {known}"))?;
        Ok(Self { name: name.to_owned(), series, release, arch: Arch::named(arch)? })
    }

    /// Starts of names of tests that are of no use on it: how it does without is another test.
    pub(super) fn left_out(&self) -> &'static [&'static str] {
        // There are no loops in BPF programs.
        if self.series == "5.10" { &["python_stacks_"] } else { &[] }
    }

    /// Whether the guest finds tracefs mounted, as most hosts have it. On one series it does not, as in many
    /// containers: the program then mounts it for itself.
    pub(super) fn has_tracefs(&self) -> bool {
        self.series != "6.1"
    }
}
