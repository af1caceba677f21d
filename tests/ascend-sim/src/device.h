/* A device that has memory of its own and works by itself: only if ASCEND_SIM_DEVICE is set, to the time that each kernel takes (us). */
#ifndef DEVICE_H
#define DEVICE_H
#include "sim_export.h"
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
/* What programs may ask of it, to see what their users do then. */
/* The thread's next `rtMalloc` calls this while it holds what calls of the runtime hold. */
SIM_API void sim_inside_runtime(void (*call)(void *), void *argument);
/* From now on waiting gives `wait_error`, and copies `copy_error`; 0 is none. */
SIM_API void sim_device_fails(int32_t wait_error, int32_t copy_error);

/* For calls of the runtime: does what the thread has asked for. */
void device_inside(void);
int32_t device_wait_error(void), device_copy_error(void);
/* A block has gone, or is there: what is not cannot be copied. */
void device_freed(const void *block), device_allocated(const void *block);
/* Between its memory and ours; false if the address is not its. */
bool device_copy(void *dst, const void *src, uint64_t count, bool to_device);
#endif
