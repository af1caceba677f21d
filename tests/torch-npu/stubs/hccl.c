/* libhccl.so: collectives of several processes on one machine. Each rank puts its part into a slot of shared memory, all wait for each
 * other, and each takes what it needs. All is done when a call returns.
 *
 * As with CANN, a communicator takes two buffers of HCCL_BUFFSIZE MiB (16 here, 200 there) from the driver, as module 3. */
#define _GNU_SOURCE
#include "ascend_hal.h"
#include "acl/acl_rt.h"
#include "operator.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 16
#define SLOT (8u << 20)
#define NAME 128
/* Bytes of HcclRootInfo. */
#define ROOT_INFO 4108
#define BUFFERS 2
#define BUFFER_MB 16

enum { SUCCESS = 0, BAD_PARAMETER = 1, BAD_MEMORY = 3 };
enum { SUM, PRODUCT, MAXIMUM };
/* Values of HcclDataType. */
enum { INT8, INT16, INT32, HALF, FLOAT, INT64, UINT64, UINT8, UINT16, UINT32, DOUBLE, BFLOAT, TYPES };

/* What ranks share. */
struct meeting {
    uint32_t is_ready;
    pthread_barrier_t barrier;
    char slot[MAX_RANKS][SLOT];
};

struct communicator {
    struct meeting *meeting;
    uint32_t ranks, rank;
    char name[NAME];
    void *buffer[BUFFERS];
};

static size_t width_of(int type)
{
    static const uint8_t width[TYPES] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
    return type >= 0 && type < TYPES ? width[type] : 4;
}

/* ---- numbers ---- */

static double combine(double x, double y, int operation)
{
    switch (operation) {
    case SUM:
        return x + y;
    case PRODUCT:
        return x * y;
    case MAXIMUM:
        return x > y ? x : y;
    default:
        return x < y ? x : y;
    }
}

#define COMBINE(number, type) \
    case number: \
        for (size_t k = 0; k < count; k++) \
            ((type *)to)[k] = (type)combine((double)((type *)to)[k], (double)((const type *)from)[k], operation); \
        break;
static void reduce(void *to, const void *from, size_t count, int type, int operation)
{
    switch (type) {
        COMBINE(INT8, int8_t)
        COMBINE(INT16, int16_t)
        COMBINE(INT32, int32_t)
        COMBINE(HALF, _Float16)
        COMBINE(FLOAT, float)
        COMBINE(INT64, int64_t)
        COMBINE(UINT64, uint64_t)
        COMBINE(UINT8, uint8_t)
        COMBINE(UINT16, uint16_t)
        COMBINE(UINT32, uint32_t)
        COMBINE(DOUBLE, double)
    case BFLOAT:
        for (size_t k = 0; k < count; k++) {
            uint16_t *x = (uint16_t *)to + k;
            *x = bfloat_of((float)combine(bfloat_value(*x), bfloat_value(((const uint16_t *)from)[k]), operation));
        }
        break;
    default:
        break;
    }
}

/* ---- communicators ---- */

static void wait_for_all(const struct communicator *it)
{
    if (it->ranks > 1)
        pthread_barrier_wait(&it->meeting->barrier);
}

/* The first rank makes the barrier; the name is gone when all have come. */
static bool meet(struct communicator *it)
{
    int file = shm_open(it->name, O_RDWR | O_CREAT, 0600);
    if (file < 0)
        return false;
    struct meeting *meeting = MAP_FAILED;
    if (!ftruncate(file, sizeof *meeting))
        meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (meeting == MAP_FAILED)
        return false;
    it->meeting = meeting;
    if (it->rank == 0) {
        pthread_barrierattr_t shared;
        pthread_barrierattr_init(&shared);
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&meeting->barrier, &shared, it->ranks);
        __atomic_store_n(&meeting->is_ready, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&meeting->is_ready, __ATOMIC_ACQUIRE))
        usleep(1000);
    wait_for_all(it);
    if (it->rank == 0)
        shm_unlink(it->name);
    return true;
}

static int join(uint32_t ranks, uint32_t rank, const char *name, void **out)
{
    if (ranks > MAX_RANKS || rank >= ranks)
        return BAD_PARAMETER;
    struct communicator *it = calloc(1, sizeof *it);
    it->ranks = ranks;
    it->rank = rank;
    snprintf(it->name, sizeof it->name, "%s", name);
    if (ranks > 1 && !meet(it)) {
        free(it);
        return BAD_MEMORY;
    }
    int32_t device = 0;
    aclrtGetDevice(&device);
    const char *text = getenv("HCCL_BUFFSIZE");
    unsigned long long mb = text ? strtoull(text, NULL, 10) : BUFFER_MB;
    unsigned long long flag = (unsigned)device | MEM_DEV | MEM_TYPE_HBM | (unsigned long long)MODULE_HCCL << MEM_MODULE_ID_BIT;
    for (int i = 0; i < BUFFERS; i++)
        if (halMemAlloc(&it->buffer[i], mb << 20, flag))
            it->buffer[i] = NULL;
    *out = it;
    return SUCCESS;
}

/* A name that no other communicator has. */
int HcclGetRootInfo(void *info)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(info, 0, ROOT_INFO);
    snprintf(info, NAME, "/memscope-hccl-%d-%lld-%ld", getpid(), (long long)now.tv_sec, now.tv_nsec);
    return SUCCESS;
}

int HcclCommInitRootInfo(uint32_t ranks, const void *info, uint32_t rank, void **out)
{
    return join(ranks, rank, info, out);
}

int HcclCommInitRootInfoConfig(uint32_t ranks, const void *info, uint32_t rank, const void *config, void **out)
{
    return join(ranks, rank, info, out);
}

/* Members meet under the name of the whole and the number that the caller gives. */
int HcclCreateSubCommConfig(void **whole, uint32_t ranks, uint32_t *members, uint64_t number, uint32_t rank,
                            void *config, void **out)
{
    char name[NAME];
    struct communicator *it = *whole;
    snprintf(name, sizeof name, "%.90s-%llx", it->name, (unsigned long long)number);
    return join(ranks, rank, name, out);
}

int HcclCommDestroy(void *communicator)
{
    struct communicator *it = communicator;
    for (int i = 0; i < BUFFERS; i++)
        if (it->buffer[i])
            halMemFree(it->buffer[i]);
    if (it->meeting)
        munmap(it->meeting, sizeof *it->meeting);
    free(it);
    return SUCCESS;
}

int HcclGetRankSize(void *communicator, uint32_t *ranks)
{
    *ranks = ((struct communicator *)communicator)->ranks;
    return SUCCESS;
}

int HcclGetRankId(void *communicator, uint32_t *rank)
{
    *rank = ((struct communicator *)communicator)->rank;
    return SUCCESS;
}

int HcclGetCommName(void *communicator, char *name)
{
    snprintf(name, NAME, "%s", ((struct communicator *)communicator)->name);
    return SUCCESS;
}

int HcclGetCommAsyncError(void *communicator, int *error)
{
    *error = SUCCESS;
    return SUCCESS;
}

const char *HcclGetErrorString(int error)
{
    return "an error of the stand-ins";
}

uint32_t HcclGetCommConfigCapability(void)
{
    return 0;
}

int HcclSetConfig(int key, int value)
{
    return SUCCESS;
}

/* ---- collectives: in rounds of a slot ---- */

int HcclBarrier(void *communicator, void *stream)
{
    wait_for_all(communicator);
    return stub_launch("HcclBarrier", stream);
}

static void all_reduce(struct communicator *it, const char *from, char *to, uint64_t count, int type, int operation)
{
    size_t width = width_of(type), step = SLOT / width;
    for (uint64_t at = 0; at < count; at += step) {
        size_t part = count - at < step ? count - at : step;
        memcpy(it->meeting->slot[it->rank], from + at * width, part * width);
        wait_for_all(it);
        memcpy(to + at * width, it->meeting->slot[0], part * width);
        for (uint32_t rank = 1; rank < it->ranks; rank++)
            reduce(to + at * width, it->meeting->slot[rank], part, type, operation);
        wait_for_all(it);
    }
}

int HcclAllReduce(void *from, void *to, uint64_t count, int type, int operation, void *communicator, void *stream)
{
    struct communicator *it = communicator;
    if (it->ranks > 1)
        all_reduce(it, from, to, count, type, operation);
    else
        memmove(to, from, count * width_of(type));
    return stub_launch("HcclAllReduce", stream);
}

int HcclBroadcast(void *data, uint64_t count, int type, uint32_t root, void *communicator, void *stream)
{
    struct communicator *it = communicator;
    size_t total = count * width_of(type);
    for (size_t at = 0; at < total && it->ranks > 1; at += SLOT) {
        size_t part = total - at < SLOT ? total - at : SLOT;
        if (it->rank == root)
            memcpy(it->meeting->slot[0], (char *)data + at, part);
        wait_for_all(it);
        memcpy((char *)data + at, it->meeting->slot[0], part);
        wait_for_all(it);
    }
    return stub_launch("HcclBroadcast", stream);
}

/* `count` is what each rank gives. */
int HcclAllGather(void *from, void *to, uint64_t count, int type, void *communicator, void *stream)
{
    struct communicator *it = communicator;
    size_t each = count * width_of(type);
    for (size_t at = 0; at < each && it->ranks > 1; at += SLOT) {
        size_t part = each - at < SLOT ? each - at : SLOT;
        memcpy(it->meeting->slot[it->rank], (char *)from + at, part);
        wait_for_all(it);
        for (uint32_t rank = 0; rank < it->ranks; rank++)
            memcpy((char *)to + rank * each + at, it->meeting->slot[rank], part);
        wait_for_all(it);
    }
    if (it->ranks == 1)
        memmove(to, from, each);
    return stub_launch("HcclAllGather", stream);
}

static void reduce_scatter(struct communicator *it, const char *from, char *to, uint64_t count, int type, int operation)
{
    size_t width = width_of(type), step = SLOT / width / it->ranks;
    for (uint64_t at = 0; at < count; at += step) {
        size_t part = count - at < step ? count - at : step, bytes = part * width;
        for (uint32_t rank = 0; rank < it->ranks; rank++)
            memcpy(it->meeting->slot[it->rank] + rank * bytes, from + (rank * count + at) * width, bytes);
        wait_for_all(it);
        memcpy(to + at * width, it->meeting->slot[0] + it->rank * bytes, bytes);
        for (uint32_t rank = 1; rank < it->ranks; rank++)
            reduce(to + at * width, it->meeting->slot[rank] + it->rank * bytes, part, type, operation);
        wait_for_all(it);
    }
}

/* `count` is what each rank gets. */
int HcclReduceScatter(void *from, void *to, uint64_t count, int type, int operation, void *communicator, void *stream)
{
    struct communicator *it = communicator;
    if (it->ranks > 1)
        reduce_scatter(it, from, to, count, type, operation);
    else
        memmove(to, from, count * width_of(type));
    return stub_launch("HcclReduceScatter", stream);
}
