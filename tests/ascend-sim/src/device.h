/* A device that has memory of its own and works by itself: only if ASCEND_SIM_DEVICE is set, to the time that each kernel takes (us). */
#ifndef DEVICE_H
#define DEVICE_H
#include <stdbool.h>
#include <stdint.h>

/* Arguments of a kernel that does something: it fills `len` bytes at `to`. */
#define SIM_FILL 0x6c6c69665f6d6973ull
struct sim_fill {
    uint64_t magic;
    void *to;
    uint64_t len, value;
};

bool device_works(void);
/* Has the device run a kernel, some time. */
void device_launch(const void *args, uint64_t args_size);
/* Waits until it has run all of them. */
void device_wait(void);
/* Between its memory and ours; false if the address is not its. */
bool device_copy(void *dst, const void *src, uint64_t count, bool to_device);
#endif
