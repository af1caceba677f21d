/* libascendcl.so: streams that need time (work.h). */
#include "work.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Programs of the tests have a few streams on each device. One more has no time of its own: its work is done at once. */
#define STREAMS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *stream;
    uint64_t done_ns;
} streams[STREAMS];
static int count;

static uint64_t each_ns(void)
{
    static uint64_t ns = UINT64_MAX;
    if (ns == UINT64_MAX) {
        const char *text = getenv("ASCEND_SIM_WORK_US");
        ns = text ? strtoull(text, NULL, 10) * 1000 : 0;
    }
    return ns;
}

uint64_t work_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* With the lock. */
static uint64_t *clock_of(void *stream)
{
    static uint64_t beyond;
    int i = 0;
    while (i < count && streams[i].stream != stream)
        i++;
    if (i == STREAMS)
        return &beyond;
    if (i == count)
        streams[count++].stream = stream;
    return &streams[i].done_ns;
}

void work_add(void *stream)
{
    if (!each_ns())
        return;
    uint64_t now = work_now_ns();
    pthread_mutex_lock(&lock);
    uint64_t *done = clock_of(stream);
    *done = (*done > now ? *done : now) + each_ns();
    pthread_mutex_unlock(&lock);
}

uint64_t work_done_ns(void *stream)
{
    pthread_mutex_lock(&lock);
    uint64_t done = *clock_of(stream);
    pthread_mutex_unlock(&lock);
    return done;
}

void work_after(void *stream, uint64_t time_ns)
{
    pthread_mutex_lock(&lock);
    uint64_t *done = clock_of(stream);
    if (*done < time_ns)
        *done = time_ns;
    pthread_mutex_unlock(&lock);
}

uint64_t work_all_done_ns(void)
{
    uint64_t last = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (streams[i].done_ns > last)
            last = streams[i].done_ns;
    pthread_mutex_unlock(&lock);
    return last;
}

void work_wait(uint64_t time_ns)
{
    const struct timespec until = {(time_t)(time_ns / 1000000000), (long)(time_ns % 1000000000)};
    if (time_ns > work_now_ns())
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}
