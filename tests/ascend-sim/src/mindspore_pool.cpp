/* libmindspore_memory_pool.so: the exported members of both pools, with the names and arguments of the real ones.
 *
 * As in the wheels of 2.7 to 2.10, callers come to `AbstractDynamicMemPool::FreeTensorMem` by its virtual thunk, which holds a copy of it: the
 * function itself never runs. Both call `DoFreeTensorMem`, a virtual function. The thunks of the other class jump, and `FreePartTensorMems`
 * passes by `FreeTensorMem`.
 *
 * Allocations of the abstract class come to `AllocMemBuf`, which gives a description of the block; `memory_tracker:True` puts a class without
 * exported members before it, which calls that and does without `AllocTensorMem`. */
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>
#include "journal.h"
#include "mindspore/simms.h"
#include "slab.h"

namespace mindspore {
namespace device {

class SIM_API DynamicMemPool {
public:
    virtual ~DynamicMemPool() = default;
    virtual void *AllocTensorMem(size_t size, bool from_persistent, bool need_recycle, uint32_t stream) = 0;
    virtual void FreeTensorMem(void *const &ptr) = 0;
    virtual void DoFreeTensorMem(void *const &ptr) { FreeTensorMem(ptr); }
    virtual void FreePartTensorMems(const std::vector<void *> &free_addrs, const std::vector<void *> &keep_addrs,
                                    const std::vector<size_t> &keep_sizes) = 0;
};

/* As far as it is known: size and address lie where the real ones do. */
struct MemBuf {
    MemBuf *prev, *next;
    uint64_t unknown[2];
    size_t size;
    void *addr;
};
static_assert(offsetof(MemBuf, size) == 0x20 && offsetof(MemBuf, addr) == 0x28);
struct MemBufAllocator;

class SIM_API AbstractDynamicMemPool : virtual public DynamicMemPool {
public:
    std::pair<MemBuf *, MemBufAllocator *> AllocMemBuf(size_t align_size, bool from_persistent, uint32_t stream);
    void *AllocTensorMem(size_t size, bool from_persistent, bool need_recycle, uint32_t stream) override;
    void FreeTensorMem(void *const &ptr) override;
    void DoFreeTensorMem(void *const &ptr) override;
    void FreePartTensorMems(const std::vector<void *> &free_addrs, const std::vector<void *> &keep_addrs,
                            const std::vector<size_t> &keep_sizes) override;

private:
    Slab slab_;
};

class SIM_API DynamicMemPoolBestFit : virtual public DynamicMemPool {
public:
    void *AllocTensorMem(size_t size, bool from_persistent, bool need_recycle, uint32_t stream) override;
    void FreeTensorMem(void *const &ptr) override;
    void FreeTensorMemInner(void *const &ptr);
    void FreePartTensorMems(const std::vector<void *> &free_addrs, const std::vector<void *> &keep_addrs,
                            const std::vector<size_t> &keep_sizes) override;

private:
    Slab slab_;
};

/* Where the real ones look for a block; the depth makes an exception pass several frames. */
__attribute__((noinline)) static void *find_block(Slab &slab, size_t size)
{
    if (size > SLAB_LARGEST)
        throw std::runtime_error("out of memory");
    return slab.take(size);
}

static void note_alloc(size_t size, bool from_persistent, bool need_recycle, uint32_t stream, void *ptr)
{
    const uint64_t args[4] = {size, from_persistent, need_recycle, stream};
    if (JOURNALING)
        journal_add(JF_mindspore_AllocTensorMem, 0, args, U(ptr));
}

static void note_free(void *ptr)
{
    const uint64_t args[4] = {U(ptr), 0, 0, 0};
    if (JOURNALING)
        journal_add(JF_mindspore_FreeTensorMem, 0, args, 0);
}

/* Of one thread: it is not kept. */
static thread_local MemBuf buffer;

__attribute__((noinline)) std::pair<MemBuf *, MemBufAllocator *>
AbstractDynamicMemPool::AllocMemBuf(size_t align_size, bool from_persistent, uint32_t stream)
{
    if (!align_size)
        return {nullptr, nullptr};
    buffer.size = align_size;
    buffer.addr = find_block(slab_, align_size);
    note_alloc(align_size, from_persistent, false, stream, buffer.addr);
    return {&buffer, nullptr};
}

/* Blocks are multiples of 512 bytes. */
static size_t aligned(size_t size)
{
    return (size + 511) / 512 * 512;
}

__attribute__((noinline)) void *AbstractDynamicMemPool::AllocTensorMem(size_t size, bool from_persistent, bool,
                                                                       uint32_t stream)
{
    MemBuf *found = AllocMemBuf(aligned(size), from_persistent, stream).first;
    return found ? found->addr : nullptr;
}

/* Short enough to be copied into its thunk. */
void AbstractDynamicMemPool::FreeTensorMem(void *const &ptr)
{
    static_cast<DynamicMemPool *>(this)->DoFreeTensorMem(ptr);
}

__attribute__((noinline)) void AbstractDynamicMemPool::DoFreeTensorMem(void *const &ptr)
{
    note_free(ptr);
    slab_.give(ptr);
}

__attribute__((noinline)) void AbstractDynamicMemPool::FreePartTensorMems(const std::vector<void *> &free_addrs,
                                                                          const std::vector<void *> &,
                                                                          const std::vector<size_t> &)
{
    for (void *const &ptr : free_addrs)
        DoFreeTensorMem(ptr);
}

__attribute__((noinline)) void *DynamicMemPoolBestFit::AllocTensorMem(size_t size, bool from_persistent,
                                                                      bool need_recycle, uint32_t stream)
{
    if (!size)
        return nullptr;
    void *ptr = find_block(slab_, size);
    note_alloc(size, from_persistent, need_recycle, stream, ptr);
    return ptr;
}

__attribute__((noinline)) void DynamicMemPoolBestFit::FreeTensorMem(void *const &ptr)
{
    FreeTensorMemInner(ptr);
}

__attribute__((noinline)) void DynamicMemPoolBestFit::FreeTensorMemInner(void *const &ptr)
{
    note_free(ptr);
    slab_.give(ptr);
}

__attribute__((noinline)) void DynamicMemPoolBestFit::FreePartTensorMems(const std::vector<void *> &free_addrs,
                                                                         const std::vector<void *> &,
                                                                         const std::vector<size_t> &)
{
    for (void *const &ptr : free_addrs)
        FreeTensorMemInner(ptr);
}

namespace {
/* What `memory_tracker:True` puts before the abstract pool. */
class TrackedPool : public DynamicMemPool {
public:
    explicit TrackedPool(AbstractDynamicMemPool &pool) : pool_(pool) {}
    void *AllocTensorMem(size_t size, bool from_persistent, bool, uint32_t stream) override
    {
        MemBuf *found = pool_.AllocMemBuf(aligned(size), from_persistent, stream).first;
        return found ? found->addr : nullptr;
    }
    void FreeTensorMem(void *const &ptr) override { DoFreeTensorMem(ptr); }
    void DoFreeTensorMem(void *const &ptr) override { pool_.DoFreeTensorMem(ptr); }
    void FreePartTensorMems(const std::vector<void *> &free_addrs, const std::vector<void *> &keep_addrs,
                            const std::vector<size_t> &keep_sizes) override
    {
        pool_.FreePartTensorMems(free_addrs, keep_addrs, keep_sizes);
    }

private:
    AbstractDynamicMemPool &pool_;
};
}

static DynamicMemPool &pool(int kind)
{
    static AbstractDynamicMemPool abstract;
    static DynamicMemPoolBestFit best;
    static TrackedPool tracked(abstract);
    DynamicMemPool *const pools[] = {&abstract, &best, &tracked};
    return *pools[kind];
}

}
}

int simms_alloc(int kind, size_t size, uint32_t stream, void **out)
{
    try {
        *out = mindspore::device::pool(kind).AllocTensorMem(size, true, false, stream);
    } catch (const std::runtime_error &) {
        *out = nullptr;
        return 1;
    }
    return 0;
}

void simms_free(int kind, void *ptr)
{
    mindspore::device::pool(kind).FreeTensorMem(ptr);
}

void simms_free_part(int kind, void *ptr)
{
    mindspore::device::pool(kind).FreePartTensorMems({ptr}, {}, {});
}
