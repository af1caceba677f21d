/* libnpu_profiler.so: takes what torch_npu reports, if it was asked to, and forgets it. */
#include "torch_npu/profiler.h"
#include <cstdlib>
#include <cstring>

namespace torch_npu {
namespace toolkit {
namespace profiler {

BaseReportData::~BaseReportData() = default;
MemoryData::~MemoryData() = default;

size_t MemoryData::encode(uint8_t *to)
{
    const int64_t fields[] = {ptr, time_ns, size, allocated, reserved, active, stream, static_cast<int64_t>(process)};
    memcpy(to, fields, sizeof fields);
    return sizeof fields;
}

bool is_on()
{
    static const bool on = getenv("ASCEND_SIM_PTA_PROFILER");
    return on;
}

void report(BaseReportData *data)
{
    static volatile uint8_t last;
    uint8_t bytes[64];
    size_t length = data->encode(bytes);
    last = bytes[length - 1];
    (void)last;
    delete data;
}

}
}
}
