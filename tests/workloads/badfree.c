/* Frees that fail, between ones that do not.
 *   badfree [--rounds 10]
 * Every round: 4 good pairs; a double free, an address inside a block, one never given out, one of the host's: 4 fail
 * through aclrtFree, and the double one again through halMemFree. */
#include "ascend_hal.h"
#include "common.h"
#include "runtime/rt.h"

static void one_round(void)
{
    void *blocks[4];
    for (int i = 0; i < 4; i++)
        blocks[i] = device_alloc(64 * KIB);
    EXPECT(aclrtFree((char *)blocks[1] + 512), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT(aclrtFree((void *)0x12c0deadb000), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT(aclrtFree(blocks), ACL_ERROR_RT_PARAM_INVALID);
    for (int i = 0; i < 4; i++)
        CHECK(aclrtFree(blocks[i]));
    EXPECT(aclrtFree(blocks[0]), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT(halMemFree(blocks[0]), DRV_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 10);
    acl_begin(0);
    for (uint64_t i = 0; i < rounds; i++)
        one_round();
    acl_end(0);
    report("allocs", rounds * 4, "frees", rounds * 4, "failed", rounds * 5, NULL);
    return 0;
}
