/* Runs until it is stopped, to be attached to. Prints "ready <pid>" first and its counts at the end.
 *   serve [--threads 1] [--rate 1000] [--hold 100] [--size 65536] [--duration-ms 0] [--children]
 * --rate: pairs of an allocation and a free in a second, in all threads together; 0 is as fast as they go.
 * --hold: blocks that live from the start to the end.  --duration-ms: 0 is until SIGTERM or SIGINT.
 * --children: SIGUSR1 forks a child that does the same, with its own line "ready <pid>", until SIGTERM;
 * the parent passes SIGTERM on and waits. */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

#define MAX_CHILDREN 16

static uint64_t threads, rate, hold, size;
static volatile bool stop;

/* The same beat for all: sleeping a little after some pairs, not after each one. */
static void *work(void *total)
{
    uint64_t pairs = 0, batch = rate ? rate / threads / 100 + 1 : 1000;
    CHECK(aclrtSetDevice(0));
    while (!stop) {
        for (uint64_t i = 0; i < batch; i++, pairs++)
            CHECK(aclrtFree(device_alloc(size)));
        if (rate)
            sleep_ms(batch * 1000 * threads / rate);
    }
    CHECK(aclrtResetDevice(0));
    *(uint64_t *)total = pairs;
    return NULL;
}

static void start(pthread_t *thread, uint64_t *pairs)
{
    for (uint64_t i = 0; i < threads; i++)
        CHECK(pthread_create(&thread[i], NULL, work, &pairs[i]));
}

static uint64_t finish(pthread_t *thread, const uint64_t *pairs)
{
    uint64_t sum = 0;
    stop = true;
    for (uint64_t i = 0; i < threads; i++) {
        CHECK(pthread_join(thread[i], NULL));
        sum += pairs[i];
    }
    return sum;
}

/* True at the end, false if a child is wanted. `left` is null for no end. */
static bool wait_for_end(const sigset_t *signals, const struct timespec *left)
{
    int number = left ? sigtimedwait(signals, NULL, left) : sigwaitinfo(signals, NULL);
    return number != SIGUSR1;
}

static void end_children(const pid_t *children, int count)
{
    for (int i = 0; i < count; i++)
        kill(children[i], SIGTERM);
    for (int i = 0; i < count; i++)
        waitpid(children[i], NULL, 0);
}

static void serve(const sigset_t *signals, const struct timespec *left, bool with_children)
{
    pthread_t thread[MAX_THREADS];
    uint64_t pairs[MAX_THREADS] = {0};
    pid_t children[MAX_CHILDREN];
    int count = 0;
    void **held = calloc(hold + 1, sizeof *held);
    CHECK(aclrtSetDevice(0));
    for (uint64_t i = 0; i < hold; i++)
        held[i] = device_alloc(size);
    start(thread, pairs);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    while (!wait_for_end(signals, left)) {
        if (!with_children || count == MAX_CHILDREN)
            continue;
        children[count] = fork();
        if (children[count++] == 0) {
            serve(signals, NULL, false);
            _exit(0);
        }
    }
    end_children(children, count);
    uint64_t sum = finish(thread, pairs);
    for (uint64_t i = 0; i < hold; i++)
        CHECK(aclrtFree(held[i]));
    CHECK(aclrtResetDevice(0));
    report("allocs", sum + hold, "frees", sum + hold, "children", (uint64_t)count, NULL);
}

int main(int argc, char **argv)
{
    uint64_t duration = option(argc, argv, "--duration-ms", 0);
    bool with_children = option_flag(argc, argv, "--children");
    struct timespec left = {(time_t)(duration / 1000), (long)(duration % 1000) * 1000000};
    sigset_t signals;
    threads = option_threads(argc, argv, 1);
    rate = option(argc, argv, "--rate", 1000);
    hold = option(argc, argv, "--hold", 100);
    size = option(argc, argv, "--size", 64 * KIB);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    serve(&signals, duration ? &left : NULL, with_children);
    return 0;
}
