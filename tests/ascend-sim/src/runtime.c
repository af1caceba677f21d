/* libruntime.so: devices, memory and streams on top of the driver. Launches are in runtime_kernel.c. */
#include "ascend_hal.h"
#include "device.h"
#include "journal.h"
#include "runtime/rt.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEVICES 32
#define HUGE_PAGE_MEM_CRITICAL_VALUE (1ull << 20)
#define MEMORY_TYPE_BITS 0x3ffu
#define NO_DEVICE (-1)

/* ---- devices ---- */

/* What the runtime takes for itself when a device is opened. */
static const struct {
    uint64_t size, flag;
} own_blocks[] = {
    {2ull << 20, MEM_DEV | MEM_TYPE_HBM | MEM_PAGE_HUGE},
    {64ull << 10, MEM_DEV | MEM_TYPE_HBM},
    {4ull << 10, MEM_DEV | MEM_TYPE_HBM},
};
#define OWN_BLOCKS (sizeof own_blocks / sizeof own_blocks[0])

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint32_t opened;
    void *own[OWN_BLOCKS];
} devices[MAX_DEVICES];
static int32_t default_device = NO_DEVICE;
static __thread int32_t thread_device = NO_DEVICE;
static __thread uint32_t thread_forks;
static uint32_t forks;
static bool has_content; /* as the driver decides it */

static void lock_devices(void)
{
    pthread_mutex_lock(&devices_lock);
}

static void unlock_devices(void)
{
    pthread_mutex_unlock(&devices_lock);
}

/* A forked child has to open its devices itself. */
static void forget_devices(void)
{
    memset(devices, 0, sizeof devices);
    default_device = NO_DEVICE;
    forks++;
    pthread_mutex_init(&devices_lock, NULL);
}

__attribute__((constructor)) static void runtime_start(void)
{
    has_content = getenv("ASCEND_SIM_CONTENT") != NULL;
    pthread_atfork(lock_devices, unlock_devices, forget_devices);
}

static int32_t current_device(void)
{
    if (thread_forks != forks) {
        thread_forks = forks;
        thread_device = NO_DEVICE;
    }
    return thread_device != NO_DEVICE ? thread_device : default_device;
}

static rtError_t rt_error(drvError_t drv)
{
    switch (drv) {
    case DRV_ERROR_NONE:
        return RT_ERROR_NONE;
    case DRV_ERROR_OUT_OF_MEMORY:
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    case DRV_ERROR_INVALID_VALUE:
        return ACL_ERROR_RT_PARAM_INVALID;
    default:
        return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    }
}

static uint64_t with_module(uint64_t flag, uint16_t module)
{
    return flag | (uint64_t)(module & 0xff) << MEM_MODULE_ID_BIT;
}

static void device_close(int32_t id)
{
    for (size_t i = 0; i < OWN_BLOCKS; i++) {
        if (devices[id].own[i])
            halMemFree(devices[id].own[i]);
        devices[id].own[i] = NULL;
    }
}

static rtError_t device_open(int32_t id)
{
    for (size_t i = 0; i < OWN_BLOCKS; i++) {
        uint64_t flag = with_module(own_blocks[i].flag | MEM_SET_ALIGN_SIZE(9) | (uint32_t)id, MODULE_RUNTIME);
        drvError_t drv = halMemAlloc(&devices[id].own[i], own_blocks[i].size, flag);
        if (drv) {
            device_close(id);
            return drv == DRV_ERROR_INVALID_VALUE ? ACL_ERROR_RT_INVALID_DEVICEID : rt_error(drv);
        }
    }
    return RT_ERROR_NONE;
}

static rtError_t set_device(int32_t id)
{
    rtError_t ret = RT_ERROR_NONE;
    if (id < 0 || id >= MAX_DEVICES)
        return ACL_ERROR_RT_INVALID_DEVICEID;
    lock_devices();
    if (!devices[id].opened)
        ret = device_open(id);
    if (!ret)
        devices[id].opened++;
    unlock_devices();
    if (ret)
        return ret;
    current_device(); /* takes note of a fork first */
    thread_device = id;
    return ret;
}

rtError_t rtSetDevice(int32_t devId)
{
    rtError_t ret = set_device(devId);
    JOURNAL_RETURN(JF_runtime_rtSetDevice, ret, 0, (uint32_t)devId);
    return ret;
}

rtError_t rtSetDeviceEx(int32_t devId)
{
    rtError_t ret = set_device(devId);
    JOURNAL_RETURN(JF_runtime_rtSetDeviceEx, ret, 0, (uint32_t)devId);
    return ret;
}

rtError_t rtGetDevice(int32_t *devId)
{
    int32_t id = current_device();
    rtError_t ret = !devId ? ACL_ERROR_RT_PARAM_INVALID : id == NO_DEVICE ? ACL_ERROR_RT_CONTEXT_NULL : RT_ERROR_NONE;
    if (!ret)
        *devId = id;
    JOURNAL_RETURN(JF_runtime_rtGetDevice, ret, id, 0);
    return ret;
}

static rtError_t set_default_device(int32_t id)
{
    if (id < 0 || id >= MAX_DEVICES)
        return ACL_ERROR_RT_INVALID_DEVICEID;
    lock_devices();
    rtError_t ret = devices[id].opened ? RT_ERROR_NONE : device_open(id);
    if (!ret) {
        devices[id].opened++;
        default_device = id;
    }
    unlock_devices();
    return ret;
}

rtError_t rtSetDefaultDeviceId(const int32_t deviceId)
{
    rtError_t ret = set_default_device(deviceId);
    JOURNAL_RETURN(JF_runtime_rtSetDefaultDeviceId, ret, 0, (uint32_t)deviceId);
    return ret;
}

static rtError_t device_reset(int32_t id)
{
    rtError_t ret = ACL_ERROR_RT_INVALID_DEVICEID;
    if (id < 0 || id >= MAX_DEVICES)
        return ret;
    lock_devices();
    if (devices[id].opened) {
        ret = RT_ERROR_NONE;
        if (--devices[id].opened == 0)
            device_close(id);
    }
    unlock_devices();
    if (!ret && current_device() == id)
        thread_device = NO_DEVICE;
    return ret;
}

rtError_t rtDeviceReset(int32_t devId)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtDeviceReset, (uint32_t)devId);
    rtError_t ret = device_reset(devId);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* ---- memory ---- */

static rtError_t alloc_normal(void **out, uint64_t size, uint64_t flag)
{
    return rt_error(halMemAlloc(out, size, flag));
}

static rtError_t alloc_huge(void **out, uint64_t size, uint64_t flag)
{
    return rt_error(halMemAlloc(out, size, flag | MEM_PAGE_HUGE));
}

static rtError_t alloc_huge_first(void **out, uint64_t size, uint64_t flag)
{
    if (size > HUGE_PAGE_MEM_CRITICAL_VALUE && alloc_huge(out, size, flag) == RT_ERROR_NONE)
        return RT_ERROR_NONE;
    return alloc_normal(out, size, flag);
}

static rtError_t alloc_giant(void **out, uint64_t size, uint32_t device, uint16_t module, uint64_t p2p)
{
    uint64_t flag = MEM_DEV | MEM_PAGE_GIANT | MEM_TYPE_HBM | device | p2p;
    return rt_error(halMemAlloc(out, size, with_module(flag, module)));
}

static rtError_t device_malloc(void **out, uint64_t size, rtMemType_t type, uint16_t module)
{
    int32_t device = current_device();
    uint32_t policy = type & ~MEMORY_TYPE_BITS;
    if (!out || !size)
        return ACL_ERROR_RT_PARAM_INVALID;
    if (device == NO_DEVICE)
        return ACL_ERROR_RT_CONTEXT_NULL;
    size = (size + 31) & ~31ull;
    uint64_t flag = with_module(MEM_DEV | MEM_TYPE_HBM | MEM_SET_ALIGN_SIZE(9) | (uint32_t)device, module);
    switch (policy) {
    case 0:
    case RT_MEMORY_POLICY_HUGE_PAGE_FIRST:
        return alloc_huge_first(out, size, flag);
    case RT_MEMORY_POLICY_HUGE_PAGE_ONLY:
        return alloc_huge(out, size, flag);
    case RT_MEMORY_POLICY_HUGE_PAGE_FIRST_P2P:
        return alloc_huge_first(out, size, flag | MEM_ADVISE_P2P);
    case RT_MEMORY_POLICY_HUGE_PAGE_ONLY_P2P:
        return alloc_huge(out, size, flag | MEM_ADVISE_P2P);
    case RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY:
        return alloc_giant(out, size, (uint32_t)device, module, 0);
    case RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY_P2P:
        return alloc_giant(out, size, (uint32_t)device, module, MEM_ADVISE_P2P);
    case RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY_P2P:
        return alloc_normal(out, size, flag | MEM_ADVISE_P2P);
    default:
        return alloc_normal(out, size, flag);
    }
}

rtError_t rtMalloc(void **devPtr, uint64_t size, rtMemType_t type, const uint16_t moduleId)
{
    device_inside();
    rtError_t ret = device_malloc(devPtr, size, type, moduleId);
    if (!ret)
        device_allocated(*devPtr);
    JOURNAL_RETURN(JF_runtime_rtMalloc, ret, *devPtr, size, type, moduleId);
    return ret;
}

rtError_t rtMallocCached(void **devPtr, uint64_t size, rtMemType_t type, const uint16_t moduleId)
{
    int32_t device = current_device();
    rtError_t ret = ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    if (device == NO_DEVICE)
        ret = ACL_ERROR_RT_CONTEXT_NULL;
    else if ((type & ~MEMORY_TYPE_BITS) == RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY)
        ret = alloc_normal(devPtr, (size + 31) & ~31ull,
                           with_module(MEM_SVM | MEM_SET_ALIGN_SIZE(9) | (uint32_t)device, moduleId));
    JOURNAL_RETURN(JF_runtime_rtMallocCached, ret, *devPtr, size, type, moduleId);
    return ret;
}

rtError_t rtFree(void *devPtr)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtFree, U(devPtr));
    rtError_t ret = devPtr ? rt_error(halMemFree(devPtr)) : ACL_ERROR_RT_PARAM_INVALID;
    if (!ret)
        device_freed(devPtr);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtMallocHost(void **hostPtr, uint64_t size, const uint16_t moduleId)
{
    rtError_t ret = ACL_ERROR_RT_CONTEXT_NULL;
    if (!hostPtr || !size)
        ret = ACL_ERROR_RT_PARAM_INVALID;
    else if (current_device() != NO_DEVICE)
        ret = rt_error(halMemAlloc(hostPtr, size, with_module(MEM_HOST | MEM_SET_ALIGN_SIZE(9), moduleId)));
    JOURNAL_RETURN(JF_runtime_rtMallocHost, ret, *hostPtr, size, moduleId);
    return ret;
}

rtError_t rtFreeHost(void *hostPtr)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtFreeHost, U(hostPtr));
    rtError_t ret = hostPtr ? rt_error(halMemFree(hostPtr)) : ACL_ERROR_RT_PARAM_INVALID;
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtMallocPhysical(rtDrvMemHandle *handle, size_t size, rtDrvMemProp_t *prop, uint64_t flags)
{
    rtError_t ret = ACL_ERROR_RT_PARAM_INVALID;
    if (handle && prop)
        ret = rt_error(halMemCreate((drv_mem_handle_t **)handle, size, (const struct drv_mem_prop *)prop, flags));
    JOURNAL_RETURN(JF_runtime_rtMallocPhysical, ret, *handle, size,
                   prop ? prop->side | (uint64_t)prop->devid << 32 : 0,
                   prop ? prop->module_id | (uint64_t)prop->pg_type << 32 : 0, flags);
    return ret;
}

rtError_t rtFreePhysical(rtDrvMemHandle handle)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtFreePhysical, U(handle));
    rtError_t ret = rt_error(halMemRelease(handle));
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtMapMem(void *devPtr, size_t size, size_t offset, rtDrvMemHandle handle, uint64_t flags)
{
    rtError_t ret = rt_error(halMemMap(devPtr, size, offset, handle, flags));
    JOURNAL_RETURN(JF_runtime_rtMapMem, ret, devPtr, U(devPtr), size, offset, U(handle));
    return ret;
}

rtError_t rtUnmapMem(void *devPtr)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtUnmapMem, U(devPtr));
    rtError_t ret = rt_error(halMemUnmap(devPtr));
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtReserveMemAddress(void **devPtr, size_t size, size_t alignment, void *devAddr, uint64_t flags)
{
    rtError_t ret = rt_error(halMemAddressReserve(devPtr, size, alignment, devAddr, flags));
    JOURNAL_RETURN(JF_runtime_rtReserveMemAddress, ret, *devPtr, size, alignment, U(devAddr), flags);
    return ret;
}

rtError_t rtReleaseMemAddress(void *devPtr)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtReleaseMemAddress, U(devPtr));
    rtError_t ret = rt_error(halMemAddressFree(devPtr));
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* ---- registered host memory ---- */

static rtError_t host_register(void *ptr, uint64_t size, uint32_t type, void **out)
{
    int32_t device = current_device();
    if (device == NO_DEVICE)
        return ACL_ERROR_RT_CONTEXT_NULL;
    return rt_error(halHostRegister(ptr, size, type, (uint32_t)device, out));
}

rtError_t rtsHostRegister(void *ptr, uint64_t size, rtHostRegisterType type, void **devPtr)
{
    rtError_t ret = host_register(ptr, size, type, devPtr);
    JOURNAL_RETURN(JF_runtime_rtsHostRegister, ret, *devPtr, U(ptr), size, type);
    return ret;
}

rtError_t rtHostRegisterV2(void *ptr, uint64_t size, uint32_t flag)
{
    void *mapped;
    rtError_t ret = host_register(ptr, size, 0, &mapped);
    JOURNAL_RETURN(JF_runtime_rtHostRegisterV2, ret, ptr, U(ptr), size, flag);
    return ret;
}

rtError_t rtsHostUnregister(void *ptr)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtsHostUnregister, U(ptr));
    int32_t device = current_device();
    rtError_t ret = ACL_ERROR_RT_CONTEXT_NULL;
    if (device != NO_DEVICE)
        ret = rt_error(halHostUnregister(ptr, (uint32_t)device));
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* ---- queries and copies ---- */

static rtError_t mem_info(size_t *free_size, size_t *total_size)
{
    struct MemInfo info;
    int32_t device = current_device();
    if (!free_size || !total_size)
        return ACL_ERROR_RT_PARAM_INVALID;
    if (device == NO_DEVICE)
        return ACL_ERROR_RT_CONTEXT_NULL;
    rtError_t ret = rt_error(halMemGetInfo((DVdevice)device, MEM_INFO_TYPE_HBM_SIZE, &info));
    if (ret)
        return ret;
    *free_size = info.phy_info.free;
    *total_size = info.phy_info.total;
    return ret;
}

rtError_t rtMemGetInfoEx(rtMemInfoType_t memInfoType, size_t *freeSize, size_t *totalSize)
{
    rtError_t ret = mem_info(freeSize, totalSize);
    JOURNAL_RETURN(JF_runtime_rtMemGetInfoEx, ret, *freeSize, memInfoType);
    return ret;
}

/* If device addresses have no memory behind them, only host to host copies move anything. */
static rtError_t copy(void *dst, uint64_t max, const void *src, uint64_t count, rtMemcpyKind_t kind)
{
    if (!dst || !src || count > max)
        return ACL_ERROR_RT_PARAM_INVALID;
    if (kind != RT_MEMCPY_HOST_TO_HOST && device_works()) {
        if (current_device() == NO_DEVICE)
            return ACL_ERROR_RT_CONTEXT_NULL;
        if (device_copy_error())
            return device_copy_error();
        if (kind == RT_MEMCPY_DEVICE_TO_DEVICE)
            return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
        return device_copy(dst, src, count, kind == RT_MEMCPY_HOST_TO_DEVICE) ? RT_ERROR_NONE : ACL_ERROR_RT_PARAM_INVALID;
    }
    if (kind == RT_MEMCPY_HOST_TO_HOST || has_content)
        memmove(dst, src, count);
    return RT_ERROR_NONE;
}

rtError_t rtMemcpy(void *dst, uint64_t destMax, const void *src, uint64_t cnt, rtMemcpyKind_t kind)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtMemcpy, U(dst), U(src), cnt, kind);
    rtError_t ret = copy(dst, destMax, src, cnt, kind);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtMemcpyAsync(void *dst, uint64_t destMax, const void *src, uint64_t cnt, rtMemcpyKind_t kind, rtStream_t stm)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtMemcpyAsync, U(dst), U(src), cnt, U(stm));
    rtError_t ret = copy(dst, destMax, src, cnt, kind);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* ---- streams ---- */

struct stream {
    int32_t id;
};

static rtError_t stream_create(rtStream_t *out)
{
    static int32_t next_id = 2; /* the first ones are the runtime's */
    if (!out)
        return ACL_ERROR_RT_PARAM_INVALID;
    if (current_device() == NO_DEVICE)
        return ACL_ERROR_RT_CONTEXT_NULL;
    struct stream *stream = malloc(sizeof *stream);
    if (!stream)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    stream->id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
    *out = stream;
    return RT_ERROR_NONE;
}

rtError_t rtStreamCreate(rtStream_t *stm, int32_t priority)
{
    rtError_t ret = stream_create(stm);
    JOURNAL_RETURN(JF_runtime_rtStreamCreate, ret, *stm, (uint32_t)priority,
                   ret ? 0 : (uint32_t)((struct stream *)*stm)->id);
    return ret;
}

rtError_t rtStreamDestroy(rtStream_t stm)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtStreamDestroy, U(stm));
    rtError_t ret = stm ? RT_ERROR_NONE : ACL_ERROR_RT_PARAM_INVALID;
    free(stm);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

static rtError_t wait_for_device(void)
{
    if (current_device() == NO_DEVICE)
        return ACL_ERROR_RT_CONTEXT_NULL;
    device_wait();
    return device_wait_error();
}

rtError_t rtDeviceSynchronize(void)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtDeviceSynchronize, 0);
    rtError_t ret = wait_for_device();
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* The device has one queue for all streams. */
rtError_t rtStreamSynchronize(rtStream_t stm)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtStreamSynchronize, U(stm));
    rtError_t ret = wait_for_device();
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

static rtError_t stream_id(rtStream_t stm, int32_t *out)
{
    if (!out)
        return ACL_ERROR_RT_PARAM_INVALID;
    *out = stm ? ((struct stream *)stm)->id : 0;
    return RT_ERROR_NONE;
}

rtError_t rtGetStreamId(rtStream_t stm, int32_t *streamId)
{
    rtError_t ret = stream_id(stm, streamId);
    JOURNAL_RETURN(JF_runtime_rtGetStreamId, ret, *streamId, U(stm));
    return ret;
}

rtError_t rtsStreamGetId(rtStream_t stm, int32_t *streamId)
{
    rtError_t ret = stream_id(stm, streamId);
    JOURNAL_RETURN(JF_runtime_rtsStreamGetId, ret, *streamId, U(stm));
    return ret;
}
