/* libmindspore_memory_pool.so: the exported members of both pools, with the names and arguments of the real ones. */
#include <stdexcept>
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
};

class SIM_API AbstractDynamicMemPool : virtual public DynamicMemPool {
public:
    void *AllocTensorMem(size_t size, bool from_persistent, bool need_recycle, uint32_t stream) override;
    void FreeTensorMem(void *const &ptr) override;
    void DoFreeTensorMem(void *const &ptr);

private:
    Slab slab_;
};

class SIM_API DynamicMemPoolBestFit : virtual public DynamicMemPool {
public:
    void *AllocTensorMem(size_t size, bool from_persistent, bool need_recycle, uint32_t stream) override;
    void FreeTensorMem(void *const &ptr) override;

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

__attribute__((noinline)) void *AbstractDynamicMemPool::AllocTensorMem(size_t size, bool from_persistent,
                                                                       bool need_recycle, uint32_t stream)
{
    if (!size)
        return nullptr;
    void *ptr = find_block(slab_, size);
    note_alloc(size, from_persistent, need_recycle, stream, ptr);
    return ptr;
}

__attribute__((noinline)) void AbstractDynamicMemPool::FreeTensorMem(void *const &ptr)
{
    note_free(ptr);
    DoFreeTensorMem(ptr);
}

__attribute__((noinline)) void AbstractDynamicMemPool::DoFreeTensorMem(void *const &ptr)
{
    slab_.give(ptr);
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
    note_free(ptr);
    slab_.give(ptr);
}

static DynamicMemPool &pool(int best_fit)
{
    static AbstractDynamicMemPool abstract;
    static DynamicMemPoolBestFit best;
    return best_fit ? static_cast<DynamicMemPool &>(best) : abstract;
}

}
}

int simms_alloc(int best_fit, size_t size, uint32_t stream, void **out)
{
    try {
        *out = mindspore::device::pool(best_fit).AllocTensorMem(size, true, false, stream);
    } catch (const std::runtime_error &) {
        *out = nullptr;
        return 1;
    }
    return 0;
}

void simms_free(int best_fit, void *ptr)
{
    mindspore::device::pool(best_fit).FreeTensorMem(ptr);
}
