/* Physical memory, mapped into reserved addresses, as expandable segments and sleep modes do it.
 *   physical [--blocks 10] [--size 20971520] [--hal] [--leak]
 * First every block is reserved, made and mapped; then all sleep (unmapped and given back) and wake up (made and mapped
 * at the same address); then all end. So `physical` counts two for each block.
 * --hal: the driver's functions directly; there every handle is also released before it is unmapped.
 * --leak: at the end the blocks stay. */
#include "ascend_hal.h"
#include "common.h"

struct block {
    void *address;
    void *handle;
};

static uint64_t size;
static bool hal;

static void reserve(struct block *block)
{
    if (hal)
        CHECK(halMemAddressReserve(&block->address, size, 0, NULL, 0));
    else
        CHECK(aclrtReserveMemAddress(&block->address, size, 0, NULL, 0));
}

static void wake(struct block *block)
{
    struct drv_mem_prop drv = {.side = MEM_DEV_SIDE, .module_id = MODULE_APP, .pg_type = MEM_HUGE_PAGE_TYPE};
    aclrtPhysicalMemProp prop = {.memAttr = ACL_HBM_MEM_HUGE, .location = {0, ACL_MEM_LOCATION_TYPE_DEVICE}};
    if (hal) {
        CHECK(halMemCreate((drv_mem_handle_t **)&block->handle, size, &drv, 0));
        CHECK(halMemMap(block->address, size, 0, block->handle, 0));
    } else {
        CHECK(aclrtMallocPhysical(&block->handle, size, &prop, 0));
        CHECK(aclrtMapMem(block->address, size, 0, block->handle, 0));
    }
}

/* In the driver's form the mapping holds the last reference, and the unmapping gives the memory back. */
static void put_to_sleep(struct block *block)
{
    if (hal) {
        CHECK(halMemRelease(block->handle));
        CHECK(halMemUnmap(block->address));
    } else {
        CHECK(aclrtUnmapMem(block->address));
        CHECK(aclrtFreePhysical(block->handle));
    }
}

static void give_back(struct block *block)
{
    if (hal)
        CHECK(halMemAddressFree(block->address));
    else
        CHECK(aclrtReleaseMemAddress(block->address));
}

int main(int argc, char **argv)
{
    uint64_t count = option(argc, argv, "--blocks", 10);
    bool leak = option_flag(argc, argv, "--leak");
    size = option(argc, argv, "--size", 20 * MIB);
    hal = option_flag(argc, argv, "--hal");
    struct block *blocks = calloc(count, sizeof *blocks);
    if (!hal)
        acl_begin(0);
    for (uint64_t i = 0; i < count; i++) {
        reserve(&blocks[i]);
        wake(&blocks[i]);
    }
    for (uint64_t i = 0; i < count; i++)
        put_to_sleep(&blocks[i]);
    for (uint64_t i = 0; i < count; i++)
        wake(&blocks[i]);
    for (uint64_t i = 0; i < count && !leak; i++) {
        put_to_sleep(&blocks[i]);
        give_back(&blocks[i]);
    }
    if (!hal)
        acl_end(0);
    report("reserved", count, "physical", 2 * count, "mapped", 2 * count, "released", leak ? count : 2 * count, NULL);
    return 0;
}
