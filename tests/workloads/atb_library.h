/* The simulated libatb.so, which no workload is linked against: there is one for each C++ ABI. Needs _GNU_SOURCE. */
#ifndef ATB_LIBRARY_H
#define ATB_LIBRARY_H
#include "common.h"
#include "atb/simatb.h"
#include <dlfcn.h>

/* What runs operations, of the library in this ABI beside the other simulated ones. */
static simatb_run_func *load_atb(uint64_t abi)
{
    Dl_info info;
    char path[4096];
    if (!dladdr((void *)aclInit, &info))
        usage_error("no folder of", "aclInit");
    const char *end = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/cxx_abi_%llu/libatb.so", (int)(end - info.dli_fname), info.dli_fname,
             (unsigned long long)abi);
    void *library = dlopen(path, RTLD_NOW);
    simatb_run_func *run = library ? (simatb_run_func *)dlsym(library, "simatb_run") : NULL;
    if (!run)
        usage_error("cannot load", path);
    return run;
}
#endif
