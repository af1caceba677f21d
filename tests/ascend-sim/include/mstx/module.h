/* The Python module `mstx` and as much of an interpreter as it needs: shapes of CPython, not its code. */
#ifndef MSTX_MODULE_H
#define MSTX_MODULE_H

typedef struct object Object;
typedef Object *(*Method)(Object *self, Object *args, Object *keywords);

/* PyMethodDef */
typedef struct {
    const char *name;
    Method function;
    int flags;
    const char *text;
} MethodEntry;
#define METH_VARARGS_AND_KEYWORDS 3

/* The interpreter has these. */
int PyArg_ParseTupleAndKeywords(Object *args, Object *keywords, const char *format, char **names, ...);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);
/* The real module returns a number as an object. */
Object *PyLong_FromUnsignedLongLong(unsigned long long value);

/* Instead of a module object. */
typedef MethodEntry *(*ModuleInit)(void);
#endif
