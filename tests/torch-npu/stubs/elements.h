/* What operators that compute have in common: their arguments, and access to single elements. */
#ifndef ELEMENTS_H
#define ELEMENTS_H
#include "operator.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef const struct aclTensor *tensor;
typedef const struct aclScalar *scalar;
typedef const struct aclArray *array;
/* What every phase one gives back. */
#define RESULT uint64_t *workspace, struct executor **out

static inline int prepared(struct executor *executor, uint64_t workspace_size, RESULT)
{
    if (workspace)
        *workspace = workspace_size;
    if (out)
        *out = executor;
    return 0;
}

static inline struct executor *executor_of(void (*compute)(struct executor *), tensor a, tensor b, tensor c, tensor d,
                                           tensor e)
{
    tensor tensors[] = {a, b, c, d, e};
    struct executor *it = calloc(1, sizeof *it);
    it->compute = compute;
    for (int i = 0; i < 5; i++)
        if (tensors[i])
            it->tensor[i] = *tensors[i];
    return it;
}

/* ---- elements ---- */

static inline int64_t count_of(tensor t)
{
    int64_t count = 1;
    for (int i = 0; i < t->dimensions; i++)
        count *= t->size[i];
    return count;
}

/* Place of element `k` of `t`, made as large as `shape` by repeating. */
static inline int64_t place(tensor shape, tensor t, int64_t k)
{
    int64_t at = t->offset;
    for (int i = shape->dimensions - 1, j = t->dimensions - 1; i >= 0; i--, j--) {
        int64_t index = k % shape->size[i];
        k /= shape->size[i];
        if (j >= 0 && t->size[j] != 1)
            at += index * t->stride[j];
    }
    return at;
}

static inline double load(tensor t, int64_t at)
{
    switch (t->type) {
    case TYPE_FLOAT:
        return ((float *)t->data)[at];
    case TYPE_HALF:
        return (double)((_Float16 *)t->data)[at];
    case TYPE_BFLOAT:
        return bfloat_value(((uint16_t *)t->data)[at]);
    case TYPE_INT8:
        return ((int8_t *)t->data)[at];
    case TYPE_INT16:
        return ((int16_t *)t->data)[at];
    case TYPE_INT32:
        return ((int32_t *)t->data)[at];
    case TYPE_INT64:
        return (double)((int64_t *)t->data)[at];
    case TYPE_UINT8:
    case TYPE_BOOL:
        return ((uint8_t *)t->data)[at];
    case TYPE_DOUBLE:
        return ((double *)t->data)[at];
    default:
        return 0;
    }
}

static inline void store(tensor t, int64_t at, double value)
{
    switch (t->type) {
    case TYPE_FLOAT:
        ((float *)t->data)[at] = (float)value;
        break;
    case TYPE_HALF:
        ((_Float16 *)t->data)[at] = (_Float16)value;
        break;
    case TYPE_BFLOAT:
        ((uint16_t *)t->data)[at] = bfloat_of((float)value);
        break;
    case TYPE_INT8:
        ((int8_t *)t->data)[at] = (int8_t)value;
        break;
    case TYPE_INT16:
        ((int16_t *)t->data)[at] = (int16_t)value;
        break;
    case TYPE_INT32:
        ((int32_t *)t->data)[at] = (int32_t)value;
        break;
    case TYPE_INT64:
        ((int64_t *)t->data)[at] = (int64_t)value;
        break;
    case TYPE_UINT8:
        ((uint8_t *)t->data)[at] = (uint8_t)value;
        break;
    case TYPE_BOOL:
        ((uint8_t *)t->data)[at] = value != 0;
        break;
    case TYPE_DOUBLE:
        ((double *)t->data)[at] = value;
        break;
    default:
        break;
    }
}

static inline double element(tensor t, int64_t k)
{
    return load(t, place(t, t, k));
}

static inline double element2(tensor t, int64_t row, int64_t column)
{
    return load(t, t->offset + row * t->stride[0] + column * t->stride[1]);
}

static inline void set2(tensor t, int64_t row, int64_t column, double value)
{
    store(t, t->offset + row * t->stride[0] + column * t->stride[1], value);
}

static inline bool is_matrix(tensor t)
{
    return t->dimensions == 2 && t->type == TYPE_FLOAT;
}
#endif
