/* libacl_rt.so: the public facade. Each exported call journals and calls its body here, which calls the runtime. */
#include "acl/acl_rt.h"
#include "ascend_hal.h"
#include "journal.h"
#include "runtime/rt.h"
#include <pthread.h>
#include <stdbool.h>

#define MAX_DEVICES 32
#define ALIGNMENT 32ull

/* ---- start and end ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialized;
static uint32_t devices_set[MAX_DEVICES];

static void forget(void)
{
    initialized = false;
    for (int id = 0; id < MAX_DEVICES; id++)
        devices_set[id] = 0;
    pthread_mutex_init(&lock, NULL);
}

static void lock_state(void)
{
    pthread_mutex_lock(&lock);
}

static void unlock_state(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void acl_start(void)
{
    pthread_atfork(lock_state, unlock_state, forget);
}

static aclError aclInit_body(const char *configPath)
{
    (void)configPath;
    lock_state();
    aclError ret = initialized ? ACL_ERROR_REPEAT_INITIALIZE : ACL_SUCCESS;
    initialized = true;
    unlock_state();
    return ret;
}

/* Gives back the devices that the program still has open. */
static aclError aclFinalize_body(void)
{
    lock_state();
    for (int32_t id = 0; id < MAX_DEVICES; id++)
        for (; devices_set[id]; devices_set[id]--)
            rtDeviceReset(id);
    initialized = false;
    unlock_state();
    return ACL_SUCCESS;
}

static aclError aclrtSetDevice_body(int32_t id)
{
    aclError ret = rtSetDevice(id);
    if (ret)
        return ret;
    lock_state();
    devices_set[id]++;
    unlock_state();
    return ret;
}

static aclError aclrtGetDevice_body(int32_t *id)
{
    return rtGetDevice(id);
}

static aclError aclrtResetDevice_body(int32_t id)
{
    aclError ret = rtDeviceReset(id);
    if (ret)
        return ret;
    lock_state();
    if (devices_set[id])
        devices_set[id]--;
    unlock_state();
    return ret;
}

/* ---- memory ---- */

static uint32_t policy_bits(aclrtMemMallocPolicy policy)
{
    static const uint32_t bits[] = {
        [ACL_MEM_MALLOC_HUGE_FIRST] = RT_MEMORY_POLICY_HUGE_PAGE_FIRST,
        [ACL_MEM_MALLOC_HUGE_ONLY] = RT_MEMORY_POLICY_HUGE_PAGE_ONLY,
        [ACL_MEM_MALLOC_NORMAL_ONLY] = RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY,
        [ACL_MEM_MALLOC_HUGE_FIRST_P2P] = RT_MEMORY_POLICY_HUGE_PAGE_FIRST_P2P,
        [ACL_MEM_MALLOC_HUGE_ONLY_P2P] = RT_MEMORY_POLICY_HUGE_PAGE_ONLY_P2P,
        [ACL_MEM_MALLOC_NORMAL_ONLY_P2P] = RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY_P2P,
        [ACL_MEM_MALLOC_HUGE1G_ONLY] = RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY,
        [ACL_MEM_MALLOC_HUGE1G_ONLY_P2P] = RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY_P2P,
    };
    return policy <= ACL_MEM_MALLOC_HUGE1G_ONLY_P2P ? bits[policy] : RT_MEMORY_DEFAULT;
}

/* 0 if the sum overflows. */
static uint64_t padded(size_t size, uint64_t padding)
{
    uint64_t sum = size + padding + ALIGNMENT;
    return sum < size ? 0 : (sum - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t padding_of(aclrtMemMallocPolicy policy)
{
    bool giant = policy == ACL_MEM_MALLOC_HUGE1G_ONLY || policy == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
    return giant ? 0 : ALIGNMENT;
}

static aclError device_malloc(void **out, size_t size, uint64_t padding, aclrtMemMallocPolicy policy)
{
    uint64_t whole = padded(size, padding);
    if (!out || !size || !whole)
        return ACL_ERROR_INVALID_PARAM;
    return rtMalloc(out, whole, policy_bits(policy), MODULE_APP);
}

static aclError aclrtMalloc_body(void **out, size_t size, aclrtMemMallocPolicy policy)
{
    return device_malloc(out, size, padding_of(policy), policy);
}

static aclError aclrtMallocAlign32_body(void **out, size_t size, aclrtMemMallocPolicy policy)
{
    return device_malloc(out, size, 0, policy);
}

static aclError aclrtMallocCached_body(void **out, size_t size, aclrtMemMallocPolicy policy)
{
    uint64_t whole = padded(size, padding_of(policy));
    if (!out || !size || !whole)
        return ACL_ERROR_INVALID_PARAM;
    return rtMallocCached(out, whole, policy_bits(policy), MODULE_APP);
}

static aclError aclrtFree_body(void *ptr)
{
    return ptr ? rtFree(ptr) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtMallocHost_body(void **out, size_t size)
{
    return out && size ? rtMallocHost(out, size, MODULE_APP) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtFreeHost_body(void *ptr)
{
    return ptr ? rtFreeHost(ptr) : ACL_ERROR_INVALID_PARAM;
}

static uint32_t page_type(aclrtMemAttr attr)
{
    switch (attr) {
    case ACL_DDR_MEM_HUGE:
    case ACL_HBM_MEM_HUGE:
        return MEM_HUGE_PAGE_TYPE;
    case ACL_HBM_MEM_HUGE1G:
        return MEM_GIANT_PAGE_TYPE;
    default:
        return MEM_NORMAL_PAGE_TYPE;
    }
}

static aclError aclrtMallocPhysical_body(aclrtDrvMemHandle *out, size_t size, const aclrtPhysicalMemProp *prop,
                                         uint64_t flags)
{
    if (!out || !size || !prop || flags || prop->location.type > ACL_MEM_LOCATION_TYPE_DEVICE)
        return ACL_ERROR_INVALID_PARAM;
    rtDrvMemProp_t rt = {.side = prop->location.type, .devid = prop->location.id, .module_id = MODULE_APP,
                         .pg_type = page_type(prop->memAttr), .reserve = prop->reserve};
    return rtMallocPhysical(out, size, &rt, flags);
}

static aclError aclrtFreePhysical_body(aclrtDrvMemHandle handle)
{
    return handle ? rtFreePhysical(handle) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtMapMem_body(void *ptr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags)
{
    return ptr && handle && size && !flags ? rtMapMem(ptr, size, offset, handle, flags) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtUnmapMem_body(void *ptr)
{
    return ptr ? rtUnmapMem(ptr) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtReserveMemAddress_body(void **out, size_t size, size_t alignment, void *hint, uint64_t flags)
{
    return out && size ? rtReserveMemAddress(out, size, alignment, hint, flags) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtReleaseMemAddress_body(void *ptr)
{
    return ptr ? rtReleaseMemAddress(ptr) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtHostRegister_body(void *ptr, uint64_t size, aclrtHostRegisterType type, void **out)
{
    return ptr && size && out ? rtsHostRegister(ptr, size, type, out) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtHostRegisterV2_body(void *ptr, uint64_t size, uint32_t flag)
{
    return ptr && size ? rtHostRegisterV2(ptr, size, flag) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtHostUnregister_body(void *ptr)
{
    return ptr ? rtsHostUnregister(ptr) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtGetMemInfo_body(aclrtMemAttr attr, size_t *free, size_t *total)
{
    return free && total ? rtMemGetInfoEx(attr, free, total) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtMemcpy_body(void *dst, size_t max, const void *src, size_t count, aclrtMemcpyKind kind)
{
    return rtMemcpy(dst, max, src, count, (rtMemcpyKind_t)kind);
}

static aclError aclrtMemcpyAsync_body(void *dst, size_t max, const void *src, size_t count, aclrtMemcpyKind kind,
                                      aclrtStream stream)
{
    return rtMemcpyAsync(dst, max, src, count, (rtMemcpyKind_t)kind, stream);
}

/* ---- streams ---- */

static aclError aclrtCreateStream_body(aclrtStream *out)
{
    return out ? rtStreamCreate(out, 0) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtDestroyStream_body(aclrtStream stream)
{
    return stream ? rtStreamDestroy(stream) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtSynchronizeDevice_body(void)
{
    return rtDeviceSynchronize();
}

static aclError aclrtSynchronizeStream_body(aclrtStream stream)
{
    return rtStreamSynchronize(stream);
}

static aclError aclrtStreamGetId_body(aclrtStream stream, int32_t *id)
{
    return rtsStreamGetId(stream, id);
}

/* ---- kernels ---- */

static aclError aclrtBinaryLoadFromFile_body(const char *path, aclrtBinaryLoadOptions *options, aclrtBinHandle *out)
{
    return path && out ? rtsBinaryLoadFromFile(path, (const rtLoadBinaryConfig_t *)options, out)
                       : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtBinaryLoadFromData_body(const void *data, size_t length, const aclrtBinaryLoadOptions *options,
                                             aclrtBinHandle *out)
{
    return data && length && out ? rtsBinaryLoadFromData(data, length, (const rtLoadBinaryConfig_t *)options, out)
                                 : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtBinaryGetFunction_body(aclrtBinHandle binary, const char *name, aclrtFuncHandle *out)
{
    return binary && name && out ? rtsFuncGetByName(binary, name, out) : ACL_ERROR_INVALID_PARAM;
}

static aclError aclrtLaunchKernel_body(aclrtFuncHandle function, uint32_t blocks, const void *args, size_t size,
                                       aclrtStream stream)
{
    if (!function || !args)
        return ACL_ERROR_INVALID_PARAM;
    rtArgsEx_t info = {.args = (void *)args, .argsSize = (uint32_t)size, .isNoNeedH2DCopy = 1};
    return rtLaunchKernelByFuncHandleV3(function, blocks, &info, stream, NULL);
}

static aclError aclrtLaunchKernelV2_body(aclrtFuncHandle function, uint32_t blocks, const void *args, size_t size,
                                         aclrtLaunchKernelCfg *cfg, aclrtStream stream)
{
    if (!function)
        return ACL_ERROR_INVALID_PARAM;
    return rtsLaunchKernelWithDevArgs(function, blocks, stream, (rtKernelLaunchCfg_t *)cfg, args, (uint32_t)size, NULL);
}

static aclError aclrtLaunchKernelWithConfig_body(aclrtFuncHandle function, uint32_t blocks, aclrtStream stream,
                                                 aclrtLaunchKernelCfg *cfg, aclrtArgsHandle args, void *reserve)
{
    if (!function || !blocks || !args || reserve)
        return ACL_ERROR_INVALID_PARAM;
    return rtsLaunchKernelWithConfig(function, blocks, stream, (rtKernelLaunchCfg_t *)cfg, args, reserve);
}

static aclError aclrtLaunchKernelWithHostArgs_body(aclrtFuncHandle function, uint32_t blocks, aclrtStream stream,
                                                   aclrtLaunchKernelCfg *cfg, void *args, size_t size,
                                                   aclrtPlaceHolderInfo *holders, size_t holder_count)
{
    if (!function)
        return ACL_ERROR_INVALID_PARAM;
    return rtsLaunchKernelWithHostArgs(function, blocks, stream, (rtKernelLaunchCfg_t *)cfg, args, (uint32_t)size,
                                       (rtPlaceHolderInfo_t *)holders, (uint32_t)holder_count);
}

/* ---- the exports ---- */

#define GIVES(name, params, args, out, ...) \
    aclError name params \
    { \
        aclError ret = name##_body args; \
        JOURNAL_RETURN(JF_acl_rt_##name, ret, out, __VA_ARGS__); \
        return ret; \
    }
#define NAMES(name, params, args, out, text, ...) \
    aclError name params \
    { \
        aclError ret = name##_body args; \
        JOURNAL_RETURN_TEXT(JF_acl_rt_##name, ret, out, text, __VA_ARGS__); \
        return ret; \
    }
#define TAKES(name, params, args, ...) \
    aclError name params \
    { \
        uint64_t place = JOURNAL_ENTER(JF_acl_rt_##name, __VA_ARGS__); \
        aclError ret = name##_body args; \
        JOURNAL_SETTLE(place, ret, 0); \
        return ret; \
    }
#include "acl_calls.h"
