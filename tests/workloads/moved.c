/* Calls of functions that move their arguments before an instruction that the kernel emulates.
 *   moved [--rounds 20] */
#include "common.h"
#include "mypool/mypool.h"

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 20);
    acl_begin(1);
    for (uint64_t size = 1; size <= rounds; size++) {
        EXPECT(simpool_moved(size) == (void *)(size << 12), true);
        my_moved_note(1, "moved");
        my_moved_free((void *)(size << 12));
    }
    report("rounds", rounds, NULL);
    return 0;
}
