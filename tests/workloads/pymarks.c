/* Marks and ranges as Python makes them, through the module `mstx`.
 *   pymarks --module PATH [--rounds 5]
 * In each round a mark and a range for each text, nested. */
#include "common.h"
#include "mstx/module.h"
#include <dlfcn.h>

/* What is passed from Python. */
struct object {
    const char *text;
    unsigned long long number;
};

static const char *const texts[] = {"step start", "plain", "", "unicode \xe6\x98\x87\xe8\x85\xbe", "a, \"b\"\nc", NULL};
#define TEXTS (sizeof texts / sizeof texts[0])

__attribute__((visibility("default"))) int PyArg_ParseTupleAndKeywords(Object *args, Object *keywords, const char *format,
                                                                     char **names, ...)
{
    va_list list;
    (void)keywords;
    (void)names;
    va_start(list, names);
    if (format[0] == 'K')
        *va_arg(list, unsigned long long *) = args->number;
    else
        *va_arg(list, const char **) = args->text;
    va_end(list);
    return 1;
}

__attribute__((visibility("default"))) void *PyEval_SaveThread(void)
{
    return NULL;
}

__attribute__((visibility("default"))) void PyEval_RestoreThread(void *state)
{
    (void)state;
}

__attribute__((visibility("default"))) Object *PyLong_FromUnsignedLongLong(unsigned long long value)
{
    Object *number = calloc(1, sizeof *number);
    number->number = value;
    return number;
}

static Method find(const MethodEntry *entries, const char *name)
{
    while (strcmp(entries->name, name))
        entries++;
    return entries->function;
}

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 5);
    const char *path = option_text(argc, argv, "--module");
    void *module = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!module)
        usage_error("no module:", path ? dlerror() : "--module");
    const MethodEntry *entries = ((ModuleInit)dlsym(module, "PyInit_mstx"))();
    Method mark = find(entries, "mark"), start = find(entries, "range_start"), end = find(entries, "range_end");
    acl_begin(0);
    for (uint64_t round = 0; round < rounds; round++) {
        Object *ids[TEXTS];
        for (size_t i = 0; i < TEXTS; i++) {
            Object text = {texts[i], 0};
            mark(NULL, &text, NULL);
            ids[i] = start(NULL, &text, NULL);
        }
        for (size_t i = TEXTS; i-- > 0;) {
            end(NULL, ids[i], NULL);
            free(ids[i]);
        }
    }
    acl_end(0);
    report("marks", rounds * TEXTS, "ranges", rounds * TEXTS, NULL);
    return 0;
}
