//! Operators of CANN's library (`aclnn…`), where they launch their kernels. Only for block watch.
//!
//! The second phase of each, `aclnnX(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream
//! stream)`, passes all of it to one of two functions of `libnnopbase.so`, by a call that is not its last instruction:
//! so it is in the one such library that was available (`libcust_opapi.so` of vLLM-Ascend 0.23.0 for aarch64: 43 calls,
//! no jump), and in CANN's published code. The return address of such a call identifies the operator; thousands of
//! functions need no probes for that.
//!
//! An executor does not show which tensors the operator writes.

use memscope_common::When;

use crate::probes::{CallKind, Layer, ProbeSpec, WatchCall};

const RUN: ProbeSpec = ProbeSpec {
    layer: Layer::Ops,
    libraries: &["libnnopbase.so"],
    meaning: CallKind::Watch(WatchCall::AclnnOp),
    may_throw: true,
    when: When::OwnReturn,
    ..ProbeSpec::BASE
};

pub(super) const ROWS: &[ProbeSpec] = &[
    // aclnnStatus CommonOpExecutorRun(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
    ProbeSpec { symbol: "_Z19CommonOpExecutorRunPvmP13aclOpExecutorS_", ..RUN },
    // aclnnStatus NnopbaseRunWithWorkspace(void *executor, aclrtStream stream, void *workspace, uint64_t workspaceSize)
    ProbeSpec { symbol: "NnopbaseRunWithWorkspace", ..RUN },
];
