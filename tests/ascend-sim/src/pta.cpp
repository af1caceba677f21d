/* The exported functions of libtorch_npu.so. None lets an exception out: their callers are C programs. */
#include "torch_npu/simpta.h"
#include "acl/acl_rt.h"
#include "journal.h"
#include "pta_allocators.h"

using c10_npu::NPUCachingAllocator::get;
namespace workspace = c10_npu::NPUWorkspaceAllocator;

/* As torch_npu does at the first use of a device in a thread. */
static int use_device(int32_t device)
{
    int32_t current;
    if (device < 0 || device >= c10_npu::MAX_DEVICES)
        return ACL_ERROR_INVALID_PARAM;
    return !aclrtGetDevice(&current) && current == device ? 0 : aclrtSetDevice(device);
}

template <typename Body> static int with_device(int32_t device, Body body)
{
    int ret = use_device(device);
    return ret ? ret : body();
}

static void note(uint16_t func, int64_t ret, uint64_t first, uint64_t second, uint64_t third, void *out)
{
    const uint64_t args[4] = {first, second, third, 0};
    journal_add(func, ret, args, ret ? 0 : U(out));
}

/* The ways that torch_npu has: a tensor on the current stream, and memory on a given one. */
static int ask(size_t size, void *stream, void **out)
{
    *out = stream ? get()->raw_alloc_with_stream(size, stream) : get()->allocate(size).data;
    return get()->last_error();
}

int simpta_malloc(size_t size, int32_t device, void *stream, void **out)
{
    *out = nullptr;
    int ret = size ? with_device(device, [&] { return ask(size, stream, out); }) : 0;
    if (JOURNALING)
        note(JF_torch_npu_simpta_malloc, ret, size, static_cast<uint32_t>(device), U(stream), *out);
    return ret;
}

int simpta_free(void *ptr)
{
    if (JOURNALING)
        note(JF_torch_npu_simpta_free, 0, U(ptr), 0, 0, nullptr);
    return ptr ? get()->free(ptr) : 0;
}

int simpta_record_stream(void *ptr, void *stream)
{
    get()->recordStream({ptr, get()->raw_deleter(), nullptr, 0}, stream);
    return 0;
}

int simpta_synchronize(int32_t device)
{
    return with_device(device, [&] {
        get()->synchronize(device);
        return 0;
    });
}

int simpta_empty_cache(int32_t device)
{
    return with_device(device, [&] {
        get()->empty_cache(device);
        return 0;
    });
}

int simpta_workspace(size_t size, int32_t device, void *stream, void **out)
{
    *out = nullptr;
    return with_device(device, [&] { return workspace::malloc(size, device, stream, out); });
}

int simpta_workspace_free(int32_t device, void *stream)
{
    return with_device(device, [&] { return workspace::free(device, stream); });
}

int simpta_workspace_empty(int32_t device)
{
    return with_device(device, [&] {
        workspace::empty_cache(device);
        return 0;
    });
}

void simpta_get_stats(int32_t device, struct simpta_stats *out)
{
    get()->stats(device, out);
}
