/* A server of torch_npu's allocator that keeps a block of each request, by the clock: how busy the machine is changes nothing.
 *   grows [--rate 100] [--hold 50] [--keep-size 262144] [--most 1000] [--seed 1]
 * --rate: blocks that it keeps in a second, 0 is none.  --hold: those that it has at its start.
 * --most: at so many kept blocks it ends.  --seed: the order of its requests, of eight sizes, again and again.
 * Prints "ready <pid>" when it begins, then serves until --most or SIGTERM. */
#include "common.h"
#include <signal.h>
#include "torch_npu/simpta.h"

#define SIZES 8

static aclrtStream stream;

static void *tensor(uint64_t bytes)
{
    void *ptr;
    CHECK(simpta_malloc(bytes, 0, stream, &ptr));
    return ptr;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* 256 KiB to 2 MiB in the order of a seed. */
static void shuffle(uint64_t *sizes, uint64_t seed)
{
    for (uint64_t i = 0; i < SIZES; i++)
        sizes[i] = (i + 1) * 256 * KIB;
    for (uint64_t i = SIZES - 1; i > 0; i--) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t other = (seed >> 33) % (i + 1), size = sizes[i];
        sizes[i] = sizes[other];
        sizes[other] = size;
    }
}

int main(int argc, char **argv)
{
    const struct timespec pause = {0, 5000000};
    uint64_t rate = option(argc, argv, "--rate", 100), hold = option(argc, argv, "--hold", 50);
    uint64_t keep_size = option(argc, argv, "--keep-size", 256 * KIB), most = option(argc, argv, "--most", 1000);
    uint64_t kept = 0, requests = 0, sizes[SIZES];
    sigset_t signals;
    shuffle(sizes, option(argc, argv, "--seed", 1));
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    CHECK(sigprocmask(SIG_BLOCK, &signals, NULL));
    acl_begin(0);
    CHECK(aclrtCreateStream(&stream));
    for (; kept < hold; kept++)
        tensor(keep_size);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    double start = seconds();
    while (kept < most && sigtimedwait(&signals, NULL, &pause) < 0) {
        uint64_t wanted = hold + (uint64_t)((seconds() - start) * (double)rate);
        for (; kept < wanted && kept < most; kept++)
            tensor(keep_size);
        CHECK(simpta_free(tensor(sizes[requests++ % SIZES])));
    }
    struct simpta_stats stats;
    simpta_get_stats(0, &stats);
    report("kept", kept, "requests", requests, "allocated", stats.allocated, "reserved", stats.reserved, NULL);
    return 0;
}
