/* The two allocators of libtorch_npu.so. */
#ifndef PTA_ALLOCATORS_H
#define PTA_ALLOCATORS_H
#include <cstddef>
#include "torch_npu/simpta.h"

namespace c10_npu {

constexpr int MAX_DEVICES = 32;

namespace NPUCachingAllocator {

/* As c10::DataPtr it begins with these two words, and has a destructor: a function gets the address of its result from the caller. */
struct DataPtr {
    void *data;
    void (*deleter)(void *);
    void *context;
    uint16_t device;
    ~DataPtr() {}
};

/* The first entries of its table are those of torch_npu before 2.3, and are found by their places. */
struct NPUAllocator {
    virtual ~NPUAllocator() = default;
    virtual DataPtr allocate(size_t size) = 0;
    virtual void (*raw_deleter())(void *) = 0;
    virtual int last_error() = 0;
    virtual void *raw_alloc(size_t size) = 0;
    virtual void *raw_alloc_with_stream(size_t size, void *stream) = 0;
    virtual int free(void *ptr) = 0;
    virtual void recordStream(const DataPtr &ptr, void *stream) = 0;
    virtual void eraseStream(const DataPtr &ptr, void *stream) = 0;
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
