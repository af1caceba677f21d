//! Releases in which rules of the pool, or its settings, changed.

use schemars::JsonSchema;
use serde::Serialize;

/// Which caching allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// `torch_npu`'s.
    #[default]
    Npu,
    /// `PyTorch`'s own for CUDA: the same rules without the pad, with keys of its own.
    Cuda,
}

impl Family {
    /// Its newest release.
    #[must_use]
    pub const fn newest(self) -> Release {
        match self {
            Self::Npu => Release::Next,
            Self::Cuda => Release::TorchMain,
        }
    }

    /// Its devices, as programs call them.
    #[must_use]
    pub const fn device_word(self) -> &'static str {
        match self {
            Self::Npu => "npu",
            Self::Cuda => "cuda",
        }
    }
}

/// A release of `torch_npu`, by its branch, or of `PyTorch`, with CUDA's allocator. Those of one allocator stand together, oldest
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// v2.1.0-6.0.0.
    V6_0,
    /// v7.0.0 (`PyTorch` 2.5.1).
    V7_0,
    /// v7.2.0 (2.7.1).
    V7_2,
    /// v7.3.0 (2.9.0).
    V7_3,
    /// v26.0.0.
    V26_0,
    /// v26.1.0.
    V26_1,
    /// Releases after v26.1.0.
    #[default]
    Next,
    /// `PyTorch` 2.9 and earlier: sources of earlier releases differ in the keys they have, not in what those mean.
    Torch2_9,
    /// `PyTorch` 2.14.
    Torch2_14,
    /// Releases after 2.14.
    TorchMain,
}

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Self; 10] = [
        Self::V6_0,
        Self::V7_0,
        Self::V7_2,
        Self::V7_3,
        Self::V26_0,
        Self::V26_1,
        Self::Next,
        Self::Torch2_9,
        Self::Torch2_14,
        Self::TorchMain,
    ];

    /// Its name. Those of `PyTorch` begin with `torch-`, as `torch_npu` has numbers like them.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_0 => "6.0.0",
            Self::V7_0 => "7.0.0",
            Self::V7_2 => "7.2.0",
            Self::V7_3 => "7.3.0",
            Self::V26_0 => "26.0.0",
            Self::V26_1 => "26.1.0",
            Self::Next => "master",
            Self::Torch2_9 => "torch-2.9",
            Self::Torch2_14 => "torch-2.14",
            Self::TorchMain => "torch-main",
        }
    }

    /// The release of a name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|release| release.name() == name)
    }

    /// The allocator that it is a release of.
    #[must_use]
    pub fn family(self) -> Family {
        if self < Self::Torch2_9 { Family::Npu } else { Family::Cuda }
    }

    /// A memory fraction of 1 is a limit, too.
    #[must_use]
    pub fn limits_whole_fraction(self) -> bool {
        self < Self::Next || self == Self::Torch2_9
    }
}
