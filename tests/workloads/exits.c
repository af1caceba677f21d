/* Allocates and ends in a given way. The line comes before the end.
 *   exits --how return|exit|_exit|abort|kill9|segv|thread [--blocks 10] [--size 65536]
 * thread: the main thread ends first; another allocates as many blocks again, then the process ends with it. */
#include "common.h"
#include <signal.h>

static uint64_t blocks, size;
static volatile int *volatile nowhere = (volatile int *)8;

static void allocate(void)
{
    for (uint64_t i = 0; i < blocks; i++)
        device_alloc(size);
}

static void *outlive(void *unused)
{
    (void)unused;
    sleep_ms(100);
    CHECK(aclrtSetDevice(0));
    allocate();
    return NULL;
}

static void end_as(const char *how)
{
    pthread_t other;
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "kill9"))
        kill(getpid(), SIGKILL);
    if (!strcmp(how, "segv")) {
        signal(SIGSEGV, SIG_DFL);
        *nowhere = 0;
    }
    if (!strcmp(how, "thread")) {
        CHECK(pthread_create(&other, NULL, outlive, NULL));
        pthread_exit(NULL);
    }
    if (strcmp(how, "return"))
        usage_error("unknown end", how);
}

int main(int argc, char **argv)
{
    const char *how = option_text(argc, argv, "--how");
    blocks = option(argc, argv, "--blocks", 10);
    size = option(argc, argv, "--size", 64 * KIB);
    if (!how)
        usage_error("needs", "--how");
    acl_begin(0);
    allocate();
    report("allocs", strcmp(how, "thread") ? blocks : 2 * blocks, "frees", (uint64_t)0, NULL);
    end_as(how);
    return 0;
}
