/* Fills a device, frees half of it and fills that again. Set ASCEND_SIM_CAPACITY_MB to keep it short.
 *   oom [--size 4194304] [--rounds 1] [--huge-only]
 * With ASCEND_SIM_HUGE_MB less than the capacity, blocks first get huge pages, then normal ones after a failed try
 * below; --huge-only: no second try. */
#include "common.h"
#include "runtime/rt.h"

#define MAX_BLOCKS 100000

static void *list[MAX_BLOCKS];
static uint64_t live, allocs, frees, failed;

static void fill(uint64_t size, aclrtMemMallocPolicy policy)
{
    aclError ret = ACL_SUCCESS;
    while (live < MAX_BLOCKS && !(ret = aclrtMalloc(&list[live], size, policy))) {
        live++;
        allocs++;
    }
    EXPECT(ret, ACL_ERROR_RT_MEMORY_ALLOCATION);
    failed++;
}

static void free_down_to(uint64_t rest)
{
    while (live > rest) {
        CHECK(aclrtFree(list[--live]));
        frees++;
    }
}

int main(int argc, char **argv)
{
    uint64_t size = option(argc, argv, "--size", 4 * MIB);
    uint64_t rounds = option(argc, argv, "--rounds", 1);
    bool huge_only = option_flag(argc, argv, "--huge-only");
    aclrtMemMallocPolicy policy = huge_only ? ACL_MEM_MALLOC_HUGE_ONLY : ACL_MEM_MALLOC_HUGE_FIRST;
    acl_begin(0);
    fill(size, policy);
    for (uint64_t i = 0; i < rounds; i++) {
        free_down_to(live / 2);
        fill(size, policy);
    }
    uint64_t most = live;
    free_down_to(0);
    acl_end(0);
    report("allocs", allocs, "frees", frees, "failed", failed, "live_at_oom", most, NULL);
    return 0;
}
