//! The two architectures that Ascend hosts come in.

use std::env::consts::ARCH;

use anyhow::{Context as _, Result};

use crate::project;

/// One architecture, by each of its names.
#[derive(Debug)]
pub(crate) struct Arch {
    /// Ours, the kernel's and QEMU's.
    pub(crate) name: &'static str,
    /// Rust's.
    pub(crate) target: &'static str,
    /// GCC's, as prefix of its tools.
    pub(crate) gnu: &'static str,
    /// Debian's.
    pub(crate) debian: &'static str,
    /// What compiles C for it elsewhere.
    pub(crate) cross_packages: [&'static str; 2],
    /// What compiles C++ for it elsewhere.
    pub(crate) cross_cxx_package: &'static str,
}

static ALL: [Arch; 2] = [
    Arch {
        name: "x86_64",
        target: "x86_64-unknown-linux-gnu",
        gnu: "x86_64-linux-gnu",
        debian: "amd64",
        cross_packages: ["gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross"],
        cross_cxx_package: "g++-x86-64-linux-gnu",
    },
    Arch {
        name: "aarch64",
        target: "aarch64-unknown-linux-gnu",
        gnu: "aarch64-linux-gnu",
        debian: "arm64",
        cross_packages: ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        cross_cxx_package: "g++-aarch64-linux-gnu",
    },
];

impl Arch {
    pub(crate) fn named(name: &str) -> Result<&'static Self> {
        ALL.iter()
            .find(|arch| arch.name == name)
            .with_context(|| format!("no architecture `{name}`: x86_64 or aarch64"))
    }

    /// This machine's.
    pub(crate) fn host() -> &'static Self {
        ALL.iter().find(|arch| arch.is_host()).expect("the project is built on one of the two")
    }

    /// The one that is not this machine's.
    pub(crate) fn other() -> &'static Self {
        ALL.iter().find(|arch| !arch.is_host()).expect("there are two")
    }

    pub(crate) fn is_host(&self) -> bool {
        self.name == ARCH
    }

    /// A tool of the GNU toolchain for this architecture.
    pub(crate) fn tool(&self, name: &str) -> String {
        if self.is_host() { name.to_owned() } else { format!("{}-{name}", self.gnu) }
    }

    /// The variable by which cargo learns of this target's `what`.
    pub(crate) fn cargo_variable(&self, what: &str) -> String {
        format!("CARGO_TARGET_{}_{what}", self.target.to_uppercase().replace('-', "_"))
    }

    /// What compiles C++ for it here.
    pub(crate) fn cxx_package(&self) -> &'static str {
        if self.is_host() { "g++" } else { self.cross_cxx_package }
    }

    /// Whether C can be compiled for it.
    pub(crate) fn has_compiler(&self) -> bool {
        project::find(&self.tool("gcc")).is_some()
    }
}

/// Both.
pub(crate) fn all() -> &'static [Arch] {
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that each architecture is found by its name, and that an unknown one says which there are.
    #[test]
    fn names() {
        for arch in all() {
            assert_eq!(Arch::named(arch.name).expect("it is in the table").target, arch.target);
        }
        assert_eq!(Arch::named("arm").expect_err("no such").to_string(), "no architecture `arm`: x86_64 or aarch64");
        assert_ne!(Arch::other().name, ARCH);
    }

    /// Make sure that cargo's variables are spelled its way.
    #[test]
    fn variables() {
        let arch = Arch::named("aarch64").expect("it is in the table");
        assert_eq!(arch.cargo_variable("LINKER"), "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
    }
}
