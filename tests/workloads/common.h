/* What all workloads share: options, checks and the closing line. */
#ifndef COMMON_H
#define COMMON_H
#include "acl/acl_rt.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define MAX_THREADS 64

#define CHECK(call) \
    do { \
        long check_ret = (long)(call); \
        if (check_ret) { \
            fprintf(stderr, "%s:%d: %s returned %ld\n", __FILE__, __LINE__, #call, check_ret); \
            exit(1); \
        } \
    } while (0)

#define EXPECT(call, value) \
    do { \
        long expect_ret = (long)(call); \
        if (expect_ret != (long)(value)) { \
            fprintf(stderr, "%s:%d: %s returned %ld, not %ld\n", __FILE__, __LINE__, #call, expect_ret, (long)(value)); \
            exit(1); \
        } \
    } while (0)

static inline void usage_error(const char *what, const char *name)
{
    fprintf(stderr, "%s %s\n", what, name);
    exit(2);
}

/* The value after `--name`, or null. */
static inline const char *option_text(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name)) {
            if (i + 1 == argc)
                usage_error("no value for", name);
            return argv[i + 1];
        }
    return NULL;
}

static inline uint64_t option(int argc, char **argv, const char *name, uint64_t otherwise)
{
    const char *text = option_text(argc, argv, name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static inline bool option_flag(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name))
            return true;
    return false;
}

static inline uint64_t option_threads(int argc, char **argv, uint64_t otherwise)
{
    uint64_t threads = option(argc, argv, "--threads", otherwise);
    if (threads < 1 || threads > MAX_THREADS)
        usage_error("out of range:", "--threads");
    return threads;
}

static inline void sleep_ms(uint64_t ms)
{
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    while (nanosleep(&time, &time)) {
    }
}

/* The only line on standard output: {"pid":1,"allocs":2}. Names and values follow, then a null. */
__attribute__((sentinel)) static inline void report(const char *name, ...)
{
    va_list list;
    va_start(list, name);
    printf("{\"pid\":%d", (int)getpid());
    for (; name; name = va_arg(list, const char *))
        printf(",\"%s\":%llu", name, (unsigned long long)va_arg(list, uint64_t));
    printf("}\n");
    fflush(stdout);
    va_end(list);
}

static inline void *device_alloc(uint64_t size)
{
    void *block;
    CHECK(aclrtMalloc(&block, size, ACL_MEM_MALLOC_HUGE_FIRST));
    return block;
}

static inline void acl_begin(int32_t device)
{
    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(device));
}

static inline void acl_end(int32_t device)
{
    CHECK(aclrtResetDevice(device));
    CHECK(aclFinalize());
}
#endif
