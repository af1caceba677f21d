/* What one call costs the thread that makes it: many of one kind, timed in blocks.
 *   calls [--kind hal] [--calls 20000] [--blocks 5] [--threads 1] [--frames 0] [--rate 0] [--device 0] [--hold]
 * --kind: none (an empty function), hal (halMemAlloc and halMemFree), acl (the same through aclrtMalloc and aclrtFree),
 *   pool (a block of torch_npu's pool and its end: three reports), launch (rtKernelLaunch), acl-launch (the same through
 *   aclrtLaunchKernel), mark (mstxMarkA), keep (halMemAlloc alone).
 * --calls is for each block, --blocks for each thread.  --frames: the stack at the call is at least that deep.
 * --rate: calls in a second, all threads together, as even as milliseconds allow; 0 is as fast as they go.
 * --hold: when all is set up, prints "ready <pid>"; then waits for SIGUSR1 before the calls and for SIGTERM after them.
 * The closing line has `block_ps`, for each block the processor time of one call in picoseconds, and `wall_ns`.
 * As a shared library it has `calls_run`, for callers in other languages (calls.py). */
#include "ascend_hal.h"
#include "callers.h"
#include "common.h"
#include "hold.h"
#include "mstx/ms_tools_ext.h"
#include "runtime/rt.h"
#include "torch_npu/simpta.h"

#define KEEP __attribute__((noinline, noclone))
#define MAX_BLOCKS 256
/* Not a tail call. */
#define AFTER __asm__ volatile("" ::: "memory")

static int32_t device;
static char elf[64] = "\177ELF", stub;
static aclrtFuncHandle function;

static void one_none(void)
{
    AFTER;
}

/* How the driver is asked for memory of the device. */
static uint64_t flag(void)
{
    return MEM_DEV | MEM_TYPE_HBM | MEM_SET_ALIGN_SIZE(9) | (uint64_t)MODULE_HCCL << MEM_MODULE_ID_BIT | (uint64_t)device;
}

static void one_keep(void)
{
    void *block;
    CHECK(halMemAlloc(&block, 4096, flag()));
}

static void one_hal(void)
{
    void *block;
    CHECK(halMemAlloc(&block, 4096, flag()));
    CHECK(halMemFree(block));
}

static void one_acl(void)
{
    CHECK(aclrtFree(device_alloc(4096)));
}

static void one_pool(void)
{
    void *block;
    CHECK(simpta_malloc(4096, device, NULL, &block));
    CHECK(simpta_free(block));
}

static void one_launch(void)
{
    void *args[3] = {NULL, NULL, NULL};
    CHECK(rtKernelLaunch(&stub, 1, args, sizeof args, NULL, NULL));
}

static void one_acl_launch(void)
{
    void *args[3] = {NULL, NULL, NULL};
    CHECK(aclrtLaunchKernel(function, 1, args, sizeof args, NULL));
}

static void one_mark(void)
{
    mstxMarkA("a mark of the benchmark", NULL);
}

static const struct {
    const char *name;
    void (*one)(void);
} kinds[] = {
    {"none", one_none}, {"hal", one_hal},       {"acl", one_acl},
    {"pool", one_pool}, {"launch", one_launch}, {"acl-launch", one_acl_launch},
    {"mark", one_mark}, {"keep", one_keep},
};

static void (*call_of(const char *kind))(void)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kinds[i].name, kind))
            return kinds[i].one;
    usage_error("no such --kind:", kind);
    return NULL;
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec time;
    CHECK(clock_gettime(clock, &time));
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Processor time, not time by the clock: what else runs on the machine is not the call's cost. */
KEEP static uint64_t block_ps(void (*one)(void), uint64_t calls)
{
    uint64_t begin = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (uint64_t i = 0; i < calls; i++)
        one();
    return (now_ns(CLOCK_THREAD_CPUTIME_ID) - begin) * 1000 / calls;
}

KEEP static void blocks_at(uint64_t depth, void (*one)(void), uint64_t calls, uint64_t blocks, uint64_t *ps)
{
    if (depth)
        blocks_at(depth - 1, one, calls, blocks, ps);
    else
        for (uint64_t i = 0; i < blocks; i++)
            ps[i] = block_ps(one, calls);
    AFTER;
}

/* How deep the stack is where `one` calls a probed function, that function included, without anything added. */
static uint64_t own_frames;
KEEP static void count_frames(void)
{
    void *frames[256];
    own_frames = (uint64_t)callers(frames, 256) + 1;
}

static void setup(void)
{
    void *binary;
    aclrtBinHandle loaded;
    rtDevBinary_t old = {.magic = RT_DEV_BINARY_MAGIC_ELF, .data = elf, .length = sizeof elf};
    acl_begin(device);
    CHECK(rtDevBinaryRegister(&old, &binary));
    CHECK(rtFunctionRegister(binary, &stub, "bench_0", "bench", 0));
    CHECK(aclrtBinaryLoadFromData(elf, sizeof elf, NULL, &loaded));
    CHECK(aclrtBinaryGetFunction(loaded, "bench_acl", &function));
}

/* For calls.py: sets up, makes the calls from where it was called, and prints the closing line. */
__attribute__((visibility("default"))) void calls_run(const char *kind, uint64_t calls, uint64_t blocks);

static void print_blocks(const uint64_t *ps, uint64_t count, uint64_t calls, uint64_t wall_ns)
{
    printf("{\"pid\":%d,\"calls\":%llu,\"wall_ns\":%llu,\"block_ps\":[", (int)getpid(), (unsigned long long)calls,
           (unsigned long long)wall_ns);
    for (uint64_t i = 0; i < count; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)ps[i]);
    printf("]}\n");
    fflush(stdout);
}

void calls_run(const char *kind, uint64_t calls, uint64_t blocks)
{
    uint64_t ps[MAX_BLOCKS];
    if (blocks > MAX_BLOCKS)
        usage_error("too many", "blocks");
    setup();
    uint64_t begin = now_ns(CLOCK_MONOTONIC);
    blocks_at(0, call_of(kind), calls, blocks, ps);
    print_blocks(ps, blocks, calls * blocks, now_ns(CLOCK_MONOTONIC) - begin);
}

static uint64_t calls, blocks, depth, thread_rate;
static void (*one)(void);

static void wait_until_ns(uint64_t time_ns)
{
    struct timespec time = {(time_t)(time_ns / 1000000000), (long)(time_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL)) {
    }
}

/* The time of a block has its waiting in it: what entering the kernel takes, and cold caches. */
static void calls_at_rate(uint64_t *ps)
{
    uint64_t begin = now_ns(CLOCK_MONOTONIC), number = 0;
    for (uint64_t block = 0; block < blocks; block++) {
        uint64_t cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
        for (uint64_t i = 0; i < calls; i++, number++) {
            uint64_t due = begin + number * 1000000000 / thread_rate;
            /* What is due within this millisecond goes at once. */
            if (due > now_ns(CLOCK_MONOTONIC) + 1000000)
                wait_until_ns(due);
            one();
        }
        ps[block] = (now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) * 1000 / calls;
    }
}

static void *work(void *ps)
{
    CHECK(aclrtSetDevice(device));
    if (thread_rate)
        calls_at_rate(ps);
    else
        blocks_at(depth, one, calls, blocks, ps);
    return NULL;
}

int main(int argc, char **argv)
{
    static uint64_t ps[MAX_THREADS * MAX_BLOCKS];
    pthread_t threads[MAX_THREADS];
    const char *kind = option_text(argc, argv, "--kind");
    uint64_t count = option_threads(argc, argv, 1), frames = option(argc, argv, "--frames", 0), unused;
    bool hold = option_flag(argc, argv, "--hold");
    one = call_of(kind ? kind : "hal");
    device = (int32_t)option(argc, argv, "--device", 0);
    calls = option(argc, argv, "--calls", 20000);
    blocks = option(argc, argv, "--blocks", 5);
    thread_rate = option(argc, argv, "--rate", 0) / count;
    if (blocks < 1 || blocks > MAX_BLOCKS || calls < 1)
        usage_error("out of range:", "--blocks or --calls");
    hold_begin(hold);
    setup();
    blocks_at(0, count_frames, 1, 1, &unused);
    depth = frames > own_frames ? frames - own_frames : 0;
    hold_ready(hold);
    hold_until(hold, SIGUSR1);
    uint64_t begin = now_ns(CLOCK_MONOTONIC);
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, &ps[i * blocks]));
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL));
    print_blocks(ps, count * blocks, calls * blocks * count, now_ns(CLOCK_MONOTONIC) - begin);
    hold_until(hold, SIGTERM);
    acl_end(device);
    return 0;
}
