/* A child has the number of one that has just ended: the kernel reports the end of the first a little later.
 *   samenumber [--pairs 10] [--blocks 20] [--size 65536]
 * Every child opens the device, and makes and frees N blocks, a millisecond apart. Numbers are chosen by ns_last_pid, as
 * root; `reused` counts the children that got the number before them. */
#include "common.h"
#include <sys/wait.h>

static uint64_t blocks, size;

static void allocate(void)
{
    CHECK(aclrtSetDevice(0));
    for (uint64_t i = 0; i < blocks; i++) {
        void *block = device_alloc(size);
        sleep_ms(1);
        CHECK(aclrtFree(block));
    }
}

static pid_t run_child(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        allocate();
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
        fprintf(stderr, "a child failed\n");
        exit(1);
    }
    return pid;
}

/* The next process gets this number, if nobody takes it before. */
static void choose_number(pid_t pid)
{
    FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
    if (!last || fprintf(last, "%d", (int)pid - 1) < 0 || fclose(last)) {
        perror("ns_last_pid");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    uint64_t pairs = option(argc, argv, "--pairs", 10), reused = 0;
    blocks = option(argc, argv, "--blocks", 20);
    size = option(argc, argv, "--size", 64 * KIB);
    for (uint64_t i = 0; i < pairs; i++) {
        pid_t first = run_child();
        choose_number(first);
        reused += run_child() == first;
    }
    report("processes", 2 * pairs, "allocs", 2 * pairs * blocks, "frees", 2 * pairs * blocks, "reused", reused, NULL);
    return 0;
}
