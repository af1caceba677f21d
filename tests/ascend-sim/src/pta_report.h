/* What torch_npu's allocators report to its profiler. */
#ifndef PTA_REPORT_H
#define PTA_REPORT_H
#include <cstdint>
#include <new>

namespace torch_npu {
namespace profiler {

enum class MemoryComponentType : uint8_t { CACHING_ALLOCATOR, WORKSPACE_ALLOCATOR };
enum class MemoryDataType : uint8_t { MEMORY_MALLOC, MEMORY_FREE, MEMORY_BLOCK_FREE };
enum class MemoryAllocatorType : uint8_t { ALLOCATOR_INNER, ALLOCATOR_EXTERNAL };

constexpr int8_t PRIVATE_USE_1 = 20;
/* The compiler leaves these bytes as they are, so they are rarely zero. */
constexpr uint8_t GARBAGE = 0xa5;

struct MemoryUsage {
    int8_t device_type;
    int8_t device_index;
    MemoryComponentType component;
    MemoryDataType data_type;
    MemoryAllocatorType allocator_type;
    uint8_t padding[3];
    int64_t ptr;
    int64_t alloc_size; /* negative when something ends */
    int64_t total_allocated;
    int64_t total_reserved;
    int64_t total_active;
    void *stream;
};
static_assert(sizeof(MemoryUsage) == 56, "the layout that a tracer reads");

/* The hidden one. */
void reportMemoryDataToNpuProfiler(const MemoryUsage &data);

/* How the allocators call it: directly, from each place of its own. It may throw, and they go on all the same. */
__attribute__((always_inline)) inline void tell(const MemoryUsage &data)
{
    try {
        reportMemoryDataToNpuProfiler(data);
    } catch (const std::bad_alloc &) {
    }
}

}
}
#endif
