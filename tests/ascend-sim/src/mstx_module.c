/* mstx.so: the Python module, a user of mstx's headers alone. Its functions have names that only Python knows. */
#include "mstx.c"
#include "mstx/module.h"

static char message_name[] = "message", stream_name[] = "stream", id_name[] = "id";
static char *names[] = {message_name, stream_name, NULL};
static char *id_names[] = {id_name, NULL};

/* Inlined or not: both forms occur. */
static void parse(Object *args, Object *keywords, const char **message, void **stream)
{
    *message = NULL;
    *stream = NULL;
    PyArg_ParseTupleAndKeywords(args, keywords, "|sO", names, message, stream);
}

static Object *mark(Object *self, Object *args, Object *keywords)
{
    const char *message;
    void *stream;
    parse(args, keywords, &message, &stream);
    void *state = PyEval_SaveThread();
    mstxMarkA(message, stream);
    PyEval_RestoreThread(state);
    return self;
}

static Object *range_start(Object *self, Object *args, Object *keywords)
{
    const char *message;
    void *stream;
    (void)self;
    parse(args, keywords, &message, &stream);
    void *state = PyEval_SaveThread();
    mstxRangeId id = mstxRangeStartA(message, stream);
    PyEval_RestoreThread(state);
    return PyLong_FromUnsignedLongLong(id);
}

static Object *range_end(Object *self, Object *args, Object *keywords)
{
    mstxRangeId id = 0;
    PyArg_ParseTupleAndKeywords(args, keywords, "K", id_names, &id);
    void *state = PyEval_SaveThread();
    mstxRangeEnd(id);
    PyEval_RestoreThread(state);
    return self;
}

static MethodEntry methods[] = {
    {"range_start", range_start, METH_VARARGS_AND_KEYWORDS, "mark start"},
    {"range_end", range_end, METH_VARARGS_AND_KEYWORDS, "mark end"},
    {"mark", mark, METH_VARARGS_AND_KEYWORDS, "mark a position"},
    {NULL, NULL, 0, NULL},
};

SIM_API MethodEntry *PyInit_mstx(void);
MethodEntry *PyInit_mstx(void)
{
    return methods;
}
