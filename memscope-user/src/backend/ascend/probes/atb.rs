//! ATB: when an operation runs, with which workspace and which tensors (ascend-abi §7).
//!
//! Both C++ ABIs have the same functions, and the operation's name elsewhere in the object; a getter that only one of
//! them has identifies the ABI. The getter's own first load was the same offset in the one available build (abi 0,
//! aarch64).

use memscope_common::{ArrayShape, Fetch, When};

use crate::probes::{AtbCall, CallKind, Field, Layer, ProbeSpec};

/// `std::string Runner::GetOperationName() const`
const GETTER_ABI0: &str = "_ZNK3atb6Runner16GetOperationNameEv";
const GETTER_ABI1: &str = "_ZNK3atb6Runner16GetOperationNameB5cxx11Ev";
/// Offsets of `Runner::operationName_`; its first word points to its characters in both ABIs.
const NAME_ABI0: u8 = 112;
const NAME_ABI1: u8 = 184;

const ATB: ProbeSpec = ProbeSpec { layer: Layer::Atb, libraries: &["libatb.so"], may_throw: true, ..ProbeSpec::BASE };

/// `Status Runner::Execute(RunnerVariantPack &pack)`
const EXECUTE: ProbeSpec = ProbeSpec {
    symbol: "_ZN3atb6Runner7ExecuteERNS_17RunnerVariantPackE",
    fields: &[
        (Field::WorkspaceAddr, Fetch::memory(1, 13_784)),
        (Field::WorkspaceSize, Fetch::memory(1, 13_792)),
        (Field::IntermediateSize, Fetch::memory(1, 13_808)),
    ],
    text_arg: Some(0),
    ..ATB
};

const START: ProbeSpec = ProbeSpec { meaning: CallKind::Atb(AtbCall::Start), when: When::Entry, ..EXECUTE };
const END: ProbeSpec = ProbeSpec { meaning: CallKind::Atb(AtbCall::End), when: When::OwnReturn, ..EXECUTE };

/// Tensors in one row: all that fit into a record besides the name.
const PART: u8 = 15;
/// `RunnerVariantPack::inTensors` and `outTensors`, each an `SVector<Tensor>`.
const INPUTS: (Field, Fetch) = (Field::Inputs, Fetch::array(1, 0));
const OUTPUTS: (Field, Fetch) = (Field::Outputs, Fetch::array(1, 6784));

/// `SVector<Tensor>`: capacity, number, room for 65 tensors of 104 bytes, and a pointer that is not null when there are
/// more. `StoreUtil::SaveVariantPack` of that build reads them so.
///
/// The rows of one operation are in the reverse of the order in which they are seen.
const fn tensors(name_at: u8, what: &'static [(Field, Fetch); 2], first: u8, most: u8) -> ProbeSpec {
    ProbeSpec {
        symbol: EXECUTE.symbol,
        requires: Some(if name_at == NAME_ABI0 { GETTER_ABI0 } else { GETTER_ABI1 }),
        meaning: CallKind::Atb(AtbCall::Tensors),
        when: When::Array,
        fields: what,
        array: Some(ArrayShape { count_at: 8, elements_at: 16, stride: 104, room: 65, first, most }),
        ..ATB
    }
}

const TEXT_ABI0: (Field, Fetch) = (Field::Name, Fetch::text(0, NAME_ABI0 as u16));
const TEXT_ABI1: (Field, Fetch) = (Field::Name, Fetch::text(0, NAME_ABI1 as u16));

/// `Status OperationBase::Execute(const VariantPack &pack, uint8_t *workspace, uint64_t workspaceSize, Context
/// *context)`: called by the user of ATB. It runs runners, which do not call it.
const OPERATION: ProbeSpec = ProbeSpec {
    symbol: "_ZN3atb13OperationBase7ExecuteERKNS_11VariantPackEPhmPNS_7ContextE",
    fields: &[(Field::Addr, Fetch::arg(2)), (Field::Size, Fetch::arg(3))],
    ..ATB
};

pub(super) const ROWS: &[ProbeSpec] = &[
    ProbeSpec { requires: Some(GETTER_ABI0), text_at: Some(NAME_ABI0), ..START },
    ProbeSpec { requires: Some(GETTER_ABI0), text_at: Some(NAME_ABI0), ..END },
    ProbeSpec { requires: Some(GETTER_ABI1), text_at: Some(NAME_ABI1), ..START },
    ProbeSpec { requires: Some(GETTER_ABI1), text_at: Some(NAME_ABI1), ..END },
    ProbeSpec { meaning: CallKind::Atb(AtbCall::WorkspaceBegin), when: When::Entry, ..OPERATION },
    ProbeSpec { meaning: CallKind::Atb(AtbCall::WorkspaceEnd), when: When::OwnReturn, ..OPERATION },
    tensors(NAME_ABI0, &[TEXT_ABI0, OUTPUTS], 0, u8::MAX),
    tensors(NAME_ABI0, &[TEXT_ABI0, INPUTS], 2 * PART, u8::MAX),
    tensors(NAME_ABI0, &[TEXT_ABI0, INPUTS], PART, PART),
    tensors(NAME_ABI0, &[TEXT_ABI0, INPUTS], 0, PART),
    tensors(NAME_ABI1, &[TEXT_ABI1, OUTPUTS], 0, u8::MAX),
    tensors(NAME_ABI1, &[TEXT_ABI1, INPUTS], 2 * PART, u8::MAX),
    tensors(NAME_ABI1, &[TEXT_ABI1, INPUTS], PART, PART),
    tensors(NAME_ABI1, &[TEXT_ABI1, INPUTS], 0, PART),
];
