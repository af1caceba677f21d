/* Pairs of one allocation and one free, as fast as they go.
 *   pairs [--pairs 100000] [--threads 1] [--size 4096] [--hal]
 * --pairs is for each thread.  --hal: halMemAlloc and halMemFree directly. */
#include "ascend_hal.h"
#include "common.h"

static uint64_t pairs, size;
static bool hal;

static void hal_pairs(void)
{
    uint64_t flag = MEM_DEV | MEM_TYPE_HBM | MEM_SET_ALIGN_SIZE(9) | (uint64_t)MODULE_HCCL << MEM_MODULE_ID_BIT;
    void *block;
    for (uint64_t i = 0; i < pairs; i++) {
        CHECK(halMemAlloc(&block, size, flag));
        CHECK(halMemFree(block));
    }
}

static void acl_pairs(void)
{
    void *block;
    CHECK(aclrtSetDevice(0));
    for (uint64_t i = 0; i < pairs; i++) {
        CHECK(aclrtMalloc(&block, size, ACL_MEM_MALLOC_HUGE_FIRST));
        CHECK(aclrtFree(block));
    }
    CHECK(aclrtResetDevice(0));
}

static void *work(void *unused)
{
    (void)unused;
    if (hal)
        hal_pairs();
    else
        acl_pairs();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_THREADS];
    struct timespec start, end;
    uint64_t count = option_threads(argc, argv, 1);
    pairs = option(argc, argv, "--pairs", 100000);
    size = option(argc, argv, "--size", 4 * KIB);
    hal = option_flag(argc, argv, "--hal");
    if (!hal) /* keeps the device open: the runtime's own blocks are made once, whatever the threads' order */
        acl_begin(0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL));
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL));
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t ns = (uint64_t)((end.tv_sec - start.tv_sec) * 1000000000ll + (end.tv_nsec - start.tv_nsec));
    if (!hal)
        acl_end(0);
    report("allocs", pairs * count, "frees", pairs * count, "ns", ns, NULL);
    return 0;
}
