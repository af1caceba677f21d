//! `libruntime`: devices, kernel registrations and launches (ascend-abi §3, §4, §8).

use memscope_common::{Fetch, When};

use crate::probes::{CallKind, FailingCall, Field, Group, LaunchCall, Layer, ProbeSpec, RuntimeCall};

/// 9.x splits the runtime: chip-specific parts carry the same exports.
const LIBRARIES: &[&str] =
    &["libruntime.so", "libruntime_common.so", "libruntime_v100.so", "libruntime_v200.so", "libruntime_v201.so"];

const RT: ProbeSpec = ProbeSpec { layer: Layer::Runtime, libraries: LIBRARIES, ..ProbeSpec::BASE };

const LAUNCH: ProbeSpec =
    ProbeSpec { meaning: CallKind::Launch(LaunchCall::Launch), when: When::Entry, group: Group::Launch, ..RT };

/// `Handle` and `Stream` of a launch.
macro_rules! launch {
    ($symbol:literal, handle $handle:literal, stream $stream:literal) => {
        ProbeSpec {
            symbol: $symbol,
            fields: &[(Field::Handle, Fetch::arg($handle)), (Field::Stream, Fetch::arg($stream))],
            ..LAUNCH
        }
    };
}

/// An allocation; see the same in `acl`.
const ALLOC: ProbeSpec = ProbeSpec {
    meaning: CallKind::Failing(FailingCall::Alloc),
    when: When::Failure,
    group: Group::Alloc,
    fields: &[(Field::Size, Fetch::arg(1))],
    ..RT
};

/// An allocation with its kind of memory.
macro_rules! alloc {
    ($symbol:literal, type $kind:literal) => {
        ProbeSpec {
            symbol: $symbol,
            fields: &[(Field::Size, Fetch::arg(1)), (Field::Flags, Fetch::arg($kind))],
            ..ALLOC
        }
    };
}

pub(super) const ROWS: &[ProbeSpec] = &[
    // rtError_t rtSetDevice(int32_t device)
    ProbeSpec {
        symbol: "rtSetDevice",
        meaning: CallKind::Runtime(RuntimeCall::SetDevice),
        fields: &[(Field::Device, Fetch::arg(0))],
        ..RT
    },
    // rtError_t rtSetDeviceEx(int32_t device)
    ProbeSpec {
        symbol: "rtSetDeviceEx",
        meaning: CallKind::Runtime(RuntimeCall::SetDevice),
        fields: &[(Field::Device, Fetch::arg(0))],
        ..RT
    },
    // rtError_t rtsSetDevice(int32_t device)
    ProbeSpec {
        symbol: "rtsSetDevice",
        meaning: CallKind::Runtime(RuntimeCall::SetDevice),
        fields: &[(Field::Device, Fetch::arg(0))],
        ..RT
    },
    // rtError_t rtGetStreamId(rtStream_t stream, int32_t *id)
    ProbeSpec {
        symbol: "rtGetStreamId",
        meaning: CallKind::Launch(LaunchCall::StreamId),
        fields: &[(Field::Stream, Fetch::arg(0)), (Field::StreamId, Fetch::out(1))],
        ..RT
    },
    // rtError_t rtFunctionRegister(void *bin, const void *stub, const char *name, const void *info, uint32_t mode)
    ProbeSpec {
        symbol: "rtFunctionRegister",
        meaning: CallKind::Launch(LaunchCall::KernelName),
        fields: &[(Field::Handle, Fetch::arg(1))],
        text_arg: Some(2),
        ..RT
    },
    // rtError_t rtsFuncGetByName(const rtBinHandle bin, const char *name, rtFuncHandle *out)
    ProbeSpec {
        symbol: "rtsFuncGetByName",
        meaning: CallKind::Launch(LaunchCall::KernelName),
        fields: &[(Field::Handle, Fetch::out(2))],
        text_arg: Some(1),
        ..RT
    },
    // rtError_t rtBinaryGetFunctionByName(const rtBinHandle bin, const char *name, rtFuncHandle *out)
    ProbeSpec {
        symbol: "rtBinaryGetFunctionByName",
        meaning: CallKind::Launch(LaunchCall::KernelName),
        fields: &[(Field::Handle, Fetch::out(2))],
        text_arg: Some(1),
        ..RT
    },
    // rtKernelLaunch(const void *stub, uint32_t blocks, void *args, uint32_t size, rtSmDesc_t *sm, rtStream_t stream)
    launch!("rtKernelLaunch", handle 0, stream 5),
    // rtKernelLaunchWithFlag(const void *stub, uint32_t blocks, rtArgsEx_t *args, rtSmDesc_t *sm, rtStream_t stream, uint32_t flags)
    launch!("rtKernelLaunchWithFlag", handle 0, stream 4),
    launch!("rtKernelLaunchWithFlagV2", handle 0, stream 4),
    // rtKernelLaunchWithHandle(void *hdl, uint64_t tilingKey, uint32_t blocks, rtArgsEx_t *args, rtSmDesc_t *sm, rtStream_t stream, const void *info)
    launch!("rtKernelLaunchWithHandle", handle 0, stream 5),
    launch!("rtKernelLaunchWithHandleV2", handle 0, stream 5),
    launch!("rtVectorCoreKernelLaunch", handle 0, stream 5),
    // rtLaunchKernelByFuncHandle(rtFuncHandle func, uint32_t blocks, rtLaunchArgsHandle args, rtStream_t stream)
    launch!("rtLaunchKernelByFuncHandle", handle 0, stream 3),
    launch!("rtLaunchKernelByFuncHandleV2", handle 0, stream 3),
    launch!("rtLaunchKernelByFuncHandleV3", handle 0, stream 3),
    // rtsLaunchKernelWithConfig(rtFuncHandle func, uint32_t blocks, rtStream_t stream, rtKernelLaunchCfg_t *cfg, ...)
    launch!("rtsLaunchKernelWithConfig", handle 0, stream 2),
    launch!("rtsLaunchKernelWithDevArgs", handle 0, stream 2),
    launch!("rtsLaunchKernelWithHostArgs", handle 0, stream 2),
    // rtAicpuKernelLaunchExWithArgs(uint32_t type, const char *opName, uint32_t blocks, const rtAicpuArgsEx_t *args,
    //     rtSmDesc_t *sm, rtStream_t stream, uint32_t flags)
    ProbeSpec {
        symbol: "rtAicpuKernelLaunchExWithArgs",
        fields: &[(Field::Stream, Fetch::arg(5))],
        text_arg: Some(1),
        ..LAUNCH
    },
    // rtKernelLaunchFwk(const char *opName, void *args, uint32_t size, uint32_t flags, rtStream_t stream)
    ProbeSpec { symbol: "rtKernelLaunchFwk", fields: &[(Field::Stream, Fetch::arg(4))], text_arg: Some(0), ..LAUNCH },
    // rtError_t rtCtxSetCurrent(rtContext_t context)
    ProbeSpec {
        symbol: "rtCtxSetCurrent",
        meaning: CallKind::Runtime(RuntimeCall::SetContext),
        fields: &[(Field::Handle, Fetch::arg(0))],
        ..RT
    },
    // rtError_t rtMalloc(void **devPtr, uint64_t size, rtMemType_t type, const uint16_t moduleId)
    alloc!("rtMalloc", type 2),
    alloc!("rtMallocCached", type 2),
    // rtError_t rtsMalloc(void **devPtr, uint64_t size, rtMallocPolicy policy, rtMallocAdvise advise, rtMallocConfig_t *cfg)
    alloc!("rtsMalloc", type 2),
    alloc!("rtMemAlloc", type 2),
    // rtError_t rtDvppMalloc(void **devPtr, uint64_t size, uint16_t moduleId)
    ProbeSpec { symbol: "rtDvppMalloc", ..ALLOC },
    // rtError_t rtMemAllocManaged(void **ptr, uint64_t size, uint32_t flag, uint16_t moduleId)
    alloc!("rtMemAllocManaged", type 2),
    // rtError_t rtMallocPhysical(rtDrvMemHandle *handle, size_t size, rtDrvMemProp_t *prop, uint64_t flags)
    ProbeSpec { symbol: "rtMallocPhysical", ..ALLOC },
    // rtError_t rtMallocHost(void **hostPtr, uint64_t size, uint16_t moduleId)
    ProbeSpec { symbol: "rtMallocHost", meaning: CallKind::Failing(FailingCall::AllocHost), ..ALLOC },
];
