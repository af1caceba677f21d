/* libopapi.so: operators that join tensors and cut them, as training on several ranks does. */
#include "elements.h"

/* A list of tensors and a whole. */
static struct executor *parts_of(void (*compute)(struct executor *), array parts, tensor whole)
{
    struct executor *e = executor_of(compute, whole, NULL, NULL, NULL, NULL);
    e->each_count = (int)parts->count;
    e->list[0] = malloc((parts->count + 1) * sizeof *e->list[0]);
    for (uint64_t n = 0; n < parts->count; n++)
        e->list[0][n] = *((struct aclTensor **)parts->items)[n];
    return e;
}

/* ---- along a dimension ---- */

enum { JOIN, CUT };

/* The place of element `k` of a part in the whole, which the part begins in at `from` of a dimension. */
static int64_t place_in(tensor whole, tensor part, int64_t k, int64_t dimension, int64_t from)
{
    int64_t at = whole->offset;
    for (int i = part->dimensions - 1; i >= 0; i--) {
        at += (k % part->size[i] + (i == dimension ? from : 0)) * whole->stride[i];
        k /= part->size[i];
    }
    return at;
}

static void compute_join(struct executor *e)
{
    tensor whole = &e->tensor[0];
    int64_t dimension = e->option[0] < 0 ? e->option[0] + whole->dimensions : e->option[0], from = 0;
    for (int n = 0; n < e->each_count; n++) {
        tensor part = &e->list[0][n];
        // torch lets an empty vector stand among others.
        if (part->dimensions != whole->dimensions)
            continue;
        for (int64_t k = 0, count = count_of(part); k < count; k++) {
            int64_t in_whole = place_in(whole, part, k, dimension, from), in_part = place(part, part, k);
            if (e->option[1] == CUT)
                store(part, in_part, load(whole, in_whole));
            else
                store(whole, in_whole, load(part, in_part));
        }
        from += part->size[dimension];
    }
}

static int join(int direction, array parts, tensor whole, int64_t dimension, RESULT)
{
    struct executor *e = parts_of(compute_join, parts, whole);
    e->option[0] = dimension;
    e->option[1] = direction;
    return prepared(e, 0, workspace, out);
}

int aclnnCatGetWorkspaceSize(array parts, int64_t dimension, tensor to, RESULT)
{
    return join(JOIN, parts, to, dimension, workspace, out);
}

int aclnnSplitWithSizeGetWorkspaceSize(tensor a, array sizes, int64_t dimension, array to, RESULT)
{
    return join(CUT, to, a, dimension, workspace, out);
}

/* ---- along a dimension of its own ---- */

static void compute_stack(struct executor *e)
{
    tensor whole = &e->tensor[0];
    int64_t dimension = e->option[0] < 0 ? e->option[0] + whole->dimensions : e->option[0];
    for (int n = 0; n < e->each_count; n++) {
        tensor part = &e->list[0][n];
        for (int64_t k = 0, count = count_of(part); k < count; k++) {
            int64_t at = whole->offset + n * whole->stride[dimension], rest = k;
            for (int i = part->dimensions - 1; i >= 0; i--) {
                at += rest % part->size[i] * whole->stride[i < dimension ? i : i + 1];
                rest /= part->size[i];
            }
            store(whole, at, load(part, place(part, part, k)));
        }
    }
}

int aclnnStackGetWorkspaceSize(array parts, int64_t dimension, tensor to, RESULT)
{
    struct executor *e = parts_of(compute_stack, parts, to);
    e->option[0] = dimension;
    return prepared(e, 0, workspace, out);
}

/* ---- chunks: each tensor is cut into as many along its first dimension, and those of a number stand in a row ---- */

static void compute_chunks(struct executor *e)
{
    tensor to = &e->tensor[0];
    int64_t chunks = e->option[0], row = count_of(to) / chunks, from = 0;
    for (int n = 0; n < e->each_count; n++) {
        tensor part = &e->list[0][n];
        int64_t count = count_of(part), first = part->dimensions ? part->size[0] : 1;
        int64_t width = first ? count / first * ((first + chunks - 1) / chunks) : 0;
        for (int64_t k = 0; k < chunks * width; k++) {
            int64_t at = k / width * row + from + k % width;
            store(to, place(to, to, at), k < count ? load(part, place(part, part, k)) : 0);
        }
        from += width;
    }
}

/* FSDP2 cuts along dimension 0 alone. */
int aclnnChunkCatGetWorkspaceSize(array parts, int64_t dimension, int64_t chunks, tensor to, RESULT)
{
    struct executor *e = parts_of(dimension ? NULL : compute_chunks, parts, to);
    e->option[0] = chunks;
    return prepared(e, 0, workspace, out);
}

/* ---- a border ---- */

static void compute_pad(struct executor *e)
{
    tensor a = &e->tensor[0], to = &e->tensor[1];
    for (int64_t k = 0, count = count_of(to); k < count; k++) {
        int64_t rest = k, at = a->offset;
        bool inside = true;
        for (int i = to->dimensions - 1; i >= 0; i--) {
            int64_t index = rest % to->size[i] - e->option[i];
            rest /= to->size[i];
            inside = inside && index >= 0 && index < a->size[i];
            at += index * a->stride[i];
        }
        store(to, place(to, to, k), inside ? load(a, at) : e->scalar[0]);
    }
}

/* What is added before and behind, from the last dimension on. */
int aclnnConstantPadNdGetWorkspaceSize(tensor a, array added, scalar value, tensor to, RESULT)
{
    struct executor *e = executor_of(compute_pad, a, to, NULL, NULL, NULL);
    e->scalar[0] = value->value;
    for (uint64_t n = 0; n < added->count / 2 && n < (uint64_t)a->dimensions; n++)
        e->option[a->dimensions - 1 - (int)n] = ((int64_t *)added->items)[2 * n];
    return prepared(e, 0, workspace, out);
}
