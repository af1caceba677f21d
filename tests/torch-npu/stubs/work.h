/* Streams that need time: with ASCEND_SIM_WORK_US each operator keeps its stream busy for so long, after what was given
 * to that stream before. Operators still compute at once, so results do not change; events are done later. Without the
 * variable all is done at once. */
#pragma once
#include <stdint.h>

/* An operator for a stream. */
void work_add(void *stream);
/* Time at which a stream has done all that it has, in nanoseconds of CLOCK_MONOTONIC. */
uint64_t work_done_ns(void *stream);
/* What a stream gets from now on begins at this time at the earliest. */
void work_after(void *stream, uint64_t time_ns);
/* Waits until that time. */
void work_wait(uint64_t time_ns);
/* Time at which all streams have done what they have. */
uint64_t work_all_done_ns(void);
uint64_t work_now_ns(void);
