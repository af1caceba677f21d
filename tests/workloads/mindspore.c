/* Tensors of MindSpore's pools of three kinds, on two threads; the function throws now and then.
 *   mindspore [--rounds 200] [--throw-every 5] [--leaks 2] [--device 2] [--threads 2] */
#include "common.h"
#include "mindspore/simms.h"

static uint64_t rounds, throw_every, leaks;
static int32_t device;

static void *work(void *number)
{
    uintptr_t thread = (uintptr_t)number;
    void *ptr;
    CHECK(aclrtSetDevice(device));
    for (uint64_t i = 0; i < rounds; i++) {
        int kind = (int)((i + thread) % 3);
        if (throw_every && i % throw_every == 0)
            EXPECT(simms_alloc(kind, 2 * MIB, 0, &ptr), 1);
        CHECK(simms_alloc(kind, 0, 0, &ptr));
        CHECK(simms_alloc(kind, 512 * (i + 1) - (kind == 1 ? 0 : i % 7), (uint32_t)i, &ptr));
        if (i >= leaks)
            (i % 3 ? simms_free : simms_free_part)(kind, ptr);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_THREADS];
    rounds = option(argc, argv, "--rounds", 200);
    throw_every = option(argc, argv, "--throw-every", 5);
    leaks = option(argc, argv, "--leaks", 2);
    device = (int32_t)option(argc, argv, "--device", 2);
    uint64_t count = option_threads(argc, argv, 2);
    acl_begin(device);
    for (uintptr_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i));
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL));
    report("allocs", count * rounds, "frees", count * (rounds - leaks), NULL);
    return 0;
}
