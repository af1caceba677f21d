/* libmindspore_memory_pool.so: the exported members of both pools, with the names and arguments of the real ones.
 *
 * As in the wheels of 2.7 to 2.10, callers come to `AbstractDynamicMemPool::FreeTensorMem` by its virtual thunk, which holds a copy of it: the
 * function itself never runs. Both call `DoFreeTensorMem`, a virtual function. The thunks of the other class jump, and `FreePartTensorMems`
 * passes by `FreeTensorMem`. */
#include <stdexcept>
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

class SIM_API AbstractDynamicMemPool : virtual public DynamicMemPool {
public:
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

__attribute__((noinline)) void *AbstractDynamicMemPool::AllocTensorMem(size_t size, bool from_persistent,
                                                                       bool need_recycle, uint32_t stream)
{
    if (!size)
        return nullptr;
    void *ptr = find_block(slab_, size);
    note_alloc(size, from_persistent, need_recycle, stream, ptr);
    return ptr;
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

void simms_free_part(int best_fit, void *ptr)
{
    mindspore::device::pool(best_fit).FreePartTensorMems({ptr}, {}, {});
}
