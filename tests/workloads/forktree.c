/* Processes that allocate and fork, without an exec in between.
 *   forktree [--children 2] [--depth 2] [--blocks 10] [--size 65536] [--leak] [--exec PROGRAM]
 * Every process opens the device, makes N blocks and frees them; then it forks its children, `depth` levels deep.
 * --leak: nothing is freed.  --exec: then the first process becomes PROGRAM, with the same pid. */
#include "common.h"
#include <sys/wait.h>

static uint64_t children, blocks, size;
static bool leak;

static void allocate(void)
{
    void **list = calloc(blocks, sizeof *list);
    CHECK(aclrtSetDevice(0));
    for (uint64_t i = 0; i < blocks; i++)
        list[i] = device_alloc(size);
    for (uint64_t i = 0; i < blocks && !leak; i++)
        CHECK(aclrtFree(list[i]));
    free(list);
}

static void grow(uint64_t depth);

static void fork_child(uint64_t depth)
{
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0) {
        grow(depth);
        _exit(0);
    }
}

static void wait_for_child(void)
{
    int status;
    if (wait(&status) < 0 || status) {
        fprintf(stderr, "a child failed\n");
        exit(1);
    }
}

static void grow(uint64_t depth)
{
    allocate();
    if (!depth)
        return;
    for (uint64_t i = 0; i < children; i++)
        fork_child(depth - 1);
    for (uint64_t i = 0; i < children; i++)
        wait_for_child();
}

static uint64_t processes(uint64_t depth)
{
    return depth ? 1 + children * processes(depth - 1) : 1;
}

int main(int argc, char **argv)
{
    uint64_t depth = option(argc, argv, "--depth", 2);
    const char *program = option_text(argc, argv, "--exec");
    children = option(argc, argv, "--children", 2);
    blocks = option(argc, argv, "--blocks", 10);
    size = option(argc, argv, "--size", 64 * KIB);
    leak = option_flag(argc, argv, "--leak");
    grow(depth);
    uint64_t count = processes(depth);
    report("processes", count, "allocs", count * blocks, "frees", leak ? 0 : count * blocks, NULL);
    if (program) {
        execlp(program, program, (char *)NULL);
        perror(program);
        return 1;
    }
    return 0;
}
