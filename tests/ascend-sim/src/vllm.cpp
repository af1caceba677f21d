/* vllm_ascend_C: addresses are reserved once, memory comes and goes behind them (csrc/camem_allocator.cpp). What the
 * real one does in Python, to keep the handles and to sleep and wake, is done here. */
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include "acl/acl_rt.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

struct Block {
    size_t bytes;
    aclrtDrvMemHandle handle;
};

std::map<void *, Block> blocks;
std::mutex lock;

void check(aclError error)
{
    if (error) {
        fprintf(stderr, "vllm_ascend_C: error %d\n", error);
        exit(1);
    }
}

void back(void *ptr, Block &block, int device)
{
    aclrtPhysicalMemProp prop = {};
    prop.memAttr = ACL_HBM_MEM_HUGE;
    prop.location.id = static_cast<uint32_t>(device);
    prop.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    check(aclrtMallocPhysical(&block.handle, block.bytes, &prop, 0));
    check(aclrtMapMem(ptr, block.bytes, 0, block.handle, 0));
}

void unback(void *ptr, Block &block)
{
    check(aclrtUnmapMem(ptr));
    check(aclrtFreePhysical(block.handle));
}

}

API void *my_malloc(ssize_t size, int device, aclrtStream)
{
    constexpr size_t granularity = 2 << 20;
    Block block = {(static_cast<size_t>(size) + granularity - 1) / granularity * granularity, nullptr};
    void *ptr = nullptr;
    check(aclrtReserveMemAddress(&ptr, block.bytes, 0, nullptr, 0));
    back(ptr, block, device);
    std::lock_guard<std::mutex> guard(lock);
    blocks[ptr] = block;
    return ptr;
}

API void my_free(void *ptr, ssize_t, int, aclrtStream)
{
    std::lock_guard<std::mutex> guard(lock);
    Block &block = blocks.at(ptr);
    unback(ptr, block);
    check(aclrtReleaseMemAddress(ptr));
    blocks.erase(ptr);
}

API void sim_sleep(void)
{
    for (auto &entry : blocks)
        unback(entry.first, entry.second);
}

API void sim_wake(int device)
{
    for (auto &entry : blocks)
        back(entry.first, entry.second, device);
}
