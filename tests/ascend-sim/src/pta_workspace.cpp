/* torch_npu's workspaces: one block for each device and stream, which only grows. */
#include "acl/acl_rt.h"
#include "pta_allocators.h"
#include "pta_report.h"
#include <map>
#include <mutex>

using namespace torch_npu::profiler;

namespace c10_npu {
namespace NPUWorkspaceAllocator {

struct WorkspaceBlock {
    void *ptr;
    size_t size;
    bool allocated;
};

class DeviceWorkspaceAllocator {
public:
    int malloc(size_t size, int device, void *stream, void **out);
    int free(int device, void *stream);
    void empty_cache(int device);

private:
    void report(MemoryDataType kind, int device, void *stream, const WorkspaceBlock &block);

    std::mutex mutex;
    std::map<void *, WorkspaceBlock> blocks;
    int64_t allocated = 0, reserved = 0;
};

__attribute__((always_inline)) inline void DeviceWorkspaceAllocator::report(MemoryDataType kind, int device,
                                                                           void *stream, const WorkspaceBlock &block)
{
    int64_t size = static_cast<int64_t>(block.size);
    tell({PRIVATE_USE_1,
          static_cast<int8_t>(device),
          MemoryComponentType::WORKSPACE_ALLOCATOR,
          kind,
          MemoryAllocatorType::ALLOCATOR_INNER,
          {GARBAGE, GARBAGE, GARBAGE},
          reinterpret_cast<int64_t>(block.ptr),
          kind == MemoryDataType::MEMORY_MALLOC ? size : -size,
          allocated,
          reserved,
          allocated,
          stream});
}

/* Growing reports the old block's end, of the new block, and of its use. 32 bytes more than asked for, as torch_npu. */
int DeviceWorkspaceAllocator::malloc(size_t size, int device, void *stream, void **out)
{
    constexpr size_t STEP = 2 << 20;
    std::lock_guard<std::mutex> guard(mutex);
    WorkspaceBlock &block = blocks[stream];
    if (block.allocated)
        return ACL_ERROR_INVALID_PARAM;
    size += 32;
    if (size > block.size) {
        WorkspaceBlock old = block;
        block = {};
        if (old.ptr) {
            aclrtFree(old.ptr);
            reserved -= static_cast<int64_t>(old.size);
            report(MemoryDataType::MEMORY_FREE, device, stream, old);
        }
        size_t rounded = (size + STEP - 1) / STEP * STEP;
        int ret = aclrtMallocAlign32(&block.ptr, rounded, ACL_MEM_MALLOC_HUGE_ONLY);
        if (ret)
            return ret;
        block.size = rounded;
        reserved += static_cast<int64_t>(rounded);
        report(MemoryDataType::MEMORY_MALLOC, device, stream, block);
    }
    block.allocated = true;
    allocated += static_cast<int64_t>(block.size);
    *out = block.ptr;
    report(MemoryDataType::MEMORY_MALLOC, device, stream, block);
    return 0;
}

int DeviceWorkspaceAllocator::free(int device, void *stream)
{
    std::lock_guard<std::mutex> guard(mutex);
    auto found = blocks.find(stream);
    if (found == blocks.end() || !found->second.allocated)
        return -1;
    found->second.allocated = false;
    allocated -= static_cast<int64_t>(found->second.size);
    /* torch_npu reports nothing on the default stream. */
    if (stream)
        report(MemoryDataType::MEMORY_FREE, device, stream, found->second);
    return 0;
}

void DeviceWorkspaceAllocator::empty_cache(int device)
{
    std::lock_guard<std::mutex> guard(mutex);
    for (auto at = blocks.begin(); at != blocks.end();) {
        if (at->second.allocated || !at->second.ptr) {
            ++at;
            continue;
        }
        auto gone = *at;
        at = blocks.erase(at);
        aclrtFree(gone.second.ptr);
        reserved -= static_cast<int64_t>(gone.second.size);
        report(MemoryDataType::MEMORY_FREE, device, gone.first, gone.second);
    }
}

static DeviceWorkspaceAllocator *of(int device)
{
    static DeviceWorkspaceAllocator *const devices = new DeviceWorkspaceAllocator[MAX_DEVICES];
    return &devices[device];
}

int malloc(size_t size, int device, void *stream, void **out)
{
    return of(device)->malloc(size, device, stream, out);
}

int free(int device, void *stream)
{
    return of(device)->free(device, stream);
}

void empty_cache(int device)
{
    of(device)->empty_cache(device);
}

}
}
