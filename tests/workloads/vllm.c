/* A server with vLLM's allocator that sleeps and wakes. Prints `alloc ADDRESS SIZE` and `free ADDRESS`.
 *   vllm [--blocks 10] [--size 3000000] */
#include "common.h"
#include <dlfcn.h>
#include <sys/types.h>

int main(int argc, char **argv)
{
    uint64_t count = option(argc, argv, "--blocks", 10), size = option(argc, argv, "--size", 3000000);
    void *library = dlopen("vllm_ascend_C.cpython-311-sim.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *(*take)(ssize_t, int, void *);
    void (*give)(void *, ssize_t, int, void *);
    void (*go_to_sleep)(void);
    void (*wake)(int);
    *(void **)&take = dlsym(library, "my_malloc");
    *(void **)&give = dlsym(library, "my_free");
    *(void **)&go_to_sleep = dlsym(library, "sim_sleep");
    *(void **)&wake = dlsym(library, "sim_wake");
    void **blocks = calloc(count, sizeof *blocks);
    acl_begin(1);
    for (uint64_t i = 0; i < count; i++) {
        blocks[i] = take((ssize_t)(size + i), 1, NULL);
        printf("alloc %#llx %llu\n", (unsigned long long)(uintptr_t)blocks[i], (unsigned long long)(size + i));
    }
    go_to_sleep();
    wake(1);
    for (uint64_t i = 0; i < count; i += 2) {
        printf("free %#llx\n", (unsigned long long)(uintptr_t)blocks[i]);
        give(blocks[i], (ssize_t)(size + i), 1, NULL);
    }
    acl_end(1);
    report("blocks", count, NULL);
    return 0;
}
