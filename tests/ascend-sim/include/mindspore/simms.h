/* Entry points of the simulated MindSpore pool for C programs. */
#ifndef SIMMS_H
#define SIMMS_H
#include <stddef.h>
#include <stdint.h>
#include "sim_export.h"
#ifdef __cplusplus
extern "C" {
#endif
/* Kinds of pools: 0 abstract, 1 best fit, 2 the first behind a tracker.
 * 0; 1 if the pool threw, which it does for more than 1 MiB; a size of 0 gives a null pointer. */
SIM_API int simms_alloc(int kind, size_t size, uint32_t stream, void **out);
SIM_API void simms_free(int kind, void *ptr);
/* The same by `FreePartTensorMems`, which keeps no part of it. */
SIM_API void simms_free_part(int kind, void *ptr);
#ifdef __cplusplus
}
#endif
#endif
