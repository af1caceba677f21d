/* Loads libraries, and says what that took by the clock.
 *   loads FOLDER [--files 40] [--again 400]
 * libascendcl.so, which the loader looks for; then FOLDER/0.so, FOLDER/1.so … once each, by their paths; then the first of them again and
 * again. Each is unloaded at once. A thread waits meanwhile for something that does not come, and says how often that was interrupted. */
#include "common.h"
#include <dlfcn.h>
#include <errno.h>
#include <sys/epoll.h>

static volatile bool over;
static volatile long interrupted;

static void *wait_for_nothing(void *unused)
{
    struct epoll_event event;
    int fd = epoll_create1(0);
    while (!over)
        if (epoll_wait(fd, &event, 1, 20) < 0 && errno == EINTR)
            interrupted++;
    close(fd);
    return unused;
}

/* Nanoseconds by the clock. */
static double load(const char *path)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    CHECK(dlclose(library));
    return (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
}

int main(int argc, char **argv)
{
    uint64_t files = option(argc, argv, "--files", 40), again = option(argc, argv, "--again", 400);
    pthread_t waiter;
    char path[4096];
    double first_ns = 0, again_ns = 0;
    if (argc < 2 || !files || !again)
        usage_error("usage:", "loads FOLDER [--files 40] [--again 400]");
    CHECK(pthread_create(&waiter, NULL, wait_for_nothing, NULL));
    double found_ns = load("libascendcl.so");
    for (uint64_t i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/%llu.so", argv[1], (unsigned long long)i);
        first_ns += load(path);
    }
    snprintf(path, sizeof path, "%s/0.so", argv[1]);
    for (uint64_t i = 0; i < again; i++)
        again_ns += load(path);
    over = true;
    pthread_join(waiter, NULL);
    printf("found: %.0f ns\nfirst: %.0f ns\nagain: %.0f ns\ninterrupted: %ld\n", found_ns, first_ns / (double)files, again_ns / (double)again, interrupted);
    return 0;
}
