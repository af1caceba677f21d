/* libopapi.so: operators that training over parts of a model uses to look at its numbers: norms, comparisons, choices. */
#include "elements.h"
#include <math.h>

/* ---- element by element: of one tensor or two, and a scalar ---- */

enum { ABSOLUTE, INVERSE, POWER, IS_FINITE, LESS, MORE, OTHER, SMALLER, LIMIT };

static double checked(int64_t operation, double x, double y, const double *s)
{
    switch (operation) {
    case ABSOLUTE:
        return fabs(x);
    case INVERSE:
        return 1 / x;
    case POWER:
        return pow(x, s[0]);
    case IS_FINITE:
        return isfinite(x);
    case LESS:
        return x < s[0];
    case MORE:
        return x > s[0];
    case OTHER:
        return x != y;
    case SMALLER:
        return x < y || isnan(x) ? x : y;
    default:
        return isnan(x) ? x : fmin(fmax(x, s[0]), s[1]);
    }
}

static void compute_checks(struct executor *e)
{
    tensor a = &e->tensor[0], b = &e->tensor[1], to = &e->tensor[2];
    for (int64_t k = 0, count = count_of(to); k < count; k++) {
        double y = e->option[1] ? load(b, place(to, b, k)) : e->scalar[0];
        store(to, place(to, to, k), checked(e->option[0], load(a, place(to, a, k)), y, e->scalar));
    }
}

static int check(int operation, tensor a, tensor b, double first, double second, tensor to, RESULT)
{
    struct executor *e = executor_of(compute_checks, a, b, to, NULL, NULL);
    e->option[0] = operation;
    e->option[1] = b != NULL;
    e->scalar[0] = first;
    e->scalar[1] = second;
    return prepared(e, 0, workspace, out);
}

/* Phase one of `name`, which takes `parameters` and does what check() does with the rest. */
#define CHECK(name, parameters, ...) \
    int aclnn##name##GetWorkspaceSize parameters \
    { \
        return check(__VA_ARGS__, to, workspace, out); \
    }
CHECK(Abs, (tensor a, tensor to, RESULT), ABSOLUTE, a, NULL, 0, 0)
CHECK(Reciprocal, (tensor a, tensor to, RESULT), INVERSE, a, NULL, 0, 0)
CHECK(PowTensorScalar, (tensor a, scalar s, tensor to, RESULT), POWER, a, NULL, s->value, 0)
CHECK(IsFinite, (tensor a, tensor to, RESULT), IS_FINITE, a, NULL, 0, 0)
CHECK(LtScalar, (tensor a, scalar s, tensor to, RESULT), LESS, a, NULL, s->value, 0)
CHECK(GtScalar, (tensor a, scalar s, tensor to, RESULT), MORE, a, NULL, s->value, 0)
CHECK(NeScalar, (tensor a, scalar s, tensor to, RESULT), OTHER, a, NULL, s->value, 0)
CHECK(NeTensor, (tensor a, tensor b, tensor to, RESULT), OTHER, a, b, 0, 0)
CHECK(Minimum, (tensor a, tensor b, tensor to, RESULT), SMALLER, a, b, 0, 0)
/* Either limit may be missing. */
CHECK(Clamp, (tensor a, scalar least, scalar most, tensor to, RESULT), LIMIT, a, NULL,
      least ? least->value : -INFINITY, most ? most->value : INFINITY)

/* ---- one or the other ---- */

static void compute_choice(struct executor *e)
{
    tensor which = &e->tensor[0], a = &e->tensor[1], b = &e->tensor[2], to = &e->tensor[3];
    for (int64_t k = 0, count = count_of(to); k < count; k++) {
        tensor from = load(which, place(to, which, k)) != 0 ? a : b;
        store(to, place(to, to, k), load(from, place(to, from, k)));
    }
}

int aclnnSWhereGetWorkspaceSize(tensor which, tensor a, tensor b, tensor to, RESULT)
{
    return prepared(executor_of(compute_choice, which, a, b, to, NULL), 0, workspace, out);
}

int aclnnInplaceMaskedFillTensorGetWorkspaceSize(tensor to, tensor which, tensor value, RESULT)
{
    return prepared(executor_of(compute_choice, which, value, to, to, NULL), 0, workspace, out);
}

/* ---- all of them in one number ---- */

static void compute_norm(struct executor *e)
{
    tensor a = &e->tensor[0], to = &e->tensor[1];
    double order = e->scalar[0], norm = 0;
    for (int64_t k = 0, count = count_of(a); k < count; k++) {
        double size = fabs(element(a, k));
        norm = isinf(order) ? fmax(norm, size) : norm + pow(size, order);
    }
    store(to, to->offset, isinf(order) ? norm : pow(norm, 1 / order));
}

/* Of all dimensions: sums over some of them are not computed. */
int aclnnLinalgVectorNormGetWorkspaceSize(tensor a, scalar order, array dimensions, char keep, int type, tensor to,
                                          RESULT)
{
    struct executor *e = executor_of(count_of(to) == 1 ? compute_norm : NULL, a, to, NULL, NULL, NULL);
    e->scalar[0] = order->value;
    return prepared(e, 0, workspace, out);
}

static void compute_any(struct executor *e)
{
    tensor a = &e->tensor[0], to = &e->tensor[1];
    bool any = false;
    for (int64_t k = 0, count = count_of(a); k < count && !any; k++)
        any = element(a, k) != 0;
    store(to, to->offset, any);
}

int aclnnAnyGetWorkspaceSize(tensor a, array dimensions, char keep, tensor to, RESULT)
{
    return prepared(executor_of(count_of(to) == 1 ? compute_any : NULL, a, to, NULL, NULL, NULL), 0, workspace, out);
}
