/* A big process, as servers are: many threads, libraries and mappings.
 *   crowd [--threads 100] [--libraries FOLDER] [--map-gib 0] [--hold]
 * Loads each file of the folder, and maps so much memory, of which each page has been read.
 * --hold: when all is set up, prints "ready <pid>"; then waits for SIGUSR1.
 * Then each thread allocates a block of the driver's, and frees it unless its number is a multiple of 10; prints "done", and waits for
 * SIGTERM with all threads and the blocks that are left. Without --hold it goes on at once, and frees them before it ends. */
#include "ascend_hal.h"
#include "common.h"
#include "hold.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sys/mman.h>

#define MOST 20000
#define STACK (64 * KIB)
#define GIB (1ull << 30)

static pthread_barrier_t set_up, begin, over, end;
static void *kept[MOST];

static void *one(void *number)
{
    uint64_t mine = (uint64_t)(uintptr_t)number;
    uint64_t flag = MEM_DEV | MEM_TYPE_HBM | MEM_SET_ALIGN_SIZE(9) | (uint64_t)MODULE_HCCL << MEM_MODULE_ID_BIT;
    pthread_barrier_wait(&set_up);
    pthread_barrier_wait(&begin);
    CHECK(halMemAlloc(&kept[mine], 4096, flag));
    if (mine % 10) {
        CHECK(halMemFree(kept[mine]));
        kept[mine] = NULL;
    }
    pthread_barrier_wait(&over);
    pthread_barrier_wait(&end);
    return NULL;
}

static uint64_t load_all(const char *folder)
{
    DIR *files = folder ? opendir(folder) : NULL;
    uint64_t count = 0;
    if (folder && !files)
        usage_error("cannot read", folder);
    for (struct dirent *file; files && (file = readdir(files));) {
        char path[4096];
        if (!strstr(file->d_name, ".so"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
        if (!dlopen(path, RTLD_NOW)) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        count++;
    }
    if (files)
        closedir(files);
    return count;
}

/* Pages that were read alone are there, and take no memory: all of them are the kernel's page of zeros. */
static void map_gib(uint64_t gib)
{
    volatile unsigned char sum = 0;
    for (uint64_t i = 0; i < gib; i++) {
        unsigned char *memory = mmap(NULL, GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            usage_error("cannot map", "--map-gib");
        for (uint64_t at = 0; at < GIB; at += 4 * KIB)
            sum = (unsigned char)(sum + memory[at]);
    }
}

int main(int argc, char **argv)
{
    static pthread_t threads[MOST];
    uint64_t count = option(argc, argv, "--threads", 100), libraries, left = 0;
    bool hold = option_flag(argc, argv, "--hold");
    pthread_attr_t attributes;
    if (count < 1 || count > MOST)
        usage_error("out of range:", "--threads");
    hold_begin(hold);
    acl_begin(0);
    libraries = load_all(option_text(argc, argv, "--libraries"));
    map_gib(option(argc, argv, "--map-gib", 0));
    for (pthread_barrier_t **each = (pthread_barrier_t *[]){&set_up, &begin, &over, &end, NULL}; *each; each++)
        CHECK(pthread_barrier_init(*each, NULL, (unsigned)count + 1));
    CHECK(pthread_attr_init(&attributes));
    CHECK(pthread_attr_setstacksize(&attributes, STACK));
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], &attributes, one, (void *)(uintptr_t)i));
    pthread_barrier_wait(&set_up);
    hold_ready(hold);
    hold_until(hold, SIGUSR1);
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&over);
    if (hold) {
        printf("done\n");
        fflush(stdout);
    }
    hold_until(hold, SIGTERM);
    pthread_barrier_wait(&end);
    for (uint64_t i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL));
    for (uint64_t i = 0; i < count; i++)
        if (kept[i]) {
            CHECK(halMemFree(kept[i]));
            left++;
        }
    acl_end(0);
    report("threads", count, "libraries", libraries, "left", left, (char *)NULL);
    return 0;
}
