/* The two allocators of libtorch_npu.so. */
#ifndef PTA_ALLOCATORS_H
#define PTA_ALLOCATORS_H
#include <cstddef>
#include "torch_npu/simpta.h"

namespace c10_npu {

constexpr int MAX_DEVICES = 32;

namespace NPUCachingAllocator {

struct NPUAllocator {
    virtual ~NPUAllocator() = default;
    virtual int malloc(size_t size, int device, void *stream, void **out) = 0;
    virtual int free(void *ptr) = 0;
    virtual int record_stream(void *ptr, void *stream) = 0;
    virtual void synchronize(int device) = 0;
    virtual void empty_cache(int device) = 0;
    virtual void stats(int device, struct simpta_stats *out) = 0;
};

NPUAllocator *get();

}
namespace NPUWorkspaceAllocator {

int malloc(size_t size, int device, void *stream, void **out);
int free(int device, void *stream);
void empty_cache(int device);

}
}
#endif
