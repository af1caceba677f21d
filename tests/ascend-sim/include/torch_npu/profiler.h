/* torch_npu: the parts of the real one that make up what a tracer can find in its stripped libraries. Namespaces and
 * names of classes are the real ones, as they show in mangled names and in type information. */
#ifndef TORCH_NPU_PROFILER_H
#define TORCH_NPU_PROFILER_H
#include <cstddef>
#include <cstdint>
#include "sim_export.h"

namespace torch_npu {
namespace toolkit {
namespace profiler {

/* In libnpu_profiler.so. Its users make objects of these classes and so refer to its tables of virtual functions. */
struct SIM_API BaseReportData {
    explicit BaseReportData(int32_t device) : device(device) {}
    virtual ~BaseReportData();
    virtual size_t encode(uint8_t *to) = 0;
    int32_t device;
};

struct SIM_API MemoryData : BaseReportData {
    MemoryData(int32_t device, int64_t ptr, int64_t time_ns, int64_t size, int64_t allocated, int64_t reserved,
               int64_t active, int64_t stream, uint64_t process, uint8_t kind, uint8_t component, uint8_t allocator)
        : BaseReportData(device), ptr(ptr), time_ns(time_ns), size(size), allocated(allocated), reserved(reserved),
          active(active), stream(stream), process(process), kind(kind), component(component), allocator(allocator)
    {
    }
    ~MemoryData() override;
    size_t encode(uint8_t *to) override;
    int64_t ptr, time_ns, size, allocated, reserved, active, stream;
    uint64_t process;
    uint8_t kind, component, allocator;
};

/* Takes the data over. */
SIM_API void report(BaseReportData *data);
/* Whether anybody wants them: ASCEND_SIM_PTA_PROFILER is set. */
SIM_API bool is_on();

}
}
}
#endif
