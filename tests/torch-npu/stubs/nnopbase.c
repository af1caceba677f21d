/* libnnopbase.so: the arguments of aclnn operators, and their phase two. */
#include "operator.h"
#include "work.h"
#include "acl/acl_rt.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors, scalars, lists ---- */

struct aclTensor *aclCreateTensor(const int64_t *size, uint64_t dimensions, int type, const int64_t *stride,
                                  int64_t offset, int format, const int64_t *storage_size,
                                  uint64_t storage_dimensions, void *data)
{
    struct aclTensor *it = calloc(1, sizeof *it);
    it->dimensions = dimensions < MAX_DIMENSIONS ? (int)dimensions : MAX_DIMENSIONS;
    it->type = type;
    it->offset = offset;
    it->data = data;
    int64_t step = 1;
    for (int i = it->dimensions - 1; i >= 0; i--) {
        it->size[i] = size[i];
        it->stride[i] = stride ? stride[i] : step;
        step *= size[i];
    }
    return it;
}

struct aclScalar *aclCreateScalar(void *value, int type)
{
    struct aclScalar *it = calloc(1, sizeof *it);
    it->type = type;
    switch (type) {
    case TYPE_FLOAT:
        it->value = *(float *)value;
        break;
    case TYPE_INT32:
        it->value = *(int32_t *)value;
        break;
    case TYPE_INT64:
        it->value = (double)*(int64_t *)value;
        break;
    case TYPE_DOUBLE:
        it->value = *(double *)value;
        break;
    case TYPE_BOOL:
        it->value = *(uint8_t *)value;
        break;
    default:
        break;
    }
    return it;
}

static struct aclArray *list(const void *items, uint64_t count, size_t width)
{
    struct aclArray *it = malloc(sizeof *it + count * width);
    it->count = count;
    if (count)
        memcpy(it->items, items, count * width);
    return it;
}

#define LIST(name, type) \
    void *aclCreate##name(const type *items, uint64_t count) \
    { \
        return list(items, count, sizeof *items); \
    }
LIST(IntArray, int64_t)
LIST(FloatArray, float)
LIST(BoolArray, uint8_t)
LIST(Fp16Array, uint16_t)
LIST(TensorList, void *)
LIST(ScalarList, void *)

#define DESTROY(name) \
    int aclDestroy##name(void *it) \
    { \
        free(it); \
        return 0; \
    }
DESTROY(Tensor)
DESTROY(Scalar)
DESTROY(IntArray)
DESTROY(FloatArray)
DESTROY(BoolArray)
DESTROY(Fp16Array)
DESTROY(ScalarList)
DESTROY(AclOpExecutor)

/* Its tensors are its own. */
int aclDestroyTensorList(struct aclArray *it)
{
    for (uint64_t i = 0; it && i < it->count; i++)
        free(((void **)it->items)[i]);
    free(it);
    return 0;
}

/* Refused: phase two takes the executor. MindSpore would change the tensors of one that it keeps. */
int aclSetAclOpExecutorRepeatable(void *executor)
{
    return 1;
}

int aclGetViewShape(const struct aclTensor *it, int64_t **size, uint64_t *dimensions)
{
    *dimensions = (uint64_t)it->dimensions;
    *size = malloc(sizeof it->size);
    memcpy(*size, it->size, sizeof it->size);
    return 0;
}

int aclGetRawTensorAddr(const struct aclTensor *it, void **data)
{
    *data = it->data;
    return 0;
}

/* ---- launches ---- */

/* A function for each name. */
#define FUNCTIONS 1024
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *name;
    aclrtFuncHandle function;
} functions[FUNCTIONS];
static aclrtBinHandle binary;

static aclrtFuncHandle function_of(const char *name)
{
    static const char data[] = "every operator of the stand-ins";
    aclrtFuncHandle found = NULL;
    pthread_mutex_lock(&lock);
    if (!binary)
        aclrtBinaryLoadFromData(data, sizeof data, NULL, &binary);
    size_t i = 0;
    while (i < FUNCTIONS && functions[i].name && strcmp(functions[i].name, name))
        i++;
    if (i < FUNCTIONS && !functions[i].name && !aclrtBinaryGetFunction(binary, name, &functions[i].function))
        functions[i].name = strdup(name);
    if (i < FUNCTIONS)
        found = functions[i].function;
    pthread_mutex_unlock(&lock);
    return found;
}

int stub_launch(const char *name, void *stream)
{
    const uint64_t arguments[1] = {0};
    work_add(stream);
    return aclrtLaunchKernel(function_of(name), 1, arguments, sizeof arguments, stream);
}

int stub_op_run(const char *name, void *workspace, uint64_t size, struct executor *executor, void *stream)
{
    if (executor) {
        if (executor->compute)
            executor->compute(executor);
        for (int i = 0; i < 4; i++)
            free(executor->list[i]);
        free(executor->each);
        free(executor);
    }
    return stub_launch(name, stream);
}
