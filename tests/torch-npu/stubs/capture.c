/* libascendcl.so: capture of graphs, as servers use it. What is captured runs at once, and a replay launches one kernel: it has no
 * memory of its own. */
#include "acl/acl_rt.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CAPTURES 64
/* What physical memory is made of. */
#define GRANULE (2u << 20)

struct model {
    int number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Streams that capture. */
static struct {
    aclrtStream stream;
    struct model *model;
} captures[CAPTURES];
static int models;

/* The capture of a stream, or a free place for one. */
static int slot(aclrtStream stream, bool is_free)
{
    for (int i = 0; i < CAPTURES; i++)
        if (is_free ? !captures[i].model : captures[i].model && captures[i].stream == stream)
            return i;
    return -1;
}

aclError aclmdlRICaptureBegin(aclrtStream stream, int mode)
{
    pthread_mutex_lock(&lock);
    int at = slot(stream, true);
    if (at >= 0) {
        captures[at].stream = stream;
        captures[at].model = calloc(1, sizeof *captures[at].model);
        captures[at].model->number = ++models;
    }
    pthread_mutex_unlock(&lock);
    return at >= 0 ? ACL_SUCCESS : ACL_ERROR_BAD_ALLOC;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, int *status, void **model)
{
    enum { NONE, ACTIVE };
    pthread_mutex_lock(&lock);
    int at = slot(stream, false);
    *status = at >= 0 ? ACTIVE : NONE;
    if (model)
        *model = at >= 0 ? captures[at].model : NULL;
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream stream, void **model)
{
    pthread_mutex_lock(&lock);
    int at = slot(stream, false);
    if (at >= 0) {
        *model = captures[at].model;
        captures[at].model = NULL;
    }
    pthread_mutex_unlock(&lock);
    return at >= 0 ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

/* A kernel of the stand-ins' own, under the name of the call. */
static aclError launch(aclrtStream stream)
{
    static const char data[] = "graphs of the stand-ins";
    static aclrtFuncHandle function;
    static aclrtBinHandle binary;
    const uint64_t arguments[1] = {0};
    pthread_mutex_lock(&lock);
    aclError ret = function ? ACL_SUCCESS : aclrtBinaryLoadFromData(data, sizeof data, NULL, &binary);
    if (!ret && !function)
        ret = aclrtBinaryGetFunction(binary, "aclmdlRIExecute", &function);
    pthread_mutex_unlock(&lock);
    return ret ? ret : aclrtLaunchKernel(function, 1, arguments, sizeof arguments, stream);
}

aclError aclmdlRIExecuteAsync(void *model, aclrtStream stream)
{
    return launch(stream);
}

aclError aclmdlRIExecute(void *model, int32_t timeout)
{
    return launch(NULL);
}

aclError aclmdlRIDestroy(void *model)
{
    free(model);
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, void **group)
{
    static char any;
    *group = &any;
    return ACL_SUCCESS;
}

aclError aclrtMemGetAllocationGranularity(void *properties, int option, size_t *granularity)
{
    *granularity = GRANULE;
    return ACL_SUCCESS;
}

/* The value is a union of up to 8 bytes. */
aclError aclrtGetStreamAttribute(aclrtStream stream, int attribute, void *value)
{
    memset(value, 0, 8);
    return ACL_SUCCESS;
}

#define DONE(name, ...) \
    aclError name(__VA_ARGS__) \
    { \
        return ACL_SUCCESS; \
    }
DONE(aclrtSetStreamAttribute, aclrtStream stream, int attribute, void *value)
DONE(aclmdlRIAbort, void *model)
DONE(aclmdlRIDebugPrint, void *model)
DONE(aclmdlRIDebugJsonPrint, void *model, const char *path, uint32_t flags)
DONE(aclmdlRICaptureThreadExchangeMode, int *mode)
DONE(aclmdlRICaptureTaskGrpBegin, aclrtStream stream)
DONE(aclmdlRICaptureTaskUpdateBegin, aclrtStream stream, void *group)
DONE(aclmdlRICaptureTaskUpdateEnd, aclrtStream stream)
