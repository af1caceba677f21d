/* Two threads fill a device each. Each is refused twice: when its device is full, and once more, for eight times as much,
 * after it has given three blocks back. Then all is freed at once.
 *   ooms [--size 4194304]
 * Set ASCEND_SIM_CAPACITY_MB to keep it short. */
#include "common.h"
#include "runtime/rt.h"

#define MAX_BLOCKS 100000
#define GIVEN_BACK 3

static uint64_t size;
static pthread_barrier_t refused;

struct device {
    int32_t number;
    uint64_t allocs, most;
    void *list[MAX_BLOCKS];
};

static struct device devices[2];

static void *on_device(void *given)
{
    struct device *device = given;
    uint64_t own = size + (uint64_t)device->number * MIB;
    aclError status = ACL_SUCCESS;
    uint64_t live = 0;
    void *none;
    CHECK(aclrtSetDevice(device->number));
    while (live < MAX_BLOCKS && !(status = aclrtMalloc(&device->list[live], own, ACL_MEM_MALLOC_HUGE_FIRST)))
        live++;
    EXPECT(status, ACL_ERROR_RT_MEMORY_ALLOCATION);
    device->allocs = device->most = live;
    for (int i = 0; i < GIVEN_BACK; i++)
        CHECK(aclrtFree(device->list[--live]));
    EXPECT(aclrtMalloc(&none, 8 * own, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    pthread_barrier_wait(&refused);
    while (live)
        CHECK(aclrtFree(device->list[--live]));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    size = option(argc, argv, "--size", 4 * MIB);
    CHECK(pthread_barrier_init(&refused, NULL, 2));
    CHECK(aclInit(NULL));
    for (int i = 0; i < 2; i++) {
        devices[i].number = i;
        CHECK(pthread_create(&threads[i], NULL, on_device, &devices[i]));
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL));
    CHECK(aclFinalize());
    report("most0", devices[0].most, "most1", devices[1].most, NULL);
    return 0;
}
