/* Loads libascendcl.so after the start and allocates at once.
 *   latedl [--delay-ms 200] [--generations 0] [--blocks 10] [--leak] [--library libascendcl.so]
 * --generations: 2 makes a child of a child do it. */
#include "common.h"
#include <dlfcn.h>
#include <sys/wait.h>

static struct {
    aclError (*set_device)(int32_t);
    aclError (*alloc)(void **, size_t, aclrtMemMallocPolicy);
    aclError (*free)(void *);
} acl;

static void *symbol(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return address;
}

static void load(const char *name)
{
    void *library = dlopen(name ? name : "libascendcl.so", RTLD_NOW | RTLD_LOCAL);
    *(void **)&acl.set_device = symbol(library, "aclrtSetDevice");
    *(void **)&acl.alloc = symbol(library, "aclrtMalloc");
    *(void **)&acl.free = symbol(library, "aclrtFree");
}

static void allocate(uint64_t blocks, bool leak)
{
    void **list = calloc(blocks, sizeof *list);
    CHECK(acl.set_device(0));
    for (uint64_t i = 0; i < blocks; i++)
        CHECK(acl.alloc(&list[i], 64 * KIB, ACL_MEM_MALLOC_HUGE_FIRST));
    for (uint64_t i = 0; i < blocks && !leak; i++)
        CHECK(acl.free(list[i]));
    free(list);
}

/* Only the last generation comes back. */
static void descend(uint64_t generations)
{
    while (generations--) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            continue;
        if (pid < 0 || waitpid(pid, &status, 0) < 0)
            exit(1);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
}

int main(int argc, char **argv)
{
    uint64_t delay = option(argc, argv, "--delay-ms", 200);
    uint64_t generations = option(argc, argv, "--generations", 0);
    uint64_t blocks = option(argc, argv, "--blocks", 10);
    bool leak = option_flag(argc, argv, "--leak");
    descend(generations);
    sleep_ms(delay);
    load(option_text(argc, argv, "--library"));
    allocate(blocks, leak);
    report("allocs", blocks, "frees", leak ? (uint64_t)0 : blocks, NULL);
    return 0;
}
