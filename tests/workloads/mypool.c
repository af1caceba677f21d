/* Blocks of a pool that only the user knows of, in C and in C++; the latter's function throws now and then.
 *   mypool [--rounds 100] [--throw-every 3] [--leaks 2] [--device 1] */
#include "common.h"
#include "mypool/mypool.h"

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 100);
    uint64_t throw_every = option(argc, argv, "--throw-every", 3);
    uint64_t leaks = option(argc, argv, "--leaks", 2);
    int32_t device = (int32_t)option(argc, argv, "--device", 1);
    uint64_t thrown = 0;
    acl_begin(device);
    for (uint64_t i = 0; i < rounds; i++) {
        my_note(1, "a round");
        void *plain = my_alloc(1000 + i), *counted, *object;
        EXPECT(my_alloc(2 * MIB) == NULL, true);
        CHECK(my_take(&counted, 10, 10 + i, 2));
        EXPECT(my_take(&counted, 2, MIB, 2), 12);
        if (throw_every && i % throw_every == 0) {
            EXPECT(simpool_take(2 * MIB, &object), 1);
            thrown++;
        }
        CHECK(simpool_take(500 + i, &object));
        if (i < leaks)
            continue;
        my_free(plain);
        my_give(2, &counted);
        simpool_give(object);
    }
    report("allocs", 3 * rounds, "frees", 3 * (rounds - leaks), "thrown", thrown, NULL);
    return 0;
}
