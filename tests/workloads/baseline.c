/* pairs without any allocation: two calls of an empty function instead.
 *   baseline [--pairs 100000] */
#include "common.h"

__attribute__((noinline)) static void empty(void)
{
    __asm__ volatile("");
}

int main(int argc, char **argv)
{
    struct timespec start, end;
    uint64_t pairs = option(argc, argv, "--pairs", 100000);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t i = 0; i < pairs; i++) {
        empty();
        empty();
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t ns = (uint64_t)((end.tv_sec - start.tv_sec) * 1000000000ll + (end.tv_nsec - start.tv_nsec));
    report("allocs", (uint64_t)0, "frees", (uint64_t)0, "ns", ns, NULL);
    return 0;
}
