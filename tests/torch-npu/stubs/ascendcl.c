/* libascendcl.so, beside the calls of ../../ascend-sim/src/ascendcl.c: contexts, events, and what torch_npu asks for at
 * its start. Nothing here has memory. All work is done when the call that asks for it returns, and events with it, unless
 * streams need time (work.h). */
#define _GNU_SOURCE
#include "acl/acl_rt.h"
#include "runtime/rt.h"
#include "work.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 32
#define CORES 24

/* ---- devices and contexts: each device has one context ---- */

static uint32_t device_count(void)
{
    const char *text = getenv("ASCEND_SIM_DEVICES");
    uint32_t count = text ? (uint32_t)strtoul(text, NULL, 10) : 8;
    return count < MAX_DEVICES ? count : MAX_DEVICES;
}

static char contexts[MAX_DEVICES];

aclError aclrtGetDeviceCount(uint32_t *count)
{
    *count = device_count();
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(void **context)
{
    int32_t device;
    aclError ret = rtGetDevice(&device);
    if (!ret)
        *context = &contexts[device];
    return ret;
}

aclError aclrtSetCurrentContext(void *context)
{
    return context ? rtSetDevice((int32_t)((char *)context - contexts)) : ACL_ERROR_RT_CONTEXT_NULL;
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active)
{
    if (flags)
        *flags = 0;
    *active = 1;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void)
{
    return "Ascend910B2";
}

aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    *can = 1;
    return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t device, int info, int64_t *value)
{
    *value = CORES;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value)
{
    *value = CORES;
    return ACL_SUCCESS;
}

aclError aclrtDeviceGetBareTgid(int32_t *pid)
{
    *pid = getpid();
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceSatMode(int *mode)
{
    *mode = 0;
    return ACL_SUCCESS;
}

/* ---- the package ---- */

/* aclCANNPackageVersion of acl/acl.h. The caller has it on its stack: a longer one would overwrite what is behind it. */
struct cann_version {
    char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};
_Static_assert(sizeof(struct cann_version) == 512, "as in CANN's header");

aclError aclsysGetCANNVersion(int package, struct cann_version *out)
{
    *out = (struct cann_version){.version = "8.5.0", .major = "8", .minor = "5", .release = "0"};
    return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char *package, char *out)
{
    strcpy(out, "8.5.0");
    return ACL_SUCCESS;
}

const char *aclGetRecentErrMsg(void)
{
    return "";
}

/* What torch_npu logs; with ASCEND_GLOBAL_LOG_LEVEL=0 a line for every block. */
void aclAppLog(int level, const char *function, const char *file, uint32_t line, const char *form, ...)
{
    va_list arguments;
    if (!getenv("TORCH_NPU_BENCH_LOG"))
        return;
    va_start(arguments, form);
    fprintf(stderr, "[acl log %d] ", level);
    vfprintf(stderr, form, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* ---- streams ---- */

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    return rtStreamCreate(stream, (int32_t)priority);
}

aclError aclrtDestroyStreamForce(aclrtStream stream)
{
    return rtStreamDestroy(stream);
}

aclError aclrtStreamQuery(aclrtStream stream, int *status)
{
    enum { COMPLETE, NOT_READY };
    *status = work_done_ns(stream) <= work_now_ns() ? COMPLETE : NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout)
{
    work_wait(work_all_done_ns());
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    work_wait(work_done_ns(stream));
    return ACL_SUCCESS;
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t *flag)
{
    *flag = 0;
    return ACL_SUCCESS;
}

#define DONE(name, ...) \
    aclError name(__VA_ARGS__) \
    { \
        return ACL_SUCCESS; \
    }
DONE(aclrtSetStreamFailureMode, aclrtStream stream, uint64_t mode)
DONE(aclrtSetStreamOverflowSwitch, aclrtStream stream, uint32_t flag)
DONE(aclrtSetOpWaitTimeout, uint32_t timeout)
DONE(aclrtSetOpExecuteTimeOut, uint32_t timeout)
DONE(aclrtSetDeviceSatMode, int mode)
DONE(aclrtGetLastError, int level)
DONE(aclrtPeekAtLastError, int level)
DONE(aclrtSubscribeReport, uint64_t thread, aclrtStream stream)
DONE(aclrtUnSubscribeReport, uint64_t thread, aclrtStream stream)

/* The callback thread asks in a loop. */
aclError aclrtProcessReport(int32_t timeout)
{
    usleep(100000);
    return ACL_SUCCESS;
}

aclError aclrtLaunchCallback(void (*callback)(void *), void *data, int block, aclrtStream stream)
{
    callback(data);
    return ACL_SUCCESS;
}

aclError aclrtLaunchHostFunc(aclrtStream stream, void (*callback)(void *), void *data)
{
    callback(data);
    return ACL_SUCCESS;
}

/* ---- events ---- */

/* Times in nanoseconds: done at this one, once it is recorded. */
struct event {
    uint64_t done_ns;
};

aclError aclrtCreateEventExWithFlag(void **event, uint32_t flag)
{
    *event = calloc(1, sizeof(struct event));
    return *event ? ACL_SUCCESS : ACL_ERROR_BAD_ALLOC;
}

aclError aclrtCreateEventWithFlag(void **event, uint32_t flag)
{
    return aclrtCreateEventExWithFlag(event, flag);
}

aclError aclrtCreateEvent(void **event)
{
    return aclrtCreateEventExWithFlag(event, 0);
}

aclError aclrtDestroyEvent(void *event)
{
    free(event);
    return ACL_SUCCESS;
}

aclError aclrtRecordEvent(void *event, aclrtStream stream)
{
    uint64_t done = work_done_ns(stream), now = work_now_ns();
    ((struct event *)event)->done_ns = done > now ? done : now;
    return ACL_SUCCESS;
}

DONE(aclrtResetEvent, void *event, aclrtStream stream)

aclError aclrtSynchronizeEvent(void *event)
{
    work_wait(((struct event *)event)->done_ns);
    return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, void *event)
{
    work_after(stream, ((struct event *)event)->done_ns);
    return ACL_SUCCESS;
}

aclError aclrtQueryEventStatus(void *event, int *status)
{
    enum { NOT_READY, COMPLETE };
    *status = ((struct event *)event)->done_ns <= work_now_ns() ? COMPLETE : NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(void *event, int *status)
{
    enum { COMPLETE };
    *status = COMPLETE;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *milliseconds, void *start, void *end)
{
    const struct event *from = start, *to = end;
    *milliseconds = (float)((double)(int64_t)(to->done_ns - from->done_ns) / 1e6);
    return ACL_SUCCESS;
}

/* ---- filling memory: the simulated runtime has only copies ---- */

aclError aclrtMemset(void *memory, size_t room, int32_t value, size_t count)
{
    if (count > room)
        return ACL_ERROR_INVALID_PARAM;
    memset(memory, value, count);
    return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void *memory, size_t room, int32_t value, size_t count, aclrtStream stream)
{
    return aclrtMemset(memory, room, value, count);
}

/* ---- descriptors of the older way to call operators ---- */

struct description {
    int type, format;
    size_t dimensions;
    int64_t size[16];
};

void *aclCreateTensorDesc(int type, int dimensions, const int64_t *size, int format)
{
    struct description *it = calloc(1, sizeof *it);
    it->type = type;
    it->format = format;
    it->dimensions = dimensions < 16 ? (size_t)dimensions : 16;
    memcpy(it->size, size, it->dimensions * sizeof *size);
    return it;
}

void aclDestroyTensorDesc(const void *description)
{
    free((void *)description);
}

int aclGetTensorDescType(const struct description *it)
{
    return it->type;
}

int aclGetTensorDescFormat(const struct description *it)
{
    return it->format;
}

size_t aclGetTensorDescNumDims(const struct description *it)
{
    return it->dimensions;
}

aclError aclGetTensorDescDimV2(const struct description *it, size_t index, int64_t *size)
{
    *size = it->size[index & 15];
    return ACL_SUCCESS;
}

void *aclCreateDataBuffer(void *data, size_t size)
{
    return calloc(1, 16);
}

aclError aclDestroyDataBuffer(const void *buffer)
{
    free((void *)buffer);
    return ACL_SUCCESS;
}
