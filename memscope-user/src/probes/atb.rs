//! ATB: when an operation runs, and with which workspace (ascend-abi §7).
//!
//! Both C++ ABIs have the same function, and the operation's name elsewhere in the object; a getter that only one of them has
//! tells which it is. The getter's own first load was the same offset in the one build that could be looked at (abi 0).

use memscope_common::{Fetch, When};

use super::{Field, Layer, Meaning, ProbeSpec};

/// `std::string Runner::GetOperationName() const`
const GETTER_ABI0: &str = "_ZNK3atb6Runner16GetOperationNameEv";
const GETTER_ABI1: &str = "_ZNK3atb6Runner16GetOperationNameB5cxx11Ev";
/// Offsets of `Runner::operationName_`, whose first word points to its characters in both ABIs.
const NAME_ABI0: u8 = 112;
const NAME_ABI1: u8 = 184;

/// `Status Runner::Execute(RunnerVariantPack &pack)`
const EXECUTE: ProbeSpec = ProbeSpec {
    layer: Layer::Atb,
    libraries: &["libatb.so"],
    symbol: "_ZN3atb6Runner7ExecuteERNS_17RunnerVariantPackE",
    fields: &[
        (Field::WorkspaceAddr, Fetch::memory(1, 13_784)),
        (Field::WorkspaceSize, Fetch::memory(1, 13_792)),
        (Field::IntermediateSize, Fetch::memory(1, 13_808)),
    ],
    text_arg: Some(0),
    may_throw: true,
    ..ProbeSpec::BASE
};

const START: ProbeSpec = ProbeSpec { meaning: Meaning::AtbStart, when: When::Entry, ..EXECUTE };
const END: ProbeSpec = ProbeSpec { meaning: Meaning::AtbEnd, when: When::OwnReturn, ..EXECUTE };

pub(super) const ROWS: &[ProbeSpec] = &[
    ProbeSpec { requires: Some(GETTER_ABI0), text_at: Some(NAME_ABI0), ..START },
    ProbeSpec { requires: Some(GETTER_ABI0), text_at: Some(NAME_ABI0), ..END },
    ProbeSpec { requires: Some(GETTER_ABI1), text_at: Some(NAME_ABI1), ..START },
    ProbeSpec { requires: Some(GETTER_ABI1), text_at: Some(NAME_ABI1), ..END },
];
