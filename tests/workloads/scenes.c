/* Unusual programs with books of their own: each scene prints its own figures.
 *   scenes two [--steps 12]       two devices with steps of their own: the second keeps a block of each, the first one of its first
 *   scenes retries [--steps 12]   each step keeps a block; in the middle a request succeeds at its third attempt, at the end two fail
 *                                 for good, of one device at once
 *   scenes killed [--steps 12]    each step keeps a block; killed within the last one, with temporary blocks
 *   scenes handlers [--steps 12]  each step keeps a block; a handler of `exit` frees these, 3 s later, and twice as many others never
 *   scenes bursts [--seconds 12]  a server without steps: one place keeps a block now and then, another one takes many at the end
 * Set ASCEND_SIM_CAPACITY_MB=256 for `retries`. */
#include "common.h"
#include "mstx/ms_tools_ext.h"
#include "runtime/rt.h"
#include <signal.h>

#define MAX_KEPT 4096
#define CACHED 40
/* Without a page more for what ACL adds. */
#define CACHE_BYTES (4 * MIB - 64 * KIB)

static uint64_t steps;
static void *kept[2][MAX_KEPT];

__attribute__((noipa)) static void *keep_here(uint64_t bytes)
{
    return device_alloc(bytes);
}

__attribute__((noipa)) static void *work_here(uint64_t bytes)
{
    return device_alloc(bytes);
}

__attribute__((noipa)) static void *burst_here(uint64_t bytes)
{
    return device_alloc(bytes);
}

static void work(uint64_t count)
{
    void *list[64];
    for (uint64_t i = 0; i < count; i++)
        list[i] = work_here(64 * KIB + i * 4096);
    while (count)
        CHECK(aclrtFree(list[--count]));
}

/* One step of training; `own` bytes of it stay. Steps take their time, as those of training do: of more than 32 calls in 100 ms through
 * a function that the tracer has just met, the rest may have stacks that end early. */
static void step_on(int32_t device, uint64_t number, uint64_t own)
{
    sleep_ms(60);
    mstxRangeId step = mstxRangeStartA("step start", NULL);
    work(8);
    if (own)
        kept[device][number] = keep_here(own);
    mstxRangeEnd(step);
}

static pthread_barrier_t barrier;

/* The first device begins, so that the first step of all is its own. */
static void *on_device(void *number)
{
    int32_t device = (int32_t)(intptr_t)number;
    CHECK(aclrtSetDevice(device));
    if (device)
        pthread_barrier_wait(&barrier);
    for (uint64_t step = 0; step < steps; step++) {
        step_on(device, step, device || !step ? MIB : 0);
        if (!device && !step)
            pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void two(void)
{
    pthread_t threads[2];
    CHECK(pthread_barrier_init(&barrier, NULL, 2));
    CHECK(aclInit(NULL));
    for (intptr_t device = 0; device < 2; device++)
        CHECK(pthread_create(&threads[device], NULL, on_device, (void *)device));
    for (int device = 0; device < 2; device++)
        CHECK(pthread_join(threads[device], NULL));
    CHECK(aclFinalize());
    report("steps", steps, "kept0", (uint64_t)1, "kept1", steps, NULL);
}

static void *asks_in_vain(void *bytes)
{
    void *none;
    CHECK(aclrtSetDevice(0));
    pthread_barrier_wait(&barrier);
    EXPECT(aclrtMalloc(&none, (uintptr_t)bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* A request that fails, is made again behind a part of the cache that is given back, and succeeds at the third attempt. */
static void *try_again(void **cache, uint64_t *cached)
{
    const uint64_t given_back[] = {5, 10}, bytes = 120 * MIB;
    void *block;
    for (int attempt = 0; attempt < 2; attempt++) {
        EXPECT(aclrtMalloc(&block, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
        for (uint64_t i = 0; i < given_back[attempt]; i++)
            CHECK(aclrtFree(cache[--*cached]));
    }
    CHECK(aclrtMalloc(&block, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    return block;
}

static void retries(void)
{
    const uint64_t sizes[] = {180 * MIB, 190 * MIB};
    pthread_t threads[2];
    void *cache[CACHED];
    uint64_t cached = 0;
    acl_begin(0);
    while (cached < CACHED)
        cache[cached++] = work_here(CACHE_BYTES);
    sleep_ms(100);
    for (uint64_t step = 0; step < steps; step++) {
        step_on(0, step, 256 * KIB);
        if (step == steps / 2)
            CHECK(aclrtFree(try_again(cache, &cached)));
    }
    CHECK(pthread_barrier_init(&barrier, NULL, 2));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, asks_in_vain, (void *)(uintptr_t)sizes[i]));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL));
    while (cached)
        CHECK(aclrtFree(cache[--cached]));
    for (uint64_t step = 0; step < steps; step++)
        CHECK(aclrtFree(kept[0][step]));
    acl_end(0);
    report("steps", steps, "kept", steps, NULL);
}

static void killed(void)
{
    acl_begin(0);
    for (uint64_t step = 0; step + 1 < steps; step++)
        step_on(0, step, MIB);
    mstxRangeStartA("step start", NULL);
    for (int i = 0; i < 3; i++)
        work_here(2 * MIB);
    report("steps", steps, "kept", steps - 1, "temporary", (uint64_t)3, NULL);
    raise(SIGKILL);
}

static void free_kept(void)
{
    sleep_ms(3000);
    for (uint64_t step = 0; step < steps; step++)
        CHECK(aclrtFree(kept[0][step]));
}

static void handlers(void)
{
    acl_begin(0);
    for (uint64_t i = 0; i < 2 * steps; i++)
        work_here(128 * KIB);
    CHECK(atexit(free_kept));
    for (uint64_t step = 0; step < steps; step++)
        step_on(0, step, MIB);
    report("steps", steps, "kept", steps, "left", 2 * steps, NULL);
}

static uint64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static void bursts(uint64_t seconds)
{
    static void *many[512];
    uint64_t begin = now_ms(), count = 0, requests = 0;
    acl_begin(0);
    for (uint64_t at = 0; at < seconds * 1000; at = now_ms() - begin) {
        work(4);
        requests++;
        if (at / 100 > count && count < MAX_KEPT)
            kept[0][count++] = keep_here(MIB);
        sleep_ms(5);
    }
    for (int i = 0; i < 512; i++)
        many[i] = burst_here(128 * KIB);
    work(4);
    for (int i = 0; i < 512; i++)
        CHECK(aclrtFree(many[i]));
    for (uint64_t i = 0; i < count; i++)
        CHECK(aclrtFree(kept[0][i]));
    acl_end(0);
    report("requests", requests, "kept", count, NULL);
}

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    steps = option(argc, argv, "--steps", 12);
    if (!strcmp(scene, "two"))
        two();
    else if (!strcmp(scene, "retries"))
        retries();
    else if (!strcmp(scene, "killed"))
        killed();
    else if (!strcmp(scene, "handlers"))
        handlers();
    else if (!strcmp(scene, "bursts"))
        bursts(option(argc, argv, "--seconds", 12));
    else
        usage_error("no scene", scene);
    return 0;
}
