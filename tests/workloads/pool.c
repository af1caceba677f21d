/* Tensors and workspaces of torch_npu's allocators, on one stream, with some blocks used on a second one.
 *   pool [--rounds 3] [--blocks 16] [--size 65536] [--leaks 1] [--leak-size 1048576] [--shared 2] [--workspaces 2]
 *        [--device 0] [--hold 0] [--threads 1] [--serve] [--idle]
 * --leaks: blocks of each round that stay.  --shared: blocks of each round that another stream uses too.
 * --workspaces: uses of the workspace in each round, each larger than the one before.
 * --threads: threads that each do all rounds, on streams of their own.
 * --hold: further blocks that live from the start to the end.
 * --serve: prints "ready <pid>" when those are there, then goes on with rounds until SIGTERM; each round is a step. At SIGUSR1 it
 *   requests more than a device has.
 * --idle: with --serve, it does nothing until SIGUSR1. */
#include "common.h"
#include "mstx/ms_tools_ext.h"
#include <signal.h>
#include "torch_npu/simpta.h"

static uint64_t blocks, size, leaks, leak_size, shared, workspaces, hold;
static uint64_t rounds;
static int32_t device;
static _Thread_local aclrtStream stream, other;

/* A pebibyte. */
#define TOO_MUCH ((size_t)1 << 50)

static void *tensor(uint64_t bytes)
{
    void *ptr;
    CHECK(simpta_malloc(bytes, device, stream, &ptr));
    return ptr;
}

static void one_round(uint64_t round)
{
    void **list = calloc(blocks, sizeof *list);
    for (uint64_t i = 0; i < blocks; i++) {
        list[i] = tensor(size + i * 777);
        if (i < shared)
            CHECK(simpta_record_stream(list[i], other));
    }
    for (uint64_t i = 0; i < workspaces; i++) {
        void *ptr;
        CHECK(simpta_workspace((round * workspaces + i + 1) << 20, device, stream, &ptr));
        CHECK(simpta_workspace_free(device, stream));
    }
    for (uint64_t i = 0; i < leaks; i++)
        tensor(leak_size);
    for (uint64_t i = blocks; i-- > 0;)
        CHECK(simpta_free(list[i]));
    CHECK(simpta_synchronize(device));
    CHECK(simpta_empty_cache(device));
    free(list);
}

static void open_streams(void)
{
    CHECK(aclrtCreateStream(&stream));
    CHECK(aclrtCreateStream(&other));
}

static void *on_thread(void *unused)
{
    (void)unused;
    CHECK(aclrtSetDevice(device));
    open_streams();
    for (uint64_t round = 0; round < rounds; round++)
        one_round(round);
    return NULL;
}

/* Rounds until SIGTERM; gives their number. */
static uint64_t serve(bool idle)
{
    const struct timespec pause = {0, 5000000};
    sigset_t signals;
    uint64_t done = 0;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &signals, NULL));
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    if (idle && sigwaitinfo(&signals, NULL) == SIGTERM)
        return done;
    for (int signal; (signal = sigtimedwait(&signals, NULL, &pause)) != SIGTERM;) {
        if (signal == SIGUSR1) {
            void *ptr;
            if (aclrtMalloc(&ptr, TOO_MUCH, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS)
                return done;
        }
        mstxRangeId step = mstxRangeStartA("step start", NULL);
        one_round(done++);
        mstxRangeEnd(step);
    }
    return done;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_THREADS];
    uint64_t count = option_threads(argc, argv, 1);
    rounds = option(argc, argv, "--rounds", 3);
    blocks = option(argc, argv, "--blocks", 16);
    size = option(argc, argv, "--size", 64 * KIB);
    leaks = option(argc, argv, "--leaks", 1);
    leak_size = option(argc, argv, "--leak-size", MIB);
    shared = option(argc, argv, "--shared", 2);
    workspaces = option(argc, argv, "--workspaces", 2);
    hold = option(argc, argv, "--hold", 0);
    bool server = option_flag(argc, argv, "--serve");
    device = (int32_t)option(argc, argv, "--device", 0);
    acl_begin(device);
    open_streams();
    void **held = calloc(hold + 1, sizeof *held);
    for (uint64_t i = 0; i < hold; i++)
        held[i] = tensor(size);
    if (server)
        rounds = serve(option_flag(argc, argv, "--idle"));
    for (uint64_t i = 0; i < count && !server; i++)
        CHECK(pthread_create(&threads[i], NULL, on_thread, NULL));
    for (uint64_t i = 0; i < count && !server; i++)
        CHECK(pthread_join(threads[i], NULL));
    rounds *= count;
    for (uint64_t i = 0; i < hold; i++)
        CHECK(simpta_free(held[i]));
    free(held);
    CHECK(simpta_workspace_empty(device));
    /* The frees above are work, not of the exit: what is left now is what was kept. */
    mstxMarkA("rounds are over", NULL);
    struct simpta_stats stats;
    simpta_get_stats(device, &stats);
    report("mallocs", hold + rounds * (blocks + leaks), "frees", hold + rounds * blocks, "workspaces", rounds * workspaces, "allocated",
           stats.allocated, "active", stats.active, "reserved", stats.reserved, NULL);
    return 0;
}
