/* Two threads on two devices, and one that never sets a device and so cannot allocate.
 *   devices [--blocks 100] [--size 65536] [--leak] [--default]
 * --default: a process-wide default device (0), with which the third thread can. */
#include "common.h"
#include "runtime/rt.h"

static uint64_t blocks, size;
static bool leak, with_default;

static void allocate(void)
{
    for (uint64_t i = 0; i < blocks; i++) {
        void *block = device_alloc(size);
        if (!leak)
            CHECK(aclrtFree(block));
    }
}

static void *on_device(void *number)
{
    CHECK(aclrtSetDevice((int32_t)(intptr_t)number));
    allocate();
    return NULL;
}

static void *without_device(void *unused)
{
    void *block = NULL;
    (void)unused;
    if (with_default) {
        allocate();
        return NULL;
    }
    for (uint64_t i = 0; i < blocks; i++)
        EXPECT(aclrtMalloc(&block, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[3];
    blocks = option(argc, argv, "--blocks", 100);
    size = option(argc, argv, "--size", 64 * KIB);
    leak = option_flag(argc, argv, "--leak");
    with_default = option_flag(argc, argv, "--default");
    CHECK(aclInit(NULL));
    if (with_default)
        CHECK(rtSetDefaultDeviceId(0));
    CHECK(pthread_create(&threads[0], NULL, on_device, (void *)0));
    CHECK(pthread_create(&threads[1], NULL, on_device, (void *)1));
    CHECK(pthread_create(&threads[2], NULL, without_device, NULL));
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL));
    CHECK(aclFinalize());
    uint64_t made = blocks * (with_default ? 3 : 2);
    report("allocs", made, "frees", leak ? (uint64_t)0 : made, "failed", with_default ? (uint64_t)0 : blocks, NULL);
    return 0;
}
