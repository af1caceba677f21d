/* Pools that report themselves through mstx: one per thread, each in a domain and on a device of its own.
 *   mstxpool [--rounds 8] [--batch 4] [--leaks 1]
 * Each round registers a batch of regions and takes back all but the leaks: half of them one by one, the rest at once. */
#include "common.h"
#include "mstx/ms_tools_ext.h"

#define THREADS 2
#define MAX_BATCH 64
#define HEAP_SIZE (64 * MIB)

static uint64_t rounds, batch, leaks;
static const char *const names[THREADS] = {"alpha", "my pool, \"quoted\""};
static pthread_barrier_t barrier;

static void unregister(mstxDomainHandle_t domain, mstxMemRegionRef_t *refs, size_t count)
{
    mstxMemRegionsUnregisterBatch_t desc = {count, refs};
    mstxMemRegionsUnregister(domain, &desc);
}

static void one_round(mstxDomainHandle_t domain, uint32_t device, char *at)
{
    mstxMemVirtualRangeDesc_t ranges[MAX_BATCH];
    mstxMemRegionRef_t refs[MAX_BATCH];
    memset(refs, 0xa5, sizeof refs);
    for (uint64_t i = 0; i < batch; i++) {
        memset(&ranges[i], 0xa5, sizeof ranges[i]);
        ranges[i].deviceId = device;
        ranges[i].ptr = at + i * 4096;
        ranges[i].size = 100 + i;
        refs[i].refType = MSTX_MEM_REGION_REF_TYPE_POINTER;
        refs[i].pointer = ranges[i].ptr;
    }
    mstxMemRegionsRegisterBatch_t desc = {.regionCount = batch, .regionDescArray = ranges};
    mstxMemRegionsRegister(domain, &desc);
    uint64_t back = batch - leaks, half = back / 2;
    for (uint64_t i = 0; i < half; i++)
        unregister(domain, &refs[i], 1);
    unregister(domain, &refs[half], back - half);
}

static void *work(void *number)
{
    uintptr_t thread = (uintptr_t)number;
    char *base = (char *)(0x100000000000 + (thread << 36));
    CHECK(aclrtSetDevice(3));
    mstxDomainHandle_t domain = mstxDomainCreateA(names[thread]);
    /* Both have named theirs before either goes on: without a tool their handles are the same. */
    pthread_barrier_wait(&barrier);
    mstxMemVirtualRangeDesc_t range = {.deviceId = (uint32_t)(1 - thread), .ptr = base, .size = HEAP_SIZE};
    mstxMemHeapDesc_t heap = {.typeSpecificDesc = &range};
    mstxMemHeapHandle_t handle = mstxMemHeapRegister(domain, &heap);
    for (uint64_t i = 0; i < rounds; i++)
        one_round(domain, (uint32_t)(1 - thread), base + i * MIB);
    mstxMemHeapUnregister(domain, handle);
    mstxDomainDestroy(domain);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    rounds = option(argc, argv, "--rounds", 8);
    batch = option(argc, argv, "--batch", 4);
    leaks = option(argc, argv, "--leaks", 1);
    if (batch > MAX_BATCH || leaks > batch)
        usage_error("out of range:", "--batch");
    acl_begin(3);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS));
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL));
    report("regions", THREADS * rounds * batch, "back", THREADS * rounds * (batch - leaks), NULL);
    acl_end(3);
    return 0;
}
