/* libascend_hal.so: device memory is accounting and addresses, and real too if ASCEND_SIM_CONTENT is set; host memory
 * is real. */
#define _GNU_SOURCE
#include "arena.h"
#include "ascend_hal.h"
#include "callers.h"
#include "journal.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_DEVICES 32u
#define MAX_FRAMES 256
#define MAX_MODULES 256u
#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define TIB (1ull << 40)

/* Every device has 1 TiB of addresses, split by page size. */
#define DEVICE_BASE 0x124000000000ull
#define RESERVE_BASE 0x100000000000ull
#define HOST_BASE 0x0e0000000000ull
/* No request may come near the overflow of the rounding. */
#define SIZE_LIMIT TIB

enum page_kind { PAGE_NORMAL, PAGE_HUGE, PAGE_GIANT, PAGE_KINDS };
static const struct {
    uint64_t offset, size, page;
} layout[PAGE_KINDS] = {
    [PAGE_NORMAL] = {0, 256 * GIB, 4 * KIB},
    [PAGE_HUGE] = {256 * GIB, 512 * GIB, 2 * MIB},
    [PAGE_GIANT] = {768 * GIB, 256 * GIB, GIB},
};

struct pool {
    uint64_t limit, used;
};
struct usage {
    uint64_t current, peak;
};
struct device {
    pthread_mutex_t lock;
    struct pool normal, huge;
    struct arena arena[PAGE_KINDS];
    struct usage usage[MAX_MODULES];
};

struct drv_mem_handle {
    uint32_t refs;
    bool host;
    uint32_t devid;
    uint32_t module;
    enum page_kind kind;
    uint64_t size, charged;
};

static uint32_t device_count;
static uint64_t capacity, huge_capacity;
static bool huge_separate, has_content, has_stacks;
/* Microseconds that a call takes that makes memory. */
static uint32_t driver_us;
static struct device devices[MAX_DEVICES];
/* Bytes of each device that all processes have together which were given the same file; none by default: then each has the
 * devices for itself. */
static uint64_t *used_by_all;

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena host;
static struct range_map registered;

/* Reservations, mappings and physical handles belong together. */
static pthread_mutex_t physical_lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena reserved;
static struct range_map mappings; /* value: the handle */
static struct range_map handles;

/* ---- set-up, and again in every forked child: it has no device memory of its parent's ---- */

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void device_init(struct device *device, uint32_t id)
{
    memset(device, 0, sizeof *device);
    pthread_mutex_init(&device->lock, NULL);
    device->normal.limit = capacity - huge_capacity;
    device->huge.limit = huge_capacity;
    for (int kind = 0; kind < PAGE_KINDS; kind++)
        arena_init(&device->arena[kind], DEVICE_BASE + id * TIB + layout[kind].offset, layout[kind].size,
                   layout[kind].page);
}

static void everything_init(void)
{
    for (uint32_t id = 0; id < device_count; id++)
        device_init(&devices[id], id);
    pthread_mutex_init(&host_lock, NULL);
    pthread_mutex_init(&physical_lock, NULL);
    arena_init(&host, HOST_BASE, TIB, 4 * KIB);
    arena_init(&reserved, RESERVE_BASE, TIB, 2 * MIB);
    registered = mappings = handles = (struct range_map){0};
}

static void lock_all(void)
{
    for (uint32_t id = 0; id < device_count; id++)
        pthread_mutex_lock(&devices[id].lock);
    pthread_mutex_lock(&host_lock);
    pthread_mutex_lock(&physical_lock);
}

static void unlock_all(void)
{
    pthread_mutex_unlock(&physical_lock);
    pthread_mutex_unlock(&host_lock);
    for (uint32_t id = device_count; id-- > 0;)
        pthread_mutex_unlock(&devices[id].lock);
}

/* A process that ends gives all back; one that is killed does not. */
__attribute__((destructor)) static void hal_end(void)
{
    for (uint32_t id = 0; used_by_all && id < device_count; id++)
        __atomic_fetch_sub(&used_by_all[id], devices[id].normal.used, __ATOMIC_RELAXED);
}

static void share_devices(const char *path)
{
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    const size_t len = MAX_DEVICES * sizeof *used_by_all;
    if (file < 0)
        return;
    if (ftruncate(file, (off_t)len))
        abort();
    used_by_all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (used_by_all == MAP_FAILED)
        abort();
    close(file);
}

__attribute__((constructor)) static void hal_start(void)
{
    device_count = (uint32_t)env_number("ASCEND_SIM_DEVICES", 8);
    if (device_count < 1 || device_count > MAX_DEVICES)
        device_count = MAX_DEVICES;
    capacity = env_number("ASCEND_SIM_CAPACITY_MB", 65536) * MIB;
    const char *huge = getenv("ASCEND_SIM_HUGE_MB");
    huge_separate = huge && *huge;
    has_content = getenv("ASCEND_SIM_CONTENT") != NULL;
    has_stacks = getenv("ASCEND_SIM_STACKS") != NULL;
    driver_us = (uint32_t)env_number("ASCEND_SIM_DRIVER_US", 0);
    huge_capacity = huge_separate ? strtoull(huge, NULL, 10) * MIB : 0;
    if (huge_capacity > capacity)
        huge_capacity = capacity;
    everything_init();
    share_devices(getenv("ASCEND_SIM_SHARED"));
    pthread_atfork(lock_all, unlock_all, everything_init);
}

/* ---- accounting; the device's lock is held ---- */

static struct pool *pool_of(struct device *device, enum page_kind kind)
{
    return huge_separate && kind != PAGE_NORMAL ? &device->huge : &device->normal;
}

static bool charge(struct device *device, enum page_kind kind, uint32_t module, uint64_t len)
{
    struct pool *pool = pool_of(device, kind);
    struct usage *usage = &device->usage[module];
    if (len > pool->limit - pool->used)
        return false;
    uint64_t *all = used_by_all && !huge_separate ? &used_by_all[device - devices] : NULL;
    if (all && __atomic_add_fetch(all, len, __ATOMIC_RELAXED) > pool->limit) {
        __atomic_fetch_sub(all, len, __ATOMIC_RELAXED);
        return false;
    }
    pool->used += len;
    usage->current += len;
    if (usage->current > usage->peak)
        usage->peak = usage->current;
    return true;
}

static void uncharge(struct device *device, enum page_kind kind, uint32_t module, uint64_t len)
{
    pool_of(device, kind)->used -= len;
    if (used_by_all && !huge_separate)
        __atomic_fetch_sub(&used_by_all[device - devices], len, __ATOMIC_RELAXED);
    device->usage[module].current -= len;
}

/* ---- content ---- */

/* Zeros at that address; over what a forked child has inherited there. */
static bool memory_at(uint64_t addr, uint64_t len)
{
    return mmap((void *)addr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

static bool content_at(uint64_t addr, uint64_t len)
{
    return !has_content || memory_at(addr, len);
}

/* Before anybody else can get the address. */
static void drop_content(uint64_t addr, uint64_t len)
{
    if (has_content)
        munmap((void *)addr, len);
}

/* ---- halMemAlloc, halMemFree ---- */

static int page_kind_of(uint64_t flag)
{
    if (flag & MEM_PAGE_GIANT)
        return PAGE_GIANT;
    switch (flag & MEM_PAGE_MASK) {
    case 0:
        return PAGE_NORMAL;
    case MEM_PAGE_HUGE:
        return PAGE_HUGE;
    default:
        return -1;
    }
}

static drvError_t device_alloc(void **pp, uint64_t size, uint64_t flag)
{
    uint32_t id = (uint32_t)(flag & MEM_DEVID_MASK);
    uint32_t module = (uint32_t)(flag >> MEM_MODULE_ID_BIT);
    int kind = page_kind_of(flag);
    if (id >= device_count || kind < 0)
        return DRV_ERROR_INVALID_VALUE;
    struct device *device = &devices[id];
    uint64_t len = round_up(size, layout[kind].page), addr = 0;
    pthread_mutex_lock(&device->lock);
    if (charge(device, kind, module, len)) {
        struct range unused;
        addr = arena_take(&device->arena[kind], len, module);
        if (addr && !content_at(addr, len)) {
            arena_give(&device->arena[kind], addr, &unused);
            addr = 0;
        }
        if (!addr)
            uncharge(device, kind, module, len);
    }
    pthread_mutex_unlock(&device->lock);
    if (!addr)
        return DRV_ERROR_OUT_OF_MEMORY;
    *pp = (void *)addr;
    return DRV_ERROR_NONE;
}

static drvError_t host_alloc(void **pp, uint64_t size)
{
    uint64_t len = round_up(size, host.page);
    struct range unused;
    pthread_mutex_lock(&host_lock);
    uint64_t addr = arena_take(&host, len, 0);
    if (addr && !memory_at(addr, len)) {
        arena_give(&host, addr, &unused);
        addr = 0;
    }
    pthread_mutex_unlock(&host_lock);
    if (!addr)
        return DRV_ERROR_OUT_OF_MEMORY;
    *pp = (void *)addr;
    return DRV_ERROR_NONE;
}

static void take_time(void)
{
    if (driver_us)
        usleep(driver_us);
}

static drvError_t mem_alloc(void **pp, uint64_t size, uint64_t flag)
{
    if (!pp || !size)
        return DRV_ERROR_INVALID_VALUE;
    if (size > SIZE_LIMIT)
        return DRV_ERROR_OUT_OF_MEMORY;
    switch (flag & MEM_VIRT_MASK) {
    case MEM_SVM:
    case MEM_DEV:
    case MEM_DVPP:
        return device_alloc(pp, size, flag);
    case MEM_HOST:
    case MEM_HOST_UVA:
        return host_alloc(pp, size);
    default:
        return DRV_ERROR_INVALID_VALUE;
    }
}

/* The record of an allocation has the callers' return addresses behind it, as the compiler's own unwinder finds them. */
static __attribute__((noinline)) void journal_with_stack(drvError_t ret, uint64_t out, uint64_t size, uint64_t flag)
{
    void *frames[MAX_FRAMES];
    int count = callers(frames, MAX_FRAMES);
    journal_add_bytes(JF_hal_halMemAlloc, ret, ARGS(size, flag), out, frames, (uint64_t)count * sizeof *frames);
}

drvError_t halMemAlloc(void **pp, unsigned long long size, unsigned long long flag)
{
    take_time();
    drvError_t ret = mem_alloc(pp, size, flag);
    if (JOURNALING && has_stacks)
        journal_with_stack(ret, ret ? 0 : U(*pp), size, flag);
    else
        JOURNAL_RETURN(JF_hal_halMemAlloc, ret, *pp, size, flag);
    return ret;
}

static drvError_t device_free(uint64_t addr)
{
    struct device *device = &devices[(addr - DEVICE_BASE) / TIB];
    int kind = PAGE_NORMAL;
    struct range old;
    while (!arena_has(&device->arena[kind], addr))
        kind++;
    pthread_mutex_lock(&device->lock);
    int found = arena_give(&device->arena[kind], addr, &old);
    if (found) {
        uncharge(device, kind, (uint32_t)old.value, old.len);
        drop_content(addr, old.len);
    }
    pthread_mutex_unlock(&device->lock);
    return found ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
}

static drvError_t host_free(uint64_t addr)
{
    struct range old;
    pthread_mutex_lock(&host_lock);
    int found = arena_give(&host, addr, &old);
    if (found)
        munmap((void *)addr, old.len); /* under the lock: no other may get the address before */
    pthread_mutex_unlock(&host_lock);
    return found ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
}

static drvError_t mem_free(uint64_t addr)
{
    if (addr - DEVICE_BASE < device_count * TIB)
        return device_free(addr);
    return arena_has(&host, addr) ? host_free(addr) : DRV_ERROR_INVALID_VALUE;
}

drvError_t halMemFree(void *pp)
{
    uint64_t place = JOURNAL_ENTER(JF_hal_halMemFree, U(pp));
    drvError_t ret = mem_free(U(pp));
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* ---- physical memory; the physical lock is held by the helpers' callers ---- */

static bool handle_charge(drv_mem_handle_t *handle)
{
    if (handle->host)
        return true;
    struct device *device = &devices[handle->devid];
    pthread_mutex_lock(&device->lock);
    bool ok = charge(device, handle->kind, handle->module, handle->charged);
    pthread_mutex_unlock(&device->lock);
    return ok;
}

static bool prop_ok(const struct drv_mem_prop *prop)
{
    if (prop->side > MEM_HOST_NUMA_SIDE || prop->pg_type >= PAGE_KINDS || prop->module_id >= MAX_MODULES)
        return false;
    return prop->side != MEM_DEV_SIDE || prop->devid < device_count;
}

static drvError_t mem_create(drv_mem_handle_t **out, size_t size, const struct drv_mem_prop *prop, uint64_t flag)
{
    if (!out || !size || !prop || flag || !prop_ok(prop))
        return DRV_ERROR_INVALID_VALUE;
    if (size > SIZE_LIMIT)
        return DRV_ERROR_OUT_OF_MEMORY;
    drv_mem_handle_t *handle = malloc(sizeof *handle);
    if (!handle)
        return DRV_ERROR_OUT_OF_MEMORY;
    *handle = (drv_mem_handle_t){.refs = 1, .host = prop->side != MEM_DEV_SIDE, .devid = prop->devid,
                                 .module = prop->module_id, .kind = prop->pg_type, .size = size,
                                 .charged = round_up(size, layout[prop->pg_type].page)};
    if (!handle_charge(handle)) {
        free(handle);
        return DRV_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&physical_lock);
    range_insert(&handles, U(handle), 1, 0);
    pthread_mutex_unlock(&physical_lock);
    *out = handle;
    return DRV_ERROR_NONE;
}

drvError_t halMemCreate(drv_mem_handle_t **handle, size_t size, const struct drv_mem_prop *prop, uint64_t flag)
{
    take_time();
    drvError_t ret = mem_create(handle, size, prop, flag);
    JOURNAL_RETURN(JF_hal_halMemCreate, ret, *handle, size, prop ? prop->side | (uint64_t)prop->devid << 32 : 0,
                   prop ? prop->module_id | (uint64_t)prop->pg_type << 32 : 0, flag);
    return ret;
}

/* Returns the references left. At 0 the memory is gone and the pointer may come back as another handle. */
static uint32_t handle_drop(drv_mem_handle_t *handle)
{
    uint32_t left = --handle->refs;
    if (left)
        return left;
    if (!handle->host) {
        struct device *device = &devices[handle->devid];
        pthread_mutex_lock(&device->lock);
        uncharge(device, handle->kind, handle->module, handle->charged);
        pthread_mutex_unlock(&device->lock);
    }
    range_remove(&handles, U(handle), NULL);
    free(handle);
    return 0;
}

static drvError_t mem_release(drv_mem_handle_t *handle, uint32_t *left)
{
    pthread_mutex_lock(&physical_lock);
    bool known = range_find(&handles, U(handle));
    if (known)
        *left = handle_drop(handle);
    pthread_mutex_unlock(&physical_lock);
    return known ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
}

drvError_t halMemRelease(drv_mem_handle_t *handle)
{
    uint32_t left = 0;
    uint64_t place = JOURNAL_ENTER(JF_hal_halMemRelease, U(handle));
    drvError_t ret = mem_release(handle, &left);
    JOURNAL_SETTLE(place, ret, left);
    return ret;
}

static drvError_t mem_retain(drv_mem_handle_t **out, uint64_t addr)
{
    drvError_t ret = DRV_ERROR_INVALID_VALUE;
    if (!out)
        return ret;
    pthread_mutex_lock(&physical_lock);
    const struct range *mapping = range_floor(&mappings, addr);
    if (mapping && addr - mapping->start < mapping->len) {
        drv_mem_handle_t *handle = (drv_mem_handle_t *)mapping->value;
        handle->refs++;
        *out = handle;
        ret = DRV_ERROR_NONE;
    }
    pthread_mutex_unlock(&physical_lock);
    return ret;
}

drvError_t halMemRetainAllocationHandle(drv_mem_handle_t **handle, void *ptr)
{
    drvError_t ret = mem_retain(handle, U(ptr));
    JOURNAL_RETURN(JF_hal_halMemRetainAllocationHandle, ret, *handle, U(ptr));
    return ret;
}

/* ---- addresses and mappings ---- */

static drvError_t address_reserve(void **out, size_t size, size_t alignment)
{
    if (!out || !size || alignment > reserved.page)
        return DRV_ERROR_INVALID_VALUE;
    if (size > SIZE_LIMIT)
        return DRV_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&physical_lock);
    uint64_t addr = arena_take(&reserved, round_up(size, reserved.page), 0);
    pthread_mutex_unlock(&physical_lock);
    if (!addr)
        return DRV_ERROR_OUT_OF_MEMORY;
    *out = (void *)addr;
    return DRV_ERROR_NONE;
}

drvError_t halMemAddressReserve(void **ptr, size_t size, size_t alignment, void *addr, uint64_t flag)
{
    drvError_t ret = address_reserve(ptr, size, alignment);
    JOURNAL_RETURN(JF_hal_halMemAddressReserve, ret, *ptr, size, alignment, U(addr), flag);
    return ret;
}

static drvError_t address_free(uint64_t addr)
{
    drvError_t ret = DRV_ERROR_INVALID_VALUE;
    struct range old;
    pthread_mutex_lock(&physical_lock);
    const struct range *reservation = range_find(&reserved.live, addr);
    if (reservation) {
        const struct range *mapping = range_ceil(&mappings, addr);
        bool busy = mapping && mapping->start - addr < reservation->len;
        ret = busy ? DRV_ERROR_BUSY : DRV_ERROR_NONE;
        if (!busy)
            arena_give(&reserved, addr, &old);
    }
    pthread_mutex_unlock(&physical_lock);
    return ret;
}

drvError_t halMemAddressFree(void *ptr)
{
    uint64_t place = JOURNAL_ENTER(JF_hal_halMemAddressFree, U(ptr));
    drvError_t ret = address_free(U(ptr));
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

static bool inside_reservation(uint64_t addr, uint64_t size)
{
    const struct range *reservation = range_floor(&reserved.live, addr);
    if (!reservation || addr - reservation->start >= reservation->len)
        return false;
    return size <= reservation->len - (addr - reservation->start);
}

static bool mapped(uint64_t addr, uint64_t size)
{
    const struct range *below = range_floor(&mappings, addr), *above = range_ceil(&mappings, addr);
    return (below && addr - below->start < below->len) || (above && above->start - addr < size);
}

static drvError_t mem_map(uint64_t addr, size_t size, size_t offset, drv_mem_handle_t *handle, uint64_t flag)
{
    if (!size || offset || flag)
        return DRV_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&physical_lock);
    bool ok = range_find(&handles, U(handle)) && size <= handle->size && inside_reservation(addr, size) &&
              !mapped(addr, size) && content_at(addr, size);
    if (ok) {
        range_insert(&mappings, addr, size, U(handle));
        handle->refs++;
    }
    pthread_mutex_unlock(&physical_lock);
    return ok ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
}

drvError_t halMemMap(void *ptr, size_t size, size_t offset, drv_mem_handle_t *handle, uint64_t flag)
{
    drvError_t ret = mem_map(U(ptr), size, offset, handle, flag);
    JOURNAL_RETURN(JF_hal_halMemMap, ret, ptr, U(ptr), size, offset, U(handle));
    return ret;
}

static drvError_t mem_unmap(uint64_t addr, uint32_t *left)
{
    struct range old;
    pthread_mutex_lock(&physical_lock);
    int found = range_remove(&mappings, addr, &old);
    if (found) {
        *left = handle_drop((drv_mem_handle_t *)old.value);
        drop_content(old.start, old.len);
    }
    pthread_mutex_unlock(&physical_lock);
    return found ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
}

drvError_t halMemUnmap(void *ptr)
{
    uint32_t left = 0;
    uint64_t place = JOURNAL_ENTER(JF_hal_halMemUnmap, U(ptr));
    drvError_t ret = mem_unmap(U(ptr), &left);
    JOURNAL_SETTLE(place, ret, left);
    return ret;
}

/* ---- host registration ---- */

static drvError_t host_register(void *src, uint64_t size, uint32_t devid, void **dst)
{
    if (!src || !size || devid >= device_count)
        return DRV_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&host_lock);
    bool twice = range_find(&registered, U(src));
    if (!twice)
        range_insert(&registered, U(src), size, devid);
    pthread_mutex_unlock(&host_lock);
    if (twice)
        return DRV_ERROR_INVALID_VALUE;
    if (dst)
        *dst = src;
    return DRV_ERROR_NONE;
}

drvError_t halHostRegister(void *src_ptr, unsigned long long size, uint32_t flag, uint32_t devid, void **dst_ptr)
{
    drvError_t ret = host_register(src_ptr, size, devid, dst_ptr);
    JOURNAL_RETURN(JF_hal_halHostRegister, ret, dst_ptr ? *dst_ptr : NULL, U(src_ptr), size, flag, devid);
    return ret;
}

drvError_t halHostUnregister(void *src_ptr, uint32_t devid)
{
    uint64_t place = JOURNAL_ENTER(JF_hal_halHostUnregister, U(src_ptr), devid);
    pthread_mutex_lock(&host_lock);
    int found = range_remove(&registered, U(src_ptr), NULL);
    pthread_mutex_unlock(&host_lock);
    drvError_t ret = found ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

/* ---- queries ---- */

DVresult halMemGetInfo(DVdevice device, unsigned int type, struct MemInfo *info)
{
    bool ok = device < device_count && info && type <= MEM_INFO_TYPE_HBM_SIZE;
    if (ok) {
        struct device *d = &devices[device];
        pthread_mutex_lock(&d->lock);
        const struct pool *huge = pool_of(d, PAGE_HUGE);
        info->phy_info = (struct MemPhyInfo){.total = d->normal.limit, .free = d->normal.limit - d->normal.used,
                                             .huge_total = huge->limit, .huge_free = huge->limit - huge->used};
        pthread_mutex_unlock(&d->lock);
    }
    DVresult ret = ok ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
    JOURNAL_RETURN(JF_hal_halMemGetInfo, ret, info->phy_info.free, device, type);
    return ret;
}

static const char *module_name(uint32_t module)
{
    switch (module) {
    case MODULE_HCCL:
        return "HCCL";
    case MODULE_RUNTIME:
        return "RUNTIME";
    case MODULE_APP:
        return "APP";
    default:
        return "Reserved";
    }
}

static size_t usage_collect(struct device *device, struct mem_module_usage *out, size_t room)
{
    size_t n = 0;
    pthread_mutex_lock(&device->lock);
    for (uint32_t module = 0; module < MAX_MODULES && n < room; module++) {
        const struct usage *usage = &device->usage[module];
        if (!usage->peak)
            continue;
        out[n] = (struct mem_module_usage){.cur_mem_size = usage->current, .mem_peak_size = usage->peak};
        snprintf(out[n++].name, sizeof out->name, "%s", module_name(module));
    }
    pthread_mutex_unlock(&device->lock);
    return n;
}

drvError_t halGetMemUsageInfo(uint32_t dev, struct mem_module_usage *usage, size_t in_num, size_t *out_num)
{
    bool ok = dev < device_count && usage && out_num;
    if (ok)
        *out_num = usage_collect(&devices[dev], usage, in_num);
    drvError_t ret = ok ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
    JOURNAL_RETURN(JF_hal_halGetMemUsageInfo, ret, *out_num, dev, in_num);
    return ret;
}
