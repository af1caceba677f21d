//! Marks: the exports of `libms_tools_ext.so`, entered whether or not a tool is injected.

use memscope_common::{Fetch, When};

use super::{Field, Layer, Meaning, ProbeSpec};

const MSTX: ProbeSpec =
    ProbeSpec { layer: Layer::Mstx, libraries: &["libms_tools_ext.so"], returns_int: false, ..ProbeSpec::BASE };

pub(super) const ROWS: &[ProbeSpec] = &[
    // void mstxMarkA(const char *message, aclrtStream stream)
    ProbeSpec { symbol: "mstxMarkA", meaning: Meaning::Mark, when: When::Entry, text_arg: Some(0), ..MSTX },
    // mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream): 0 when no tool is injected.
    ProbeSpec {
        symbol: "mstxRangeStartA",
        meaning: Meaning::RangeStart,
        when: When::EntryAndNonZero,
        text_arg: Some(0),
        ..MSTX
    },
    // void mstxRangeEnd(mstxRangeId id)
    ProbeSpec {
        symbol: "mstxRangeEnd",
        meaning: Meaning::RangeEnd,
        when: When::Entry,
        fields: &[(Field::RangeId, Fetch::arg(0))],
        ..MSTX
    },
];
