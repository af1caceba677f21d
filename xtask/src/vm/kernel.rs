//! Names of kernels, such as `5.10-x86_64`, and `6.12-aarch64-16k`, with pages of 16 KiB.

use anyhow::{Context as _, Result, ensure};

use crate::arch::{self, Arch};

/// Series and the Debian release that has it.
const SERIES: [(&str, &str); 3] = [("5.10", "bullseye"), ("6.1", "bookworm"), ("6.12", "trixie")];

/// The series with a kernel of 16 KiB pages, and its architecture.
const LARGE_PAGES: (&str, &str) = ("6.12", "aarch64");
/// End of such a kernel's name.
const LARGE: &str = "-16k";

/// A kernel of Debian's.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) series: &'static str,
    pub(super) release: &'static str,
    pub(super) arch: &'static Arch,
    /// Pages have 16 KiB, not 4.
    pub(super) has_large_pages: bool,
}

impl Kernel {
    /// Every series on every architecture.
    pub(super) fn all() -> Result<Vec<Self>> {
        let names =
            SERIES.iter().flat_map(|(series, _)| arch::all().iter().map(move |arch| format!("{series}-{}", arch.name)));
        let (series, arch) = LARGE_PAGES;
        names.chain([format!("{series}-{arch}{LARGE}")]).map(|name| Self::named(&name)).collect()
    }

    pub(super) fn named(name: &str) -> Result<Self> {
        let known = SERIES.map(|(series, _)| series).join(", ");
        let plain = name.strip_suffix(LARGE);
        let has_large_pages = plain.is_some();
        let (series, arch) = plain
            .unwrap_or(name)
            .split_once('-')
            .with_context(|| format!("`{name}` is not SERIES-ARCH, such as 5.10-x86_64"))?;
        ensure!(
            !has_large_pages || (series, arch) == LARGE_PAGES,
            "`{name}`: Debian has a kernel with pages of 16 KiB of {}-{} alone",
            LARGE_PAGES.0,
            LARGE_PAGES.1
        );
        let (series, release) = *SERIES
            .iter()
            .find(|row| row.0 == series)
            .with_context(|| format!("no kernel series `{series}`: {known}"))?;
        Ok(Self { name: name.to_owned(), series, release, arch: Arch::named(arch)?, has_large_pages })
    }

    /// What a release's package is called that depends on its newest kernel.
    pub(super) fn package(&self) -> String {
        let debian = self.arch.debian;
        if self.has_large_pages {
            format!("linux-image-{debian}-16k:{debian}")
        } else {
            format!("linux-image-cloud-{debian}:{debian}")
        }
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

#[cfg(test)]
mod tests {
    use super::Kernel;

    /// Make sure that the kernel of large pages is of its series, and of no other architecture.
    #[test]
    fn large_pages() {
        let kernel = Kernel::named("6.12-aarch64-16k").expect("a kernel");
        assert_eq!(
            (kernel.series, kernel.release, kernel.package().as_str()),
            ("6.12", "trixie", "linux-image-arm64-16k:arm64")
        );
        assert_eq!(Kernel::named("6.12-aarch64").expect("a kernel").package(), "linux-image-cloud-arm64:arm64");
        Kernel::named("6.12-x86_64-16k").expect_err("no such package");
        Kernel::named("6.1-aarch64-16k").expect_err("no such package");
    }
}
