/* Threads in a ring: each frees what the one before allocated. Few blocks live at a time, so addresses come back
 * soon, and in other threads.
 *   share [--events 200000] [--threads 4] [--depth 4] [--size 4096]
 * --events counts allocations and frees together; --depth is the length of each queue. */
#include "common.h"

#define MAX_DEPTH 1024

/* Spinning would starve the producer on a small machine. */
struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void *block[MAX_DEPTH];
    uint64_t put, taken;
};

static struct queue queues[MAX_THREADS];
static uint64_t count, depth, size, per_thread;

static void queue_put(struct queue *queue, void *block)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->put - queue->taken == depth)
        pthread_cond_wait(&queue->changed, &queue->lock);
    queue->block[queue->put++ % depth] = block;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

/* Null if it is empty and `wait` is false. */
static void *queue_take(struct queue *queue, bool wait)
{
    void *block = NULL;
    pthread_mutex_lock(&queue->lock);
    while (wait && queue->put == queue->taken)
        pthread_cond_wait(&queue->changed, &queue->lock);
    if (queue->put != queue->taken) {
        block = queue->block[queue->taken++ % depth];
        pthread_cond_signal(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return block;
}

/* All put one and then take one: no thread waits for a full queue while its taker waits for the thread. */
static void *work(void *number)
{
    uint64_t me = (uint64_t)(uintptr_t)number, taken = 0;
    struct queue *out = &queues[me], *in = &queues[(me + count - 1) % count];
    CHECK(aclrtSetDevice(0));
    for (uint64_t i = 0; i < per_thread; i++) {
        void *block = device_alloc(size);
        queue_put(out, block);
        if ((block = queue_take(in, i - taken + 1 >= depth))) {
            CHECK(aclrtFree(block));
            taken++;
        }
    }
    for (; taken < per_thread; taken++)
        CHECK(aclrtFree(queue_take(in, true)));
    CHECK(aclrtResetDevice(0));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_THREADS];
    count = option_threads(argc, argv, 4);
    depth = option(argc, argv, "--depth", 4);
    size = option(argc, argv, "--size", 4 * KIB);
    per_thread = option(argc, argv, "--events", 200000) / 2 / count;
    if (depth < 1 || depth > MAX_DEPTH)
        usage_error("out of range:", "--depth");
    for (uint64_t i = 0; i < count; i++) {
        pthread_mutex_init(&queues[i].lock, NULL);
        pthread_cond_init(&queues[i].changed, NULL);
    }
    acl_begin(0); /* keeps the device open: the runtime's own blocks are made once, whatever the threads' order */
    for (uintptr_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i));
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL));
    acl_end(0);
    report("allocs", per_thread * count, "frees", per_thread * count, NULL);
    return 0;
}
