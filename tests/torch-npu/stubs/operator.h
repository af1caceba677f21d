/* What the stand-ins of the operator libraries share. */
#ifndef OPERATOR_H
#define OPERATOR_H
#include <stddef.h>
#include <stdint.h>

#define MAX_DIMENSIONS 8

/* Values of aclDataType that the stand-ins can compute with. */
enum {
    TYPE_FLOAT = 0,
    TYPE_HALF = 1,
    TYPE_INT8 = 2,
    TYPE_INT32 = 3,
    TYPE_UINT8 = 4,
    TYPE_INT16 = 6,
    TYPE_INT64 = 9,
    TYPE_DOUBLE = 11,
    TYPE_BOOL = 12,
    TYPE_BFLOAT = 27
};

/* The upper half of a float; rounded to the nearest even one. */
static inline float bfloat_value(uint16_t bits)
{
    union {
        uint32_t bits;
        float value;
    } it = {.bits = (uint32_t)bits << 16};
    return it.value;
}

static inline uint16_t bfloat_of(float value)
{
    union {
        float value;
        uint32_t bits;
    } it = {.value = value};
    return (uint16_t)((it.bits + 0x7fff + (it.bits >> 16 & 1)) >> 16);
}

struct aclTensor {
    int dimensions, type;
    int64_t offset, size[MAX_DIMENSIONS], stride[MAX_DIMENSIONS];
    char *data;
};

struct aclScalar {
    double value;
    int type;
};

/* Every list: of integers, of tensors, of scalars. */
struct aclArray {
    uint64_t count;
    char items[];
};

/* What phase one leaves to phase two: copies of its arguments, because those are gone in phase two. */
struct executor {
    void (*compute)(struct executor *);
    struct aclTensor tensor[8];
    double scalar[2];
    int64_t option[MAX_DIMENSIONS];
    /* Of the foreach operators: up to three inputs and the output, and a scalar for each tensor. */
    struct aclTensor *list[4];
    double *each;
    int each_count;
};

/* Launches the kernel of that name, through a function that was registered for it, as CANN's operators do. */
int stub_launch(const char *name, void *stream);
/* Phase two of every operator: computes what phase one prepared, if it did, and launches one kernel. */
int stub_op_run(const char *name, void *workspace, uint64_t size, struct executor *executor, void *stream);
#endif
