/* The simulated libatb.so, which no workload is linked against: there is one for each C++ ABI. Needs _GNU_SOURCE. */
#ifndef ATB_LIBRARY_H
#define ATB_LIBRARY_H
#include "common.h"
#include "atb/simatb.h"
#include <dlfcn.h>

/* A library beside the other simulated ones, by its path from there. */
static inline void *load_beside(const char *name)
{
    Dl_info info;
    char path[4096];
    if (!dladdr((void *)aclInit, &info))
        usage_error("no folder of", "aclInit");
    const char *end = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/%s", (int)(end - info.dli_fname), info.dli_fname, name);
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        usage_error("cannot load", path);
    return library;
}

/* What runs operations, of the library in this ABI. */
static simatb_run_func *load_atb(uint64_t abi)
{
    void *library = load_beside(abi ? "cxx_abi_1/libatb.so" : "cxx_abi_0/libatb.so");
    simatb_run_func *run = (simatb_run_func *)dlsym(library, "simatb_run");
    if (!run)
        usage_error("no function", "simatb_run");
    return run;
}
#endif
