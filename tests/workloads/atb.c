/* Operations of ATB in one of its two C++ ABIs, some inside of others, some of which throw.
 *   atb [--abi 0] [--rounds 50] [--throw-every 4] [--device 1] */
#define _GNU_SOURCE
#include "common.h"
#include "atb/simatb.h"
#include <dlfcn.h>

static simatb_run_func *load(uint64_t abi)
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

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 50);
    uint64_t throw_every = option(argc, argv, "--throw-every", 4);
    int32_t device = (int32_t)option(argc, argv, "--device", 1);
    simatb_run_func *run = load(option(argc, argv, "--abi", 0));
    uint64_t thrown = 0;
    acl_begin(device);
    char *workspace = device_alloc(MIB);
    for (uint64_t i = 0; i < rounds; i++) {
        int throws = throw_every && i % throw_every == 0;
        CHECK(run("LinearOperation", NULL, NULL, 0, 0, 0));
        EXPECT(run("a graph, with more than fifteen characters", "SelfAttentionOperation", workspace, 4096 + 2 * i, 512,
                   throws), throws);
        thrown += (uint64_t)throws;
    }
    report("begun", 3 * rounds, "ended", 3 * rounds - 2 * thrown, NULL);
    CHECK(aclrtFree(workspace));
    acl_end(device);
    return 0;
}
