/* Blocks of device memory for pools: cut from one segment, never given back, so that addresses are plausible. */
#ifndef SLAB_H
#define SLAB_H
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>
#include "acl/acl_rt.h"

/* The most that one block may have; a pool throws beyond it, as MindSpore does when its device is full. */
constexpr size_t SLAB_LARGEST = size_t{1} << 20;

class Slab {
public:
    void *take(size_t size)
    {
        std::lock_guard<std::mutex> guard{mutex_};
        if (!free_.empty()) {
            void *block = free_.back();
            free_.pop_back();
            return block;
        }
        (void)size;
        if (at_ == end_) {
            void *segment;
            if (aclrtMalloc(&segment, SEGMENT, ACL_MEM_MALLOC_HUGE_FIRST))
                return nullptr;
            at_ = static_cast<char *>(segment);
            end_ = at_ + SEGMENT;
        }
        void *block = at_;
        at_ += SLAB_LARGEST;
        return block;
    }

    void give(void *block)
    {
        std::lock_guard<std::mutex> guard{mutex_};
        free_.push_back(block);
    }

private:
    static constexpr size_t SEGMENT = 16 * SLAB_LARGEST;
    std::mutex mutex_;
    std::vector<void *> free_;
    char *at_ = nullptr;
    char *end_ = nullptr;
};
#endif
