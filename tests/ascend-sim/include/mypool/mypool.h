/* A memory pool that no tracer knows of: in C, and in C++ for those who come by `simpool_*`. */
#ifndef MYPOOL_H
#define MYPOOL_H
#include <stddef.h>
#include "sim_export.h"
#ifdef __cplusplus
extern "C" {
#endif
/* Null if there is none. */
SIM_API void *my_alloc(size_t size);
SIM_API void my_free(void *ptr);
/* 0 if there is one. */
SIM_API int my_take(void **out, size_t count, size_t size, int device);
SIM_API void my_give(int device, void **ptr);
SIM_API void my_note(int level, const char *text);
/* By `my::Pool::take` and `give`, which throw for more than 1 MiB; then 1. */
SIM_API int simpool_take(size_t size, void **out);
SIM_API void simpool_give(void *ptr);
/* They do nothing, but move their arguments at once. The block of n bytes is at n << 12. */
SIM_API void my_moved_free(void *ptr);
SIM_API void my_moved_note(int level, const char *text);
/* By `my::moved`. */
SIM_API void *simpool_moved(size_t size);
#ifdef __cplusplus
}
#endif
#endif
