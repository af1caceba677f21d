/* See device.h. Its memory is a file that no address of this process leads to; kernels run in order, on a thread. */
#define _GNU_SOURCE
#include "device.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_BASE 0x124000000000ull /* as the driver has it */
#define DEVICE_END (DEVICE_BASE + (32ull << 40))
#define QUEUE 4096

/* What calls of the runtime hold: not recursive. */
static pthread_mutex_t runtime_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct sim_fill queue[QUEUE];
static uint64_t head, tail;
static int memory = -1;
static long kernel_us = -1;
static int32_t wait_error, copy_error;
static __thread void (*inside)(void *);
static __thread void *inside_argument;
#define MAX_FREED 64
static uint64_t freed[MAX_FREED];

static void fill(const struct sim_fill *kernel)
{
    char bytes[4096];
    memset(bytes, (int)kernel->value, sizeof bytes);
    for (uint64_t done = 0; done < kernel->len; done += sizeof bytes) {
        uint64_t part = kernel->len - done < sizeof bytes ? kernel->len - done : sizeof bytes;
        if (pwrite(memory, bytes, part, (off_t)((uint64_t)(uintptr_t)kernel->to - DEVICE_BASE + done)) < 0)
            abort();
    }
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&queue_lock);
    for (;;) {
        while (head == tail)
            pthread_cond_wait(&changed, &queue_lock);
        struct sim_fill kernel = queue[tail % QUEUE];
        pthread_mutex_unlock(&queue_lock);
        struct timespec time = {kernel_us / 1000000, kernel_us % 1000000 * 1000};
        nanosleep(&time, NULL);
        fill(&kernel);
        pthread_mutex_lock(&queue_lock);
        tail++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

__attribute__((constructor)) static void device_start(void)
{
    const char *text = getenv("ASCEND_SIM_DEVICE");
    pthread_t thread;
    if (!text)
        return;
    kernel_us = atol(text);
    memory = memfd_create("device", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, (off_t)(DEVICE_END - DEVICE_BASE)) || pthread_create(&thread, NULL, work, NULL))
        abort();
}

void sim_inside_runtime(void (*call)(void *), void *argument)
{
    inside = call;
    inside_argument = argument;
}

void sim_device_fails(int32_t wait, int32_t copy)
{
    wait_error = wait;
    copy_error = copy;
}

int32_t device_wait_error(void)
{
    return wait_error;
}

int32_t device_copy_error(void)
{
    return copy_error;
}

void device_inside(void)
{
    void (*call)(void *) = inside;
    if (!call)
        return;
    inside = NULL;
    pthread_mutex_lock(&runtime_lock);
    call(inside_argument);
    pthread_mutex_unlock(&runtime_lock);
}

/* Puts `to` in the place of `from`. */
static void replace_freed(uint64_t from, uint64_t to)
{
    int i = 0;
    if (!device_works())
        return;
    pthread_mutex_lock(&queue_lock);
    while (i < MAX_FREED && freed[i] != from)
        i++;
    if (i < MAX_FREED)
        freed[i] = to;
    pthread_mutex_unlock(&queue_lock);
}

void device_freed(const void *block)
{
    replace_freed(0, (uint64_t)(uintptr_t)block);
}

void device_allocated(const void *block)
{
    replace_freed((uint64_t)(uintptr_t)block, 0);
}

static bool is_freed(uint64_t at)
{
    int i = 0;
    pthread_mutex_lock(&queue_lock);
    while (i < MAX_FREED && freed[i] != at)
        i++;
    pthread_mutex_unlock(&queue_lock);
    return i < MAX_FREED;
}

bool device_works(void)
{
    return kernel_us >= 0;
}

void device_launch(const void *args, uint64_t args_size)
{
    const struct sim_fill *kernel = args;
    if (!device_works() || !args || args_size != sizeof *kernel || kernel->magic != SIM_FILL)
        return;
    pthread_mutex_lock(&runtime_lock);
    pthread_mutex_lock(&queue_lock);
    while (head - tail == QUEUE)
        pthread_cond_wait(&changed, &queue_lock);
    queue[head++ % QUEUE] = *kernel;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&queue_lock);
    pthread_mutex_unlock(&runtime_lock);
}

void device_wait(void)
{
    pthread_mutex_lock(&queue_lock);
    /* What is launched from here on is not waited for. */
    for (uint64_t all = head; tail < all;)
        pthread_cond_wait(&changed, &queue_lock);
    pthread_mutex_unlock(&queue_lock);
}

bool device_copy(void *dst, const void *src, uint64_t count, bool to_device)
{
    uint64_t at = (uint64_t)(uintptr_t)(to_device ? dst : src);
    if (at < DEVICE_BASE || count > DEVICE_END - DEVICE_BASE || at > DEVICE_END - count || is_freed(at))
        return false;
    pthread_mutex_lock(&runtime_lock);
    off_t from = (off_t)(at - DEVICE_BASE);
    ssize_t copied = to_device ? pwrite(memory, src, count, from) : pread(memory, dst, count, from);
    pthread_mutex_unlock(&runtime_lock);
    return copied == (ssize_t)count;
}
