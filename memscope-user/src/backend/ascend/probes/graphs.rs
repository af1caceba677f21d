//! Captured graphs. Only for block watch.

use memscope_common::When;

use crate::probes::{CallKind, Layer, ProbeSpec, WatchCall};

const CAPTURE: ProbeSpec = ProbeSpec {
    layer: Layer::Acl,
    libraries: &["libascendcl.so", "libacl_rt.so"],
    meaning: CallKind::Watch(WatchCall::Capture),
    when: When::Entry,
    ..ProbeSpec::BASE
};
/// aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode)
pub(super) const CAPTURE_BEGIN: ProbeSpec = ProbeSpec { symbol: "aclmdlRICaptureBegin", ..CAPTURE };
/// aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *modelRI)
const CAPTURE_END: ProbeSpec = ProbeSpec { symbol: "aclmdlRICaptureEnd", ..CAPTURE };

pub(super) const ROWS: &[ProbeSpec] = &[CAPTURE_BEGIN, CAPTURE_END];
