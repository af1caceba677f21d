/* libopapi.so: the operators that compute something, on the host; enough for a small network, its loss and two
 * optimizers to give the CPU's numbers; those that cut and join tensors are in joins.c, norms and comparisons in
 * checks.c. All others are generated and compute nothing; their memory traffic is real.
 * Phase one copies its arguments into an executor; phase two (generated) runs it. */
#include "elements.h"
#include <math.h>
#include <string.h>

/* ---- products ---- */

/* What matrix products ask for: a block for every call, larger than the smallest size classes of the pool. */
static uint64_t product_workspace(tensor out)
{
    return (1u << 20) + 4 * (uint64_t)count_of(out);
}

static void product(tensor a, tensor b, tensor added, tensor out, double beta, double alpha)
{
    for (int64_t i = 0; i < out->size[0]; i++)
        for (int64_t j = 0; j < out->size[1]; j++) {
            float sum = 0;
            for (int64_t k = 0; k < a->size[1]; k++)
                sum += (float)element2(a, i, k) * (float)element2(b, k, j);
            float base = added ? (float)beta * (float)load(added, place(out, added, i * out->size[1] + j)) : 0;
            set2(out, i, j, base + (float)alpha * sum);
        }
}

static void compute_mm(struct executor *e)
{
    if (is_matrix(&e->tensor[0]) && is_matrix(&e->tensor[2]))
        product(&e->tensor[0], &e->tensor[1], NULL, &e->tensor[2], 0, 1);
}

static void compute_addmm(struct executor *e)
{
    if (is_matrix(&e->tensor[1]) && is_matrix(&e->tensor[3]))
        product(&e->tensor[1], &e->tensor[2], &e->tensor[0], &e->tensor[3], e->scalar[0], e->scalar[1]);
}

int aclnnMmGetWorkspaceSize(tensor a, tensor b, tensor to, int8_t cube, RESULT)
{
    return prepared(executor_of(compute_mm, a, b, to, NULL, NULL), product_workspace(to), workspace, out);
}

int aclnnMatmulGetWorkspaceSize(tensor a, tensor b, tensor to, int8_t cube, RESULT)
{
    return aclnnMmGetWorkspaceSize(a, b, to, cube, workspace, out);
}

int aclnnAddmmGetWorkspaceSize(tensor added, tensor a, tensor b, scalar beta, scalar alpha, tensor to, int8_t cube,
                               RESULT)
{
    struct executor *e = executor_of(compute_addmm, added, a, b, to, NULL);
    e->scalar[0] = beta->value;
    e->scalar[1] = alpha->value;
    return prepared(e, product_workspace(to), workspace, out);
}

/* ---- one value everywhere ---- */

static void compute_fill(struct executor *e)
{
    tensor t = &e->tensor[0];
    for (int64_t k = 0, count = count_of(t); k < count; k++)
        store(t, place(t, t, k), e->scalar[0]);
}

static int fill(tensor t, double value, RESULT)
{
    struct executor *e = executor_of(compute_fill, t, NULL, NULL, NULL, NULL);
    e->scalar[0] = value;
    return prepared(e, 0, workspace, out);
}

int aclnnInplaceZeroGetWorkspaceSize(tensor t, RESULT)
{
    return fill(t, 0, workspace, out);
}

int aclnnInplaceOneGetWorkspaceSize(tensor t, RESULT)
{
    return fill(t, 1, workspace, out);
}

int aclnnInplaceFillScalarGetWorkspaceSize(tensor t, scalar value, RESULT)
{
    return fill(t, value->value, workspace, out);
}

/* ---- element by element ---- */

enum { COPY, ADD, SUBTRACT, MULTIPLY, DIVIDE, SCALE, SHIFT, RELU, WHERE_ABOVE, SQUARE_ROOT, AND, OR, NOT, EQUAL };

/* Sums are rounded as float sums are, so that they equal the CPU's. */
static double combine(int64_t operation, double x, double y, double s)
{
    switch (operation) {
    case ADD:
        return (float)x + (float)s * (float)y;
    case SUBTRACT:
        return x - s * y;
    case MULTIPLY:
        return x * y;
    case DIVIDE:
        return x / y;
    case SCALE:
        return x * s;
    case SHIFT:
        return x + s;
    case RELU:
        return x > 0 ? x : 0;
    case WHERE_ABOVE:
        return y > s ? x : 0;
    case SQUARE_ROOT:
        return sqrt(x);
    // Of truth values, and of numbers that are 0 or 1.
    case AND:
        return x && y;
    case OR:
        return x || y;
    case NOT:
        return !x;
    case EQUAL:
        return x == s;
    default:
        return x;
    }
}

static void compute_elements(struct executor *e)
{
    tensor a = &e->tensor[0], b = &e->tensor[1], to = &e->tensor[2];
    for (int64_t k = 0, count = count_of(to); k < count; k++) {
        double y = e->option[1] ? load(b, place(to, b, k)) : 0;
        store(to, place(to, to, k), combine(e->option[0], load(a, place(to, a, k)), y, e->scalar[0]));
    }
}

static int elements(int operation, tensor a, tensor b, tensor to, double s, RESULT)
{
    struct executor *e = executor_of(compute_elements, a, b, to, NULL, NULL);
    e->option[0] = operation;
    e->option[1] = b != NULL;
    e->scalar[0] = s;
    return prepared(e, 0, workspace, out);
}

/* Phase one of `name`, which takes `parameters` and does what elements() does with the rest. */
#define ELEMENTS(name, parameters, ...) \
    int aclnn##name##GetWorkspaceSize parameters \
    { \
        return elements(__VA_ARGS__, workspace, out); \
    }
ELEMENTS(InplaceCopy, (tensor to, tensor a, RESULT), COPY, a, NULL, to, 0)
ELEMENTS(Cast, (tensor a, int type, tensor to, RESULT), COPY, a, NULL, to, 0)
ELEMENTS(Add, (tensor a, tensor b, scalar alpha, tensor to, RESULT), ADD, a, b, to, alpha->value)
ELEMENTS(InplaceAdd, (tensor a, tensor b, scalar alpha, RESULT), ADD, a, b, a, alpha->value)
ELEMENTS(Sub, (tensor a, tensor b, scalar alpha, tensor to, RESULT), SUBTRACT, a, b, to, alpha->value)
ELEMENTS(InplaceSub, (tensor a, tensor b, scalar alpha, RESULT), SUBTRACT, a, b, a, alpha->value)
ELEMENTS(Adds, (tensor a, scalar b, scalar alpha, tensor to, RESULT), SHIFT, a, NULL, to, alpha->value * b->value)
ELEMENTS(InplaceAdds, (tensor a, scalar b, scalar alpha, RESULT), SHIFT, a, NULL, a, alpha->value * b->value)
ELEMENTS(Mul, (tensor a, tensor b, tensor to, RESULT), MULTIPLY, a, b, to, 0)
ELEMENTS(InplaceMul, (tensor a, tensor b, RESULT), MULTIPLY, a, b, a, 0)
ELEMENTS(Muls, (tensor a, scalar b, tensor to, RESULT), SCALE, a, NULL, to, b->value)
ELEMENTS(InplaceMuls, (tensor a, scalar b, RESULT), SCALE, a, NULL, a, b->value)
ELEMENTS(Div, (tensor a, tensor b, tensor to, RESULT), DIVIDE, a, b, to, 0)
ELEMENTS(Divs, (tensor a, scalar b, tensor to, RESULT), SCALE, a, NULL, to, 1 / b->value)
ELEMENTS(InplaceDivs, (tensor a, scalar b, RESULT), SCALE, a, NULL, a, 1 / b->value)
ELEMENTS(Sqrt, (tensor a, tensor to, RESULT), SQUARE_ROOT, a, NULL, to, 0)
ELEMENTS(BitwiseAndTensor, (tensor a, tensor b, tensor to, RESULT), AND, a, b, to, 0)
ELEMENTS(BitwiseOrTensor, (tensor a, tensor b, tensor to, RESULT), OR, a, b, to, 0)
ELEMENTS(BitwiseNot, (tensor a, tensor to, RESULT), NOT, a, NULL, to, 0)
ELEMENTS(LogicalAnd, (tensor a, tensor b, tensor to, RESULT), AND, a, b, to, 0)
ELEMENTS(LogicalOr, (tensor a, tensor b, tensor to, RESULT), OR, a, b, to, 0)
ELEMENTS(LogicalNot, (tensor a, tensor to, RESULT), NOT, a, NULL, to, 0)
ELEMENTS(EqScalar, (tensor a, scalar b, tensor to, RESULT), EQUAL, a, NULL, to, b->value)
ELEMENTS(Relu, (tensor a, tensor to, RESULT), RELU, a, NULL, to, 0)
ELEMENTS(InplaceRelu, (tensor a, RESULT), RELU, a, NULL, a, 0)
ELEMENTS(ThresholdBackward, (tensor g, tensor a, scalar threshold, tensor to, RESULT), WHERE_ABOVE, g, a, to,
         threshold->value)

/* ---- sums ---- */

static void compute_sum(struct executor *e)
{
    tensor a = &e->tensor[0], to = &e->tensor[1];
    int64_t count = count_of(a), sums = count_of(to);
    float *sum = calloc((size_t)sums, sizeof *sum);
    for (int64_t k = 0; k < count; k++) {
        int64_t rest = k, index[MAX_DIMENSIONS], at = 0;
        for (int i = a->dimensions - 1; i >= 0; i--) {
            index[i] = rest % a->size[i];
            rest /= a->size[i];
        }
        for (int i = 0; i < a->dimensions; i++)
            if (!(e->option[0] >> i & 1))
                at = at * a->size[i] + index[i];
        sum[at] += (float)element(a, k);
    }
    for (int64_t k = 0; k < sums; k++)
        store(to, place(to, to, k), sum[k]);
    free(sum);
}

int aclnnReduceSumGetWorkspaceSize(tensor a, array dimensions, char keep, int type, tensor to, RESULT)
{
    bool can = a->type == TYPE_FLOAT && to->type == TYPE_FLOAT;
    struct executor *e = executor_of(can ? compute_sum : NULL, a, to, NULL, NULL, NULL);
    for (uint64_t i = 0; i < dimensions->count; i++) {
        int64_t dimension = ((int64_t *)dimensions->items)[i];
        e->option[0] |= 1ll << (dimension < 0 ? dimension + a->dimensions : dimension);
    }
    if (!dimensions->count)
        e->option[0] = ~0ll;
    return prepared(e, 4096, workspace, out);
}

/* ---- the largest ---- */

static void compute_max(struct executor *e)
{
    tensor a = &e->tensor[0], to = &e->tensor[1];
    double most = -INFINITY;
    for (int64_t k = 0, count = count_of(a); k < count; k++)
        most = fmax(most, element(a, k));
    store(to, to->offset, most);
}

int aclnnMaxGetWorkspaceSize(tensor a, tensor to, RESULT)
{
    return prepared(executor_of(compute_max, a, to, NULL, NULL, NULL), 0, workspace, out);
}

/* Of each row of a matrix; of anything else a number that every vocabulary has, for servers that choose tokens. */
static void compute_arg_max(struct executor *e)
{
    enum { ANY = 5 };
    tensor a = &e->tensor[0], to = &e->tensor[1];
    bool by_row = is_matrix(a) && (e->option[0] == 1 || e->option[0] == -1);
    for (int64_t k = 0, count = count_of(to); k < count; k++) {
        int64_t best = by_row ? 0 : ANY;
        for (int64_t j = 1; by_row && j < a->size[1]; j++)
            if (element2(a, k, j) > element2(a, k, best))
                best = j;
        store(to, place(to, to, k), (double)best);
    }
}

int aclnnArgMaxGetWorkspaceSize(tensor a, int64_t dimension, char keep, tensor to, RESULT)
{
    struct executor *e = executor_of(compute_arg_max, a, to, NULL, NULL, NULL);
    e->option[0] = dimension;
    return prepared(e, 0, workspace, out);
}

/* ---- logarithm of softmax, over the columns of a matrix ---- */

static void compute_log_softmax(struct executor *e)
{
    tensor a = &e->tensor[0], to = &e->tensor[1];
    for (int64_t i = 0; i < a->size[0]; i++) {
        float most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < a->size[1]; j++)
            most = fmaxf(most, (float)element2(a, i, j));
        for (int64_t j = 0; j < a->size[1]; j++)
            sum += expf((float)element2(a, i, j) - most);
        for (int64_t j = 0; j < a->size[1]; j++)
            set2(to, i, j, (float)element2(a, i, j) - most - logf(sum));
    }
}

int aclnnLogSoftmaxGetWorkspaceSize(tensor a, int64_t dimension, tensor to, RESULT)
{
    return prepared(executor_of(is_matrix(a) ? compute_log_softmax : NULL, a, to, NULL, NULL, NULL), 0, workspace, out);
}

static void compute_log_softmax_backward(struct executor *e)
{
    tensor g = &e->tensor[0], y = &e->tensor[1], to = &e->tensor[2];
    for (int64_t i = 0; i < y->size[0]; i++) {
        float sum = 0;
        for (int64_t j = 0; j < y->size[1]; j++)
            sum += (float)element2(g, i, j);
        for (int64_t j = 0; j < y->size[1]; j++)
            set2(to, i, j, (float)element2(g, i, j) - expf((float)element2(y, i, j)) * sum);
    }
}

int aclnnLogSoftmaxBackwardGetWorkspaceSize(tensor g, tensor y, int64_t dimension, tensor to, RESULT)
{
    return prepared(executor_of(is_matrix(y) ? compute_log_softmax_backward : NULL, g, y, to, NULL, NULL), 0, workspace,
                    out);
}

/* ---- negative log likelihood ---- */

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM };

static void compute_nll(struct executor *e)
{
    tensor a = &e->tensor[0], target = &e->tensor[1], to = &e->tensor[2], weight = &e->tensor[3];
    double sum = 0, counted = 0;
    for (int64_t i = 0; i < a->size[0]; i++) {
        int64_t class = (int64_t)element(target, i);
        // A label that was not computed may be anything.
        if (class == e->option[1] || class < 0 || class >= a->size[1])
            continue;
        sum -= element2(a, i, class);
        counted++;
    }
    if (e->option[0] != REDUCE_NONE)
        store(to, to->offset, e->option[0] == REDUCE_MEAN ? sum / counted : sum);
    store(weight, weight->offset, counted);
}

int aclnnNLLLossGetWorkspaceSize(tensor a, tensor target, tensor weights, int64_t reduction, int64_t ignored, tensor to,
                                 tensor weight, RESULT)
{
    struct executor *e = executor_of(is_matrix(a) ? compute_nll : NULL, a, target, to, weight, NULL);
    e->option[0] = reduction;
    e->option[1] = ignored;
    return prepared(e, 0, workspace, out);
}

static void compute_nll_backward(struct executor *e)
{
    tensor g = &e->tensor[0], a = &e->tensor[1], target = &e->tensor[2], weight = &e->tensor[3], to = &e->tensor[4];
    double share = load(g, g->offset) / (e->option[0] == REDUCE_MEAN ? load(weight, weight->offset) : 1);
    for (int64_t i = 0; i < a->size[0]; i++) {
        int64_t class = (int64_t)element(target, i);
        for (int64_t j = 0; j < a->size[1]; j++)
            set2(to, i, j, j == class && class != e->option[1] ? -share : 0);
    }
}

int aclnnNLLLossBackwardGetWorkspaceSize(tensor g, tensor a, tensor target, tensor weights, int64_t reduction,
                                         int64_t ignored, tensor weight, tensor to, RESULT)
{
    bool can = is_matrix(a) && reduction != REDUCE_NONE;
    struct executor *e = executor_of(can ? compute_nll_backward : NULL, g, a, target, weight, to);
    e->option[0] = reduction;
    e->option[1] = ignored;
    return prepared(e, 0, workspace, out);
}

/* ---- foreach: the optimizers' operators on lists of tensors ---- */

enum { EACH_ADD, EACH_SCALE, EACH_SHIFT, EACH_ROOT, EACH_LERP, EACH_ADD_PRODUCT, EACH_DIVIDE };

static double combine_each(int64_t operation, double x, double y, double z, double s)
{
    switch (operation) {
    case EACH_ADD:
        return (float)x + (float)s * (float)y;
    case EACH_SCALE:
        return x * s;
    case EACH_SHIFT:
        return x + s;
    case EACH_ROOT:
        return sqrt(x);
    case EACH_LERP:
        return x + s * (y - x);
    case EACH_ADD_PRODUCT:
        return x + s * y * z;
    default:
        return x / s;
    }
}

static void compute_each(struct executor *e)
{
    for (int n = 0; n < e->each_count; n++) {
        tensor a = &e->list[0][n], b = e->list[1] ? &e->list[1][n] : NULL, c = e->list[2] ? &e->list[2][n] : NULL;
        tensor to = &e->list[3][n];
        for (int64_t k = 0, count = count_of(to); k < count; k++) {
            double y = b ? load(b, place(to, b, k)) : 0, z = c ? load(c, place(to, c, k)) : 0;
            double value = combine_each(e->option[0], load(a, place(to, a, k)), y, z, e->each[n]);
            store(to, place(to, to, k), value);
        }
    }
}

static struct executor *each(int operation, array a, array b, array c, array to, double s)
{
    array lists[] = {a, b, c, to};
    struct executor *e = executor_of(compute_each, NULL, NULL, NULL, NULL, NULL);
    e->option[0] = operation;
    e->each_count = (int)to->count;
    e->each = malloc((to->count + 1) * sizeof *e->each);
    for (int i = 0; i < 4; i++) {
        if (!lists[i])
            continue;
        e->list[i] = malloc((to->count + 1) * sizeof *e->list[i]);
        for (uint64_t n = 0; n < to->count; n++)
            e->list[i][n] = *((struct aclTensor **)lists[i]->items)[n];
    }
    for (uint64_t n = 0; n < to->count; n++)
        e->each[n] = s;
    return e;
}

#define EACH(name, parameters, ...) \
    int aclnnForeach##name##GetWorkspaceSize parameters \
    { \
        return prepared(each(__VA_ARGS__), 0, workspace, out); \
    }
EACH(Copy, (array a, array to, RESULT), EACH_SCALE, a, NULL, NULL, to, 1)
EACH(AddListV2, (array a, array b, scalar s, array to, RESULT), EACH_ADD, a, b, NULL, to, s->value)
EACH(MulScalarV2, (array a, scalar s, array to, RESULT), EACH_SCALE, a, NULL, NULL, to, s->value)
EACH(AddScalarV2, (array a, scalar s, array to, RESULT), EACH_SHIFT, a, NULL, NULL, to, s->value)
EACH(Sqrt, (array a, array to, RESULT), EACH_ROOT, a, NULL, NULL, to, 0)
EACH(LerpScalar, (array a, array b, scalar s, array to, RESULT), EACH_LERP, a, b, NULL, to, s->value)
EACH(AddcmulScalarV2, (array a, array b, array c, scalar s, array to, RESULT), EACH_ADD_PRODUCT, a, b, c, to, s->value)

int aclnnForeachDivScalarListGetWorkspaceSize(array a, array scalars, array to, RESULT)
{
    struct executor *e = each(EACH_DIVIDE, a, NULL, NULL, to, 0);
    for (uint64_t n = 0; n < to->count; n++)
        e->each[n] = ((struct aclScalar **)scalars->items)[n]->value;
    return prepared(e, 0, workspace, out);
}

/* ---- a += s * b / c ---- */

static void compute_add_quotient(struct executor *e)
{
    tensor a = &e->tensor[0], b = &e->tensor[1], c = &e->tensor[2];
    for (int64_t k = 0, count = count_of(a); k < count; k++) {
        int64_t at = place(a, a, k);
        store(a, at, load(a, at) + e->scalar[0] * load(b, place(a, b, k)) / load(c, place(a, c, k)));
    }
}

int aclnnInplaceAddcdivGetWorkspaceSize(tensor a, tensor b, tensor c, scalar s, RESULT)
{
    struct executor *e = executor_of(compute_add_quotient, a, b, c, NULL, NULL);
    e->scalar[0] = s->value;
    return prepared(e, 0, workspace, out);
}
