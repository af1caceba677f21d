/* torch_npu's caching allocator, smaller: segments from ACL, blocks cut from them, best fit, merged when they are free. */
#include "acl/acl_rt.h"
#include "pta_allocators.h"
#include "pta_report.h"
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

using namespace torch_npu::profiler;

namespace c10_npu {
namespace NPUCachingAllocator {

constexpr size_t MIN_BLOCK = 512;
constexpr size_t SMALL_SIZE = 1 << 20;
constexpr size_t SMALL_SEGMENT = 2 << 20;
constexpr size_t MIN_LARGE = 10 << 20;
constexpr size_t LARGE_SEGMENT = 20 << 20;
constexpr size_t ROUND_LARGE = 2 << 20;

struct Block {
    char *ptr;
    size_t size;
    void *stream;
    bool small;
    bool allocated = false;
    Block *before = nullptr, *after = nullptr;
    std::set<void *> users = {};
};

struct BySize {
    static std::tuple<bool, void *, size_t, char *> key(const Block *block)
    {
        return {block->small, block->stream, block->size, block->ptr};
    }
    bool operator()(const Block *one, const Block *other) const { return key(one) < key(other); }
};

static size_t round_up(size_t size, size_t to)
{
    return (size + to - 1) / to * to;
}

class DeviceCachingAllocator {
public:
    explicit DeviceCachingAllocator(int device) : device(device) {}
    int malloc(size_t size, void *stream, Block **out);
    void free(Block *block);
    void erase_stream(Block *block, void *stream);
    void synchronize();
    void empty_cache();

    std::mutex mutex;
    simpta_stats stats = {};

private:
    Block *find(const Block &wanted);
    int grow(const Block &wanted, Block **out);
    void cut(Block *block, size_t size);
    void alloc_found_block(Block *block);
    void free_block(Block *block);
    void merge(Block *block, Block *gone);
    void report(MemoryDataType kind, const Block *block, int64_t size);

    const int device;
    std::set<Block *, BySize> pool;
    std::vector<Block *> waiting;
};

__attribute__((always_inline)) inline void DeviceCachingAllocator::report(MemoryDataType kind, const Block *block,
                                                                         int64_t size)
{
    tell({PRIVATE_USE_1,
          static_cast<int8_t>(device),
          MemoryComponentType::CACHING_ALLOCATOR,
          kind,
          MemoryAllocatorType::ALLOCATOR_INNER,
          {GARBAGE, GARBAGE, GARBAGE},
          reinterpret_cast<int64_t>(block->ptr),
          size,
          static_cast<int64_t>(stats.allocated),
          static_cast<int64_t>(stats.reserved),
          static_cast<int64_t>(stats.active),
          block->stream});
}

/* The smallest that is large enough, of this kind and stream; large ones not much too large. */
Block *DeviceCachingAllocator::find(const Block &wanted)
{
    Block least = wanted;
    least.ptr = nullptr;
    auto found = pool.lower_bound(&least);
    if (found == pool.end() || (*found)->small != wanted.small || (*found)->stream != wanted.stream)
        return nullptr;
    Block *block = *found;
    pool.erase(found);
    return block;
}

/* A second try after the cache was given back, as torch_npu does. */
int DeviceCachingAllocator::grow(const Block &wanted, Block **out)
{
    size_t size = wanted.small               ? SMALL_SEGMENT
                  : wanted.size < MIN_LARGE ? LARGE_SEGMENT
                                            : round_up(wanted.size, ROUND_LARGE);
    void *segment = nullptr;
    int ret = aclrtMallocAlign32(&segment, size, ACL_MEM_MALLOC_HUGE_FIRST);
    if (ret) {
        empty_cache();
        ret = aclrtMallocAlign32(&segment, size, ACL_MEM_MALLOC_HUGE_FIRST);
    }
    if (ret)
        return ret;
    stats.reserved += size;
    *out = new Block{static_cast<char *>(segment), size, wanted.stream, wanted.small};
    return 0;
}

void DeviceCachingAllocator::cut(Block *block, size_t size)
{
    size_t rest = block->size - size;
    if (block->small ? rest < MIN_BLOCK : rest <= SMALL_SIZE)
        return;
    Block *after = new Block{block->ptr + size, rest, block->stream, block->small};
    after->before = block;
    after->after = block->after;
    if (after->after)
        after->after->before = after;
    block->after = after;
    block->size = size;
    pool.insert(after);
}

__attribute__((noinline)) void DeviceCachingAllocator::alloc_found_block(Block *block)
{
    block->allocated = true;
    stats.allocated += block->size;
    stats.active += block->size;
    report(MemoryDataType::MEMORY_MALLOC, block, static_cast<int64_t>(block->size));
}

int DeviceCachingAllocator::malloc(size_t size, void *stream, Block **out)
{
    std::lock_guard<std::mutex> guard(mutex);
    synchronize();
    size = round_up(size, MIN_BLOCK);
    Block wanted{nullptr, size, stream, size <= SMALL_SIZE};
    Block *block = find(wanted);
    int ret = block ? 0 : grow(wanted, &block);
    if (ret)
        return ret;
    cut(block, size);
    alloc_found_block(block);
    *out = block;
    return 0;
}

void DeviceCachingAllocator::free(Block *block)
{
    std::lock_guard<std::mutex> guard(mutex);
    /* It may be merged away below. */
    Block copy = *block;
    block->allocated = false;
    stats.allocated -= block->size;
    if (block->users.empty())
        free_block(block);
    else
        waiting.push_back(block);
    report(MemoryDataType::MEMORY_FREE, &copy, -static_cast<int64_t>(copy.size));
}

__attribute__((noinline)) void DeviceCachingAllocator::free_block(Block *block)
{
    Block copy = *block;
    stats.active -= block->size;
    block->users.clear();
    if (block->before && pool.erase(block->before)) {
        merge(block->before, block);
        block = copy.before;
    }
    if (block->after && pool.erase(block->after))
        merge(block, block->after);
    pool.insert(block);
    report(MemoryDataType::MEMORY_BLOCK_FREE, &copy, -static_cast<int64_t>(copy.size));
}

void DeviceCachingAllocator::merge(Block *block, Block *gone)
{
    block->size += gone->size;
    block->after = gone->after;
    if (block->after)
        block->after->before = block;
    delete gone;
}

/* As in torch_npu, what other streams have done with meanwhile comes back as well. */
void DeviceCachingAllocator::erase_stream(Block *block, void *stream)
{
    std::lock_guard<std::mutex> guard(mutex);
    block->users.erase(stream);
    for (auto at = waiting.begin(); at != waiting.end();) {
        (*at)->users.erase(stream);
        if ((*at)->users.empty()) {
            free_block(*at);
            at = waiting.erase(at);
        } else {
            ++at;
        }
    }
}

/* With the lock held. */
void DeviceCachingAllocator::synchronize()
{
    std::vector<Block *> done;
    done.swap(waiting);
    for (Block *block : done)
        free_block(block);
}

/* With the lock held. The profiler hears nothing, so its `reserved` is stale until the next report. */
void DeviceCachingAllocator::empty_cache()
{
    for (auto at = pool.begin(); at != pool.end();) {
        Block *block = *at;
        if (block->before || block->after) {
            ++at;
            continue;
        }
        at = pool.erase(at);
        aclrtFree(block->ptr);
        stats.reserved -= block->size;
        delete block;
    }
}

/* Of the thread's last allocation. */
static thread_local int error;

static void local_raw_delete(void *ptr)
{
    get()->free(ptr);
}

class NpuCachingAllocator : public NPUAllocator {
public:
    NpuCachingAllocator()
    {
        for (int device = 0; device < MAX_DEVICES; device++)
            devices.emplace_back(new DeviceCachingAllocator(device));
    }

    DataPtr allocate(size_t size) override { return {malloc(size, nullptr), local_raw_delete, nullptr, 0}; }

    void (*raw_deleter())(void *) override { return local_raw_delete; }

    int last_error() override { return error; }

    void *raw_alloc(size_t size) override { return malloc(size, nullptr); }

    void *raw_alloc_with_stream(size_t size, void *stream) override { return malloc(size, stream); }

    int free(void *ptr) override
    {
        Block *block;
        int device;
        if (!forget(ptr, &block, &device))
            return -1;
        devices[static_cast<size_t>(device)]->free(block);
        return 0;
    }

    void recordStream(const DataPtr &ptr, void *stream) override
    {
        if (!ptr.data || ptr.deleter != local_raw_delete)
            return;
        std::lock_guard<std::mutex> guard(mutex);
        auto found = blocks.find(ptr.data);
        if (found != blocks.end() && found->second.first->stream != stream)
            found->second.first->users.insert(stream);
    }

    void eraseStream(const DataPtr &ptr, void *stream) override
    {
        if (!ptr.data || ptr.deleter != local_raw_delete)
            return;
        std::lock_guard<std::mutex> guard(mutex);
        auto found = blocks.find(ptr.data);
        if (found != blocks.end())
            devices[static_cast<size_t>(found->second.second)]->erase_stream(found->second.first, stream);
    }

    void synchronize(int device) override
    {
        std::lock_guard<std::mutex> guard(devices[static_cast<size_t>(device)]->mutex);
        devices[static_cast<size_t>(device)]->synchronize();
    }

    void empty_cache(int device) override
    {
        std::lock_guard<std::mutex> guard(devices[static_cast<size_t>(device)]->mutex);
        devices[static_cast<size_t>(device)]->synchronize();
        devices[static_cast<size_t>(device)]->empty_cache();
    }

    void stats(int device, struct simpta_stats *out) override
    {
        std::lock_guard<std::mutex> guard(devices[static_cast<size_t>(device)]->mutex);
        *out = devices[static_cast<size_t>(device)]->stats;
    }

private:
    void *malloc(size_t size, void *stream)
    {
        Block *block = nullptr;
        void *out = nullptr;
        int32_t device = 0;
        error = aclrtGetDevice(&device);
        if (!error)
            error = devices[static_cast<size_t>(device)]->malloc(size, stream, &block);
        if (!error)
            remember(block, device, &out);
        return out;
    }

    void remember(Block *block, int device, void **out)
    {
        std::lock_guard<std::mutex> guard(mutex);
        blocks[block->ptr] = {block, device};
        *out = block->ptr;
    }

    bool forget(void *ptr, Block **block, int *device)
    {
        std::lock_guard<std::mutex> guard(mutex);
        auto found = blocks.find(ptr);
        if (found == blocks.end())
            return false;
        *block = found->second.first;
        *device = found->second.second;
        blocks.erase(found);
        return true;
    }

    std::mutex mutex;
    std::map<void *, std::pair<Block *, int>> blocks;
    std::vector<std::unique_ptr<DeviceCachingAllocator>> devices;
};

NPUAllocator *get()
{
    /* Never destroyed: programs free blocks until the very end. */
    static NPUAllocator *const allocator = new NpuCachingAllocator;
    return allocator;
}

}
}
