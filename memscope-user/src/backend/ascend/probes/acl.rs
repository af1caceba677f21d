//! `aclrt*`: the facade that programs call (ascend-abi §3, §4, §8). The `…Impl` twins sit below these and
//! are not probed: a call would be seen twice.

use memscope_common::{Fetch, When};

use crate::probes::{CallKind, FailingCall, Field, Group, LaunchCall, Layer, MemoryCall, ProbeSpec, RuntimeCall};

/// The legacy umbrella and the newer facade export the same names; the first may forward to the second.
const LIBRARIES: &[&str] = &["libascendcl.so", "libacl_rt.so"];

const ACL: ProbeSpec = ProbeSpec { layer: Layer::Acl, libraries: LIBRARIES, ..ProbeSpec::BASE };

const LAUNCH: ProbeSpec =
    ProbeSpec { meaning: CallKind::Launch(LaunchCall::Launch), when: When::Entry, group: Group::Launch, ..ACL };

/// `Handle` and `Stream` of a launch.
macro_rules! launch {
    ($symbol:literal, stream $stream:literal) => {
        ProbeSpec {
            symbol: $symbol,
            fields: &[(Field::Handle, Fetch::arg(0)), (Field::Stream, Fetch::arg($stream))],
            ..LAUNCH
        }
    };
}

/// An allocation: it names the driver's calls inside of it, and is itself reported only if it fails.
const ALLOC: ProbeSpec = ProbeSpec {
    meaning: CallKind::Failing(FailingCall::Alloc),
    when: When::Failure,
    group: Group::Alloc,
    fields: &[(Field::Size, Fetch::arg(1))],
    ..ACL
};

/// An allocation with its policy.
macro_rules! alloc {
    ($symbol:literal, policy $policy:literal) => {
        ProbeSpec {
            symbol: $symbol,
            fields: &[(Field::Size, Fetch::arg(1)), (Field::Flags, Fetch::arg($policy))],
            ..ALLOC
        }
    };
}

pub(super) const ROWS: &[ProbeSpec] = &[
    // aclError aclInit(const char *configPath)
    ProbeSpec { symbol: "aclInit", meaning: CallKind::Runtime(RuntimeCall::Init), group: Group::Init, ..ACL },
    // aclError aclFinalize(void)
    ProbeSpec {
        symbol: "aclFinalize",
        meaning: CallKind::Runtime(RuntimeCall::Finalize),
        when: When::Entry,
        group: Group::Init,
        ..ACL
    },
    // aclError aclrtSetDevice(int32_t deviceId)
    ProbeSpec {
        symbol: "aclrtSetDevice",
        meaning: CallKind::Runtime(RuntimeCall::SetDevice),
        fields: &[(Field::Device, Fetch::arg(0))],
        ..ACL
    },
    // aclError aclrtStreamGetId(aclrtStream stream, int32_t *streamId)
    ProbeSpec {
        symbol: "aclrtStreamGetId",
        meaning: CallKind::Launch(LaunchCall::StreamId),
        fields: &[(Field::Stream, Fetch::arg(0)), (Field::StreamId, Fetch::out(1))],
        ..ACL
    },
    // aclError aclrtBinaryGetFunction(const aclrtBinHandle bin, const char *kernelName, aclrtFuncHandle *func)
    ProbeSpec {
        symbol: "aclrtBinaryGetFunction",
        meaning: CallKind::Launch(LaunchCall::KernelName),
        fields: &[(Field::Handle, Fetch::out(2))],
        text_arg: Some(1),
        ..ACL
    },
    // aclError aclrtRegisterCpuFunc(const aclrtBinHandle handle, const char *funcName, const char *kernelName, aclrtFuncHandle *func)
    ProbeSpec {
        symbol: "aclrtRegisterCpuFunc",
        meaning: CallKind::Launch(LaunchCall::KernelName),
        fields: &[(Field::Handle, Fetch::out(3))],
        text_arg: Some(2),
        ..ACL
    },
    // aclError aclrtLaunchKernel(aclrtFuncHandle func, uint32_t blocks, const void *args, size_t size, aclrtStream stream)
    launch!("aclrtLaunchKernel", stream 4),
    // aclError aclrtLaunchKernelV2(func, blocks, const void *args, size_t size, aclrtLaunchKernelCfg *cfg, aclrtStream stream)
    launch!("aclrtLaunchKernelV2", stream 5),
    // aclError aclrtLaunchKernelWithConfig(func, blocks, aclrtStream stream, cfg, args, reserve)
    launch!("aclrtLaunchKernelWithConfig", stream 2),
    // aclError aclrtLaunchKernelWithHostArgs(func, blocks, aclrtStream stream, cfg, hostArgs, size, …)
    launch!("aclrtLaunchKernelWithHostArgs", stream 2),
    // aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
    ProbeSpec {
        symbol: "aclrtCreateContext",
        meaning: CallKind::Runtime(RuntimeCall::CreateContext),
        fields: &[(Field::Handle, Fetch::out(0)), (Field::Device, Fetch::arg(1))],
        ..ACL
    },
    // aclError aclrtSetCurrentContext(aclrtContext context)
    ProbeSpec {
        symbol: "aclrtSetCurrentContext",
        meaning: CallKind::Runtime(RuntimeCall::SetContext),
        fields: &[(Field::Handle, Fetch::arg(0))],
        ..ACL
    },
    // aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total): once for each call of the program,
    // because the number of a thread's queries matters.
    ProbeSpec {
        symbol: "aclrtGetMemInfo",
        meaning: CallKind::Failing(FailingCall::MemoryInfo),
        fields: &[
            (Field::MemoryKind, Fetch::arg(0)),
            (Field::DeviceFree, Fetch::out(1)),
            (Field::DeviceTotal, Fetch::out(2)),
        ],
        group: Group::Init,
        ..ACL
    },
    // aclError aclrtHostRegisterV2(void *ptr, uint64_t size, uint32_t flag)
    ProbeSpec {
        symbol: "aclrtHostRegisterV2",
        meaning: CallKind::Memory(MemoryCall::Pin),
        fields: &[(Field::Addr, Fetch::arg(0)), (Field::Size, Fetch::arg(1)), (Field::Flags, Fetch::arg(2))],
        group: Group::Init,
        ..ACL
    },
    // aclError aclrtHostUnregister(void *ptr)
    ProbeSpec {
        symbol: "aclrtHostUnregister",
        meaning: CallKind::Memory(MemoryCall::Unpin),
        when: When::EntryAndNonZero,
        fields: &[(Field::Addr, Fetch::arg(0))],
        group: Group::Init,
        ..ACL
    },
    // aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy), and functions with the same
    // parameters
    alloc!("aclrtMalloc", policy 2),
    alloc!("aclrtMallocAlign32", policy 2),
    alloc!("aclrtMallocCached", policy 2),
    // aclError aclrtMallocWithCfg(void **devPtr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *cfg)
    alloc!("aclrtMallocWithCfg", policy 2),
    alloc!("aclrtMallocForTaskScheduler", policy 2),
    // aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *prop, uint64_t flags)
    ProbeSpec { symbol: "aclrtMallocPhysical", ..ALLOC },
    // aclError aclrtMemAllocManaged(void **ptr, uint64_t size, uint32_t flag)
    alloc!("aclrtMemAllocManaged", policy 2),
    // aclError aclrtMemPoolMallocAsync(void **devPtr, size_t size, aclrtMemPool pool, aclrtStream stream)
    ProbeSpec { symbol: "aclrtMemPoolMallocAsync", ..ALLOC },
    // aclError aclrtMallocHost(void **hostPtr, size_t size)
    ProbeSpec { symbol: "aclrtMallocHost", meaning: CallKind::Failing(FailingCall::AllocHost), ..ALLOC },
    // aclError aclrtMallocHostWithCfg(void **ptr, uint64_t size, aclrtMallocConfig *cfg)
    ProbeSpec { symbol: "aclrtMallocHostWithCfg", meaning: CallKind::Failing(FailingCall::AllocHost), ..ALLOC },
];
