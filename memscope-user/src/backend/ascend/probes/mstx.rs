//! Marks and pools: the exports of `libms_tools_ext.so`, entered whether or not a tool is injected (ascend-abi §5).
//!
//! Programs that use only mstx's headers have their own copy of each function (`inline static`), and of the functions
//! it calls. The same rows serve such copies, where they have symbols, and our own tool, which `run --mstx-injection`
//! makes them call. Calls that lead to each other count as one.

use memscope_common::{Fetch, ListShape, When};

use crate::probes::{CallKind, Field, Group, Layer, Locator, MSTX_TOOL, MstxCall, ProbeSpec};

const MSTX: ProbeSpec = ProbeSpec {
    layer: Layer::Mstx,
    libraries: &["libms_tools_ext.so", MSTX_TOOL],
    group: Group::Mstx,
    returns_int: false,
    ..ProbeSpec::BASE
};

/// Of a domain, which is the first argument.
const DOMAIN: (Field, Fetch) = (Field::Domain, Fetch::arg(0));

/// `mstxMemVirtualRangeDesc_t { uint32_t deviceId; const void *ptr; uint64_t size }`
const RANGE: [(Field, Fetch); 3] =
    [(Field::Device, Fetch::element(1, 0)), (Field::Addr, Fetch::element(1, 8)), (Field::Size, Fetch::element(1, 16))];
const RANGE_BYTES: u8 = 24;

/// The Python module `mstx`: a user of the headers alone, stripped. `When::OwnReturn` spans the call that parses the
/// method's arguments and writes the text's address through its C argument `place`. Without an id: that goes to Python
/// alone.
const MODULE: ProbeSpec = ProbeSpec {
    libraries: &["mstx.so", "mstx.*.so"],
    when: When::OwnReturn,
    text_at: Some(0),
    group: Group::None,
    may_throw: true,
    ..MSTX
};

const fn parsed(method: &'static str, place: u8) -> Locator {
    Locator::MstxParse { method, place }
}

pub(super) const ROWS: &[ProbeSpec] = &[
    // PyObject *mark(PyObject *self, PyObject *args, PyObject *keywords), which calls
    // int PyArg_ParseTupleAndKeywords(PyObject *, PyObject *, const char *, char *[], const char **message, …)
    ProbeSpec {
        symbol: "mstx.mark",
        meaning: CallKind::Mstx(MstxCall::Mark),
        locator: Some(parsed("mark", 4)),
        text_arg: Some(4),
        ..MODULE
    },
    // The same, which calls int parse(PyObject *args, PyObject *keywords, const char **message, …)
    ProbeSpec {
        symbol: "mstx.mark",
        meaning: CallKind::Mstx(MstxCall::Mark),
        locator: Some(parsed("mark", 2)),
        text_arg: Some(2),
        ..MODULE
    },
    // PyObject *range_start(PyObject *self, PyObject *args, PyObject *keywords), both as above.
    ProbeSpec {
        symbol: "mstx.range_start",
        meaning: CallKind::Mstx(MstxCall::RangeStart),
        locator: Some(parsed("range_start", 4)),
        text_arg: Some(4),
        ..MODULE
    },
    ProbeSpec {
        symbol: "mstx.range_start",
        meaning: CallKind::Mstx(MstxCall::RangeStart),
        locator: Some(parsed("range_start", 2)),
        text_arg: Some(2),
        ..MODULE
    },
    // PyObject *range_end(PyObject *self, PyObject *args, PyObject *keywords)
    ProbeSpec {
        symbol: "mstx.range_end",
        meaning: CallKind::Mstx(MstxCall::RangeEnd),
        when: When::Entry,
        locator: Some(Locator::MstxMethod("range_end")),
        text_at: None,
        ..MODULE
    },
    // void mstxMarkA(const char *message, aclrtStream stream)
    ProbeSpec {
        symbol: "mstxMarkA",
        meaning: CallKind::Mstx(MstxCall::Mark),
        when: When::Entry,
        text_arg: Some(0),
        ..MSTX
    },
    // mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream): 0 when no tool is injected.
    ProbeSpec {
        symbol: "mstxRangeStartA",
        meaning: CallKind::Mstx(MstxCall::RangeStart),
        when: When::EntryAndNonZero,
        text_arg: Some(0),
        ..MSTX
    },
    // void mstxRangeEnd(mstxRangeId id)
    ProbeSpec {
        symbol: "mstxRangeEnd",
        meaning: CallKind::Mstx(MstxCall::RangeEnd),
        when: When::Entry,
        fields: &[(Field::RangeId, Fetch::arg(0))],
        ..MSTX
    },
    // mstxDomainHandle_t mstxDomainCreateA(const char *name): null when no tool is injected.
    ProbeSpec {
        symbol: "mstxDomainCreateA",
        meaning: CallKind::Mstx(MstxCall::DomainCreate),
        text_arg: Some(0),
        ..MSTX
    },
    // void mstxDomainDestroy(mstxDomainHandle_t domain)
    ProbeSpec {
        symbol: "mstxDomainDestroy",
        meaning: CallKind::Mstx(MstxCall::DomainDestroy),
        when: When::Entry,
        fields: &[DOMAIN],
        ..MSTX
    },
    // void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream)
    ProbeSpec {
        symbol: "mstxDomainMarkA",
        meaning: CallKind::Mstx(MstxCall::Mark),
        when: When::Entry,
        fields: &[DOMAIN],
        text_arg: Some(1),
        ..MSTX
    },
    // mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message, aclrtStream stream)
    ProbeSpec {
        symbol: "mstxDomainRangeStartA",
        meaning: CallKind::Mstx(MstxCall::RangeStart),
        when: When::EntryAndNonZero,
        fields: &[DOMAIN],
        text_arg: Some(1),
        ..MSTX
    },
    // void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id)
    ProbeSpec {
        symbol: "mstxDomainRangeEnd",
        meaning: CallKind::Mstx(MstxCall::RangeEnd),
        when: When::Entry,
        fields: &[DOMAIN, (Field::RangeId, Fetch::arg(1))],
        ..MSTX
    },
    // mstxMemHeapHandle_t mstxMemHeapRegister(mstxDomainHandle_t domain, const mstxMemHeapDesc_t *desc): null when no tool
    // is injected. desc: { uint32_t usage; uint32_t type; const mstxMemVirtualRangeDesc_t *typeSpecificDesc }
    ProbeSpec {
        symbol: "mstxMemHeapRegister",
        meaning: CallKind::Mstx(MstxCall::HeapRegister),
        fields: &[DOMAIN, RANGE[0], RANGE[1], RANGE[2]],
        list: Some(ListShape {
            arg: 1,
            count_at: ListShape::NONE,
            elements_at: 8,
            stride: RANGE_BYTES,
            companions_at: ListShape::NONE,
        }),
        ..MSTX
    },
    // void mstxMemHeapUnregister(mstxDomainHandle_t domain, mstxMemHeapHandle_t heap)
    ProbeSpec {
        symbol: "mstxMemHeapUnregister",
        meaning: CallKind::Mstx(MstxCall::HeapUnregister),
        when: When::Entry,
        fields: &[DOMAIN, (Field::Handle, Fetch::arg(1))],
        ..MSTX
    },
    // void mstxMemRegionsRegister(mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *desc); at return, because
    // the tool writes the handles. desc: { heap; uint32_t regionType; size_t regionCount;
    // const mstxMemVirtualRangeDesc_t *regionDescArray; mstxMemRegionHandle_t *regionHandleArrayOut }
    ProbeSpec {
        symbol: "mstxMemRegionsRegister",
        meaning: CallKind::Mstx(MstxCall::RegionRegister),
        fields: &[DOMAIN, RANGE[0], RANGE[1], RANGE[2], (Field::Handle, Fetch::companion(1))],
        list: Some(ListShape { arg: 1, count_at: 16, elements_at: 24, stride: RANGE_BYTES, companions_at: 32 }),
        ..MSTX
    },
    // void mstxMemRegionsUnregister(mstxDomainHandle_t domain, const mstxMemRegionsUnregisterBatch_t *desc)
    // desc: { size_t refCount; const mstxMemRegionRef_t *refArray }, a reference: { uint32_t refType; const void *pointer }
    ProbeSpec {
        symbol: "mstxMemRegionsUnregister",
        meaning: CallKind::Mstx(MstxCall::RegionUnregister),
        when: When::Entry,
        fields: &[DOMAIN, (Field::ReferenceKind, Fetch::element(1, 0)), (Field::Addr, Fetch::element(1, 8))],
        list: Some(ListShape { arg: 1, count_at: 0, elements_at: 8, stride: 16, companions_at: ListShape::NONE }),
        ..MSTX
    },
];
