//! Which files are of interest, by their names, and which rows they may have.

use super::Libraries;
use crate::{
    os::maps::Mapped,
    probes::{
        AtbCall, CallKind, Layer, ProbeSpec, ScriptCall,
        ops::{CXX_LIBRARY, TORCH_LIBRARY},
    },
};

impl Libraries {
    pub(super) fn is_wanted(&self, mapped: &Mapped) -> bool {
        self.is_wanted_name(mapped.file_name())
    }

    /// Whether a file of this name is probed for the end of its process alone.
    pub(super) fn is_of_process(&self, name: &str) -> bool {
        let of_file = || self.rows.iter().filter(|(_, spec)| matches(spec, name));
        of_file().next().is_some() && of_file().all(|(_, spec)| spec.layer == Layer::Process)
    }

    pub(super) fn is_wanted_name(&self, name: &str) -> bool {
        is_loader(name)
            || self.has_ops(name)
            || self.has_catch(name)
            || self.rows.iter().any(|(_, spec)| self.takes(spec) && matches(spec, name))
    }

    /// Whether to search this file for operators.
    pub(super) fn has_ops(&self, file_name: &str) -> bool {
        self.ops.choice.torch() && is_library(file_name, TORCH_LIBRARY)
    }

    /// Whether exceptions are caught through this file.
    pub(super) fn has_catch(&self, file_name: &str) -> bool {
        self.ops.choice.torch() && is_library(file_name, CXX_LIBRARY)
    }

    /// Whether to place the row.
    pub(super) fn takes(&self, spec: &ProbeSpec) -> bool {
        if self.mstx_tool && spec.is_stand_in() {
            return false;
        }
        match spec.meaning {
            CallKind::Atb(AtbCall::Tensors) => self.ops.accesses && self.serves_arrays,
            CallKind::Script(ScriptCall::TraceRows) => self.serves_arrays,
            _ => spec.layer != Layer::Ops || self.watches || self.ops.choice.npu(),
        }
    }
}

/// `libfoo.so` matches `libfoo.so` and `libfoo.so.1`.
///
/// One `*` in the name matches anything.
pub(in crate::follow) fn matches(spec: &ProbeSpec, file_name: &str) -> bool {
    spec.libraries.iter().any(|library| is_library(file_name, library))
}

/// Whether a file of this name is of the Ascend stack. The C library and Python are not.
#[cfg(feature = "cli")]
pub(crate) fn is_vendor_library(file_name: &str) -> bool {
    static NAMES: std::sync::LazyLock<std::collections::BTreeSet<&str>> = std::sync::LazyLock::new(|| {
        let specs = crate::backend::builtin().filter(|spec| spec.layer != Layer::Process);
        specs.flat_map(|spec| spec.libraries.iter().copied()).collect()
    });
    file_name.contains(".so") && NAMES.iter().any(|library| is_library(file_name, library))
}

fn is_library(file_name: &str, library: &str) -> bool {
    let is_version = |rest: &str| rest.is_empty() || rest.starts_with('.');
    match library.split_once('*') {
        None => file_name.strip_prefix(library).is_some_and(is_version),
        Some((head, tail)) => file_name.strip_prefix(head).is_some_and(|rest| {
            rest.match_indices(tail).any(|(at, _)| rest.get(at + tail.len()..).is_some_and(is_version))
        }),
    }
}

/// glibc's and musl's dynamic loaders.
pub(super) fn is_loader(file_name: &str) -> bool {
    (file_name.starts_with("ld-linux") || file_name.starts_with("ld-musl") || file_name.starts_with("ld-2."))
        && file_name.contains(".so")
}
