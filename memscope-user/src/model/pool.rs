//! What pools are: where they have their memory from, and how their figures are to be read.

use super::Pool;

/// Where a pool has its memory from. Analyses ask for it, never for the pool's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolLevel {
    /// Device memory, from the driver.
    Driver,
    /// Host memory, from the driver.
    Host,
    /// A framework's pool, within memory of the driver.
    Framework,
    /// Workspaces of a framework or a library of operators.
    Workspace,
    /// A pool that a program or the user has named.
    Custom,
}

/// Operators that work on a pool's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolOperators {
    /// `PyTorch`'s.
    Torch,
    /// ATB's.
    Atb,
}

impl Pool {
    /// What the pool is: where it has its memory from.
    #[must_use]
    pub const fn level(self) -> PoolLevel {
        match self {
            Self::Hal => PoolLevel::Driver,
            Self::Host => PoolLevel::Host,
            Self::Pta | Self::MindSpore => PoolLevel::Framework,
            Self::PtaWorkspace | Self::Atb => PoolLevel::Workspace,
            Self::Named(_) => PoolLevel::Custom,
        }
    }

    /// Its name on the first screen.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Hal => "driver",
            Self::Host => "host",
            Self::Pta => "PyTorch pool",
            Self::PtaWorkspace => "PyTorch workspaces",
            Self::Atb => "ATB pool",
            Self::MindSpore => "MindSpore pool",
            Self::Named(name) => name.as_str(),
        }
    }

    /// Device memory, from the driver itself.
    #[must_use]
    pub const fn is_driver(self) -> bool {
        matches!(self.level(), PoolLevel::Driver)
    }

    /// Host memory, from the driver.
    #[must_use]
    pub const fn is_host(self) -> bool {
        matches!(self.level(), PoolLevel::Host)
    }

    /// Memory that no pool hands out: the driver's, of device or host.
    #[must_use]
    pub const fn is_base(self) -> bool {
        matches!(self.level(), PoolLevel::Driver | PoolLevel::Host)
    }

    /// A framework's own pool, which its tensors are in.
    #[must_use]
    pub const fn is_framework(self) -> bool {
        matches!(self.level(), PoolLevel::Framework)
    }

    /// One of a framework that this program knows, for tensors or for workspaces; the user has named the others.
    #[must_use]
    pub const fn is_known_framework(self) -> bool {
        matches!(self.level(), PoolLevel::Framework | PoolLevel::Workspace)
    }

    /// Operators that work on its blocks.
    #[must_use]
    pub const fn operators(self) -> Option<PoolOperators> {
        match self {
            Self::Pta => Some(PoolOperators::Torch),
            Self::Atb => Some(PoolOperators::Atb),
            _ => None,
        }
    }

    /// Its operators have events of their own, to align two runs by.
    #[must_use]
    pub const fn has_operators(self) -> bool {
        !matches!(self, Self::MindSpore)
    }

    /// A workspace that grows is reported with the pool's figure from before, and once more for the same block.
    #[must_use]
    pub const fn grows_in_place(self) -> bool {
        matches!(self, Self::PtaWorkspace)
    }

    /// A heap that is registered for it is all that the pool holds, not one more part (contract §11).
    #[must_use]
    pub const fn heap_is_total(self) -> bool {
        matches!(self, Self::Pta | Self::PtaWorkspace | Self::MindSpore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a pool is says where its memory is from: of the driver's own two, device memory is apart from host memory.
    #[test]
    fn levels_of_pools() {
        let levels =
            [Pool::Hal, Pool::Host, Pool::Pta, Pool::MindSpore, Pool::PtaWorkspace, Pool::Atb, Pool::custom("x")]
                .map(Pool::level);
        let (framework, workspace) = (PoolLevel::Framework, PoolLevel::Workspace);
        let expected =
            [PoolLevel::Driver, PoolLevel::Host, framework, framework, workspace, workspace, PoolLevel::Custom];
        assert_eq!(levels, expected);
        assert!([Pool::Hal, Pool::Host].iter().all(|pool| pool.is_base()));
        assert_eq!((Pool::Hal.is_host(), Pool::Host.is_driver(), Pool::Pta.is_base()), (false, false, false));
    }
}
