/* What a Python program would do to torch_npu, as C functions. Errors are those of ACL; -1 for what is not ours. */
#ifndef TORCH_NPU_SIMPTA_H
#define TORCH_NPU_SIMPTA_H
#include <stddef.h>
#include <stdint.h>
#include "sim_export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor's memory, from the caching allocator. 0 bytes are a null pointer and no event, as in torch_npu. */
SIM_API int simpta_malloc(size_t size, int32_t device, void *stream, void **out);
SIM_API int simpta_free(void *ptr);
/* `ptr` is used on `stream` too: after its free the block waits for the next simpta_malloc or simpta_synchronize. */
SIM_API int simpta_record_stream(void *ptr, void *stream);
/* All work is done: blocks that wait for a stream go back to the pool. */
SIM_API int simpta_synchronize(int32_t device);
/* Gives segments that nothing uses back to the runtime, without a report. */
SIM_API int simpta_empty_cache(int32_t device);
/* Space for the duration of one operator; each stream has one block, which only grows. */
SIM_API int simpta_workspace(size_t size, int32_t device, void *stream, void **out);
SIM_API int simpta_workspace_free(int32_t device, void *stream);
SIM_API int simpta_workspace_empty(int32_t device);

/* The pool's own figures, for comparison. */
struct simpta_stats {
    uint64_t allocated, active, reserved;
};
SIM_API void simpta_get_stats(int32_t device, struct simpta_stats *out);

/* An object of a class with a virtual function that also makes data for the profiler. */
SIM_API void *simpta_profiler_state(void);

#ifdef __cplusplus
}
#endif
#endif
