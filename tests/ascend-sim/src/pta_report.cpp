/* The two functions of libtorch_npu.so that make a MemoryData: the one that every allocation calls, and a virtual one
 * that only PyTorch's own profiler reaches. */
#include "pta_report.h"
#include "journal.h"
#include "torch_npu/profiler.h"
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <new>
#include <unistd.h>

using torch_npu::toolkit::profiler::MemoryData;

static const uint64_t NO_ARGS[4] = {};

static int64_t now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

/* ASCEND_SIM_PTA_THROW=N: every Nth report throws, to show that probes do no harm then. */
static bool throws()
{
    static const char *text = getenv("ASCEND_SIM_PTA_THROW");
    static const unsigned long each = text ? strtoul(text, nullptr, 0) : 0;
    static std::atomic<unsigned long> count;
    return each && ++count % each == 0;
}

namespace torch_npu {
namespace profiler {

__attribute__((noinline)) void reportMemoryDataToNpuProfiler(const MemoryUsage &data)
{
    if (JOURNALING)
        journal_add_bytes(JF_torch_npu_reportMemoryDataToNpuProfiler, 0, NO_ARGS, 0, &data, sizeof data);
    if (throws())
        throw std::bad_alloc();
    if (!toolkit::profiler::is_on())
        return;
    toolkit::profiler::report(new MemoryData(
        data.device_index + data.device_type * 256, data.ptr, now_ns(), data.alloc_size, data.total_allocated,
        data.total_reserved, data.total_active, reinterpret_cast<int64_t>(data.stream), static_cast<uint64_t>(getpid()),
        static_cast<uint8_t>(data.data_type), static_cast<uint8_t>(data.component),
        static_cast<uint8_t>(data.allocator_type)));
}

/* In PyTorch's libc10. */
struct MemoryReportingInfo {
    virtual ~MemoryReportingInfo() = default;
    virtual void reportMemoryUsage(void *ptr, int64_t size, size_t allocated, size_t reserved, int device) = 0;
};

struct NpuProfilerThreadLocalState : MemoryReportingInfo {
    void reportMemoryUsage(void *ptr, int64_t size, size_t allocated, size_t reserved, int device) override
    {
        if (toolkit::profiler::is_on())
            toolkit::profiler::report(new MemoryData(device, reinterpret_cast<int64_t>(ptr), now_ns(), size,
                                                     static_cast<int64_t>(allocated), static_cast<int64_t>(reserved), 0,
                                                     0, static_cast<uint64_t>(getpid()), 0, 0, 0));
    }
};

}
}

/* For PyTorch's profiler, which is not here: it keeps the virtual function in the library. */
extern "C" SIM_API void *simpta_profiler_state(void)
{
    return new torch_npu::profiler::NpuProfilerThreadLocalState();
}
