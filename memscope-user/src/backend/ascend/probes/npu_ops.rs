//! Operators of `torch_npu`, by name.

use memscope_common::When;

use crate::probes::{CallKind, Layer, ProbeSpec, TorchCall, WatchCall};

const NPU: ProbeSpec = ProbeSpec {
    layer: Layer::Ops,
    libraries: &["libtorch_npu.so"],
    meaning: CallKind::Torch(TorchCall::Submit),
    may_throw: true,
    when: When::Entry,
    returns_int: false,
    text_arg: Some(0),
    text_at: Some(0),
    ..ProbeSpec::BASE
};

/// `static void RunOpApi…(const std::string &opName, …)`, with either ABI of `std::string`: both begin with a pointer to
/// the text.
const SYMBOLS: [&str; 5] = [
    "_ZN6at_npu6native9OpCommand8RunOpApiERKSsSt8functionIFivEEb",
    "_ZN6at_npu6native9OpCommand10RunOpApiV2ERKSsRKSt8functionIFivEEb",
    "_ZN6at_npu6native9OpCommand8RunOpApiERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt8functionIFivEEb",
    "_ZN6at_npu6native9OpCommand10RunOpApiV2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8functionIFivEEb",
    "_ZN6at_npu6native9OpCommand10RunOpApiV3ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8functionIFivEEbPN7c10_npu9NPUStreamE",
];

const fn rows(meaning: CallKind, when: When) -> [ProbeSpec; SYMBOLS.len()] {
    let mut rows = [NPU; SYMBOLS.len()];
    let mut at = 0;
    while at < rows.len() {
        rows[at] = ProbeSpec { symbol: SYMBOLS[at], meaning, when, ..NPU };
        at += 1;
    }
    rows
}

pub(super) const ROWS: &[ProbeSpec] = &rows(CallKind::Torch(TorchCall::Submit), When::Entry);
/// Where they return.
pub(super) const ENDS: [ProbeSpec; SYMBOLS.len()] = rows(CallKind::Watch(WatchCall::NpuOpEnd), When::OwnReturn);
