/* The stable number of every journaled function: X(number, library, symbol).
 * Library is the name in the journal's file name. Numbers are never reused; new functions get new ones. */
#ifndef JOURNAL_FUNCS_H
#define JOURNAL_FUNCS_H

#define JOURNAL_FUNCS(X) \
    X(90, journal, load) \
    X(1, hal, halMemAlloc) \
    X(2, hal, halMemFree) \
    X(3, hal, halMemCreate) \
    X(4, hal, halMemRelease) \
    X(5, hal, halMemRetainAllocationHandle) \
    X(6, hal, halMemAddressReserve) \
    X(7, hal, halMemAddressFree) \
    X(8, hal, halMemMap) \
    X(9, hal, halMemUnmap) \
    X(10, hal, halHostRegister) \
    X(11, hal, halHostUnregister) \
    X(12, hal, halMemGetInfo) \
    X(13, hal, halGetMemUsageInfo) \
    X(100, runtime, rtSetDevice) \
    X(101, runtime, rtSetDeviceEx) \
    X(102, runtime, rtGetDevice) \
    X(103, runtime, rtSetDefaultDeviceId) \
    X(104, runtime, rtDeviceReset) \
    X(105, runtime, rtMalloc) \
    X(106, runtime, rtMallocCached) \
    X(107, runtime, rtFree) \
    X(108, runtime, rtMallocHost) \
    X(109, runtime, rtFreeHost) \
    X(110, runtime, rtMallocPhysical) \
    X(111, runtime, rtFreePhysical) \
    X(112, runtime, rtMapMem) \
    X(113, runtime, rtUnmapMem) \
    X(114, runtime, rtReserveMemAddress) \
    X(115, runtime, rtReleaseMemAddress) \
    X(116, runtime, rtsHostRegister) \
    X(117, runtime, rtHostRegisterV2) \
    X(118, runtime, rtsHostUnregister) \
    X(119, runtime, rtMemGetInfoEx) \
    X(120, runtime, rtMemcpy) \
    X(121, runtime, rtMemcpyAsync) \
    X(122, runtime, rtStreamCreate) \
    X(123, runtime, rtStreamDestroy) \
    X(124, runtime, rtGetStreamId) \
    X(125, runtime, rtsStreamGetId) \
    X(126, runtime, rtDevBinaryRegister) \
    X(127, runtime, rtRegisterAllKernel) \
    X(128, runtime, rtFunctionRegister) \
    X(129, runtime, rtsBinaryLoadFromFile) \
    X(130, runtime, rtsBinaryLoadFromData) \
    X(131, runtime, rtsFuncGetByName) \
    X(132, runtime, rtBinaryGetFunctionByName) \
    X(133, runtime, rtKernelLaunch) \
    X(134, runtime, rtKernelLaunchWithFlag) \
    X(135, runtime, rtKernelLaunchWithFlagV2) \
    X(136, runtime, rtKernelLaunchWithHandle) \
    X(137, runtime, rtKernelLaunchWithHandleV2) \
    X(138, runtime, rtLaunchKernelByFuncHandle) \
    X(139, runtime, rtLaunchKernelByFuncHandleV2) \
    X(140, runtime, rtLaunchKernelByFuncHandleV3) \
    X(141, runtime, rtsLaunchKernelWithConfig) \
    X(142, runtime, rtsLaunchKernelWithDevArgs) \
    X(143, runtime, rtsLaunchKernelWithHostArgs) \
    X(144, runtime, rtAicpuKernelLaunchExWithArgs) \
    X(145, runtime, rtKernelLaunchFwk) \
    X(200, acl_rt, aclInit) \
    X(201, acl_rt, aclFinalize) \
    X(202, acl_rt, aclrtSetDevice) \
    X(203, acl_rt, aclrtGetDevice) \
    X(204, acl_rt, aclrtResetDevice) \
    X(205, acl_rt, aclrtMalloc) \
    X(206, acl_rt, aclrtMallocAlign32) \
    X(207, acl_rt, aclrtMallocCached) \
    X(208, acl_rt, aclrtFree) \
    X(209, acl_rt, aclrtMallocHost) \
    X(210, acl_rt, aclrtFreeHost) \
    X(211, acl_rt, aclrtMallocPhysical) \
    X(212, acl_rt, aclrtFreePhysical) \
    X(213, acl_rt, aclrtMapMem) \
    X(214, acl_rt, aclrtUnmapMem) \
    X(215, acl_rt, aclrtReserveMemAddress) \
    X(216, acl_rt, aclrtReleaseMemAddress) \
    X(217, acl_rt, aclrtHostRegister) \
    X(218, acl_rt, aclrtHostRegisterV2) \
    X(219, acl_rt, aclrtHostUnregister) \
    X(220, acl_rt, aclrtGetMemInfo) \
    X(221, acl_rt, aclrtMemcpy) \
    X(222, acl_rt, aclrtMemcpyAsync) \
    X(223, acl_rt, aclrtCreateStream) \
    X(224, acl_rt, aclrtDestroyStream) \
    X(225, acl_rt, aclrtStreamGetId) \
    X(226, acl_rt, aclrtBinaryLoadFromFile) \
    X(227, acl_rt, aclrtBinaryLoadFromData) \
    X(228, acl_rt, aclrtBinaryGetFunction) \
    X(229, acl_rt, aclrtLaunchKernel) \
    X(230, acl_rt, aclrtLaunchKernelV2) \
    X(231, acl_rt, aclrtLaunchKernelWithConfig) \
    X(232, acl_rt, aclrtLaunchKernelWithHostArgs) \
    X(300, ascendcl, aclInit) \
    X(301, ascendcl, aclFinalize) \
    X(302, ascendcl, aclrtSetDevice) \
    X(303, ascendcl, aclrtGetDevice) \
    X(304, ascendcl, aclrtResetDevice) \
    X(305, ascendcl, aclrtMalloc) \
    X(306, ascendcl, aclrtMallocAlign32) \
    X(307, ascendcl, aclrtMallocCached) \
    X(308, ascendcl, aclrtFree) \
    X(309, ascendcl, aclrtMallocHost) \
    X(310, ascendcl, aclrtFreeHost) \
    X(311, ascendcl, aclrtMallocPhysical) \
    X(312, ascendcl, aclrtFreePhysical) \
    X(313, ascendcl, aclrtMapMem) \
    X(314, ascendcl, aclrtUnmapMem) \
    X(315, ascendcl, aclrtReserveMemAddress) \
    X(316, ascendcl, aclrtReleaseMemAddress) \
    X(317, ascendcl, aclrtHostRegister) \
    X(318, ascendcl, aclrtHostRegisterV2) \
    X(319, ascendcl, aclrtHostUnregister) \
    X(320, ascendcl, aclrtGetMemInfo) \
    X(321, ascendcl, aclrtMemcpy) \
    X(322, ascendcl, aclrtMemcpyAsync) \
    X(323, ascendcl, aclrtCreateStream) \
    X(324, ascendcl, aclrtDestroyStream) \
    X(325, ascendcl, aclrtStreamGetId) \
    X(326, ascendcl, aclrtBinaryLoadFromFile) \
    X(327, ascendcl, aclrtBinaryLoadFromData) \
    X(328, ascendcl, aclrtBinaryGetFunction) \
    X(329, ascendcl, aclrtLaunchKernel) \
    X(330, ascendcl, aclrtLaunchKernelV2) \
    X(331, ascendcl, aclrtLaunchKernelWithConfig) \
    X(332, ascendcl, aclrtLaunchKernelWithHostArgs) \
    X(400, mstx, mstxMarkA) \
    X(401, mstx, mstxRangeStartA) \
    X(402, mstx, mstxRangeEnd) \
    X(403, mstx, mstxGetToolId) \
    X(404, mstx, mstxDomainCreateA) \
    X(405, mstx, mstxDomainDestroy) \
    X(406, mstx, mstxDomainMarkA) \
    X(407, mstx, mstxDomainRangeStartA) \
    X(408, mstx, mstxDomainRangeEnd) \
    X(409, mstx, mstxMemHeapRegister) \
    X(410, mstx, mstxMemHeapUnregister) \
    X(411, mstx, mstxMemRegionsRegister) \
    X(412, mstx, mstxMemRegionsUnregister) \
    X(500, torch_npu, reportMemoryDataToNpuProfiler) \
    X(501, torch_npu, simpta_malloc) \
    X(502, torch_npu, simpta_free)

/* JF_<library>_<symbol> */
enum journal_func {
#define JOURNAL_ENUM(number, lib, name) JF_##lib##_##name = number,
    JOURNAL_FUNCS(JOURNAL_ENUM)
#undef JOURNAL_ENUM
};
#endif
