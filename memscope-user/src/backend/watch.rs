//! Rows for block watch only, and rows that count as operators there.

use memscope_common::row::{ROW_BOUNDARY, ROW_CAPTURE_BEGIN, ROW_CAPTURE_END, ROW_CLOSED};

use crate::probes::{AtbCall, CallKind, LaunchCall, Layer, ProbeSpec, WATCH_MARKERS, WatchCall};

/// Rows for block watch only.
#[must_use]
pub fn rows() -> Vec<&'static ProbeSpec> {
    super::current().watch_tables().iter().copied().chain([WATCH_MARKERS]).flatten().collect()
}

/// The operators at which watched blocks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLevels {
    /// At operations of ATB, operators of CANN's library and of `torch_npu`.
    pub op: bool,
    /// At launches of kernels.
    pub kernel: bool,
}

/// Flags of a row for block watch: `ROW_*` bits.
#[must_use]
pub fn flags(spec: &ProbeSpec, levels: WatchLevels) -> u16 {
    let boundary = match spec.meaning {
        CallKind::Atb(AtbCall::End) | CallKind::Watch(WatchCall::NpuOpEnd | WatchCall::AclnnOp) => levels.op,
        CallKind::Launch(LaunchCall::Launch) => levels.kernel,
        CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch) => true,
        _ => false,
    };
    let capture = match (spec.meaning, super::current().begins_capture(spec.symbol)) {
        (CallKind::Watch(WatchCall::Capture), true) => ROW_CAPTURE_BEGIN,
        (CallKind::Watch(WatchCall::Capture), false) => ROW_CAPTURE_END,
        _ => 0,
    };
    // A function not known to be free of locks may hold one.
    let open = matches!(spec.layer, Layer::Atb | Layer::Ops | Layer::Script | Layer::Mstx);
    capture | if boundary { ROW_BOUNDARY } else { 0 } | if open { 0 } else { ROW_CLOSED }
}

#[cfg(test)]
mod tests {
    use memscope_common::When;

    use super::super::builtin;
    use super::*;
    use crate::probes::TorchCall;

    fn of(symbol: &str, op: bool, kernel: bool) -> u16 {
        let spec = builtin().chain(rows()).find(|spec| spec.symbol == symbol).expect("a row");
        flags(spec, WatchLevels { op, kernel })
    }

    #[test]
    fn rows_at_each_level() {
        let run = "NnopbaseRunWithWorkspace";
        assert_eq!([of(run, true, false), of(run, false, true)], [ROW_BOUNDARY, 0]);
        let launch = "rtKernelLaunch";
        assert_eq!([of(launch, true, false), of(launch, false, true)], [ROW_CLOSED, ROW_CLOSED | ROW_BOUNDARY]);
        assert_eq!(of("halMemAlloc", true, true), ROW_CLOSED);
        assert_eq!(of("aclmdlRICaptureBegin", true, true), ROW_CLOSED | ROW_CAPTURE_BEGIN);
        assert_eq!(of("aclmdlRICaptureEnd", true, true), ROW_CLOSED | ROW_CAPTURE_END);
        assert_eq!(of("memscope_mark_watch", false, false), ROW_BOUNDARY);
    }

    /// Every operator with a reported start has a reported end.
    #[test]
    fn operators_have_ends() {
        for spec in builtin().filter(|spec| spec.meaning == CallKind::Torch(TorchCall::Submit)) {
            let ends: Vec<_> = rows().into_iter().filter(|end| end.symbol == spec.symbol).collect();
            assert!(ends.len() == 1 && ends[0].when == When::OwnReturn, "{}", spec.symbol);
        }
    }

    /// One row has both sides of an operator: none is compared twice.
    #[test]
    fn operators_are_looked_at_once_on_each_side() {
        let levels = WatchLevels { op: true, kernel: true };
        let is_operator = |spec: &&ProbeSpec| {
            let marker = matches!(spec.meaning, CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch));
            flags(spec, levels) & ROW_BOUNDARY != 0 && !marker
        };
        let operators: Vec<_> = builtin().chain(rows()).filter(is_operator).collect();
        assert!(operators.iter().all(|spec| spec.row().is_paired()));
        let same =
            |a: &ProbeSpec, b: &ProbeSpec| a.symbol == b.symbol && a.requires == b.requires && a.layer == b.layer;
        for spec in &operators {
            assert_eq!(operators.iter().filter(|other| same(spec, other)).count(), 1, "{}", spec.symbol);
        }
    }
}
