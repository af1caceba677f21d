/* Writes the journal: a file per thread and library, mapped shared so that it outlives a killed process. */
#define _GNU_SOURCE
#include "journal.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Windows start on the largest page size that Linux uses on our machines. */
#define WINDOW_ALIGN (64ull << 10)
#define WINDOW_SIZE (1ull << 20)

bool journal_on;

static const char *directory;
static pthread_key_t thread_key;

static __thread struct {
    char *window;
    uint64_t window_start;
    uint64_t end; /* where the next record goes, as an offset in the file */
    uint32_t tid;
} self;

/* A journal with holes would be taken for the truth. */
static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "ascend-sim: cannot %s journal %s: %m\n", what, path);
    abort();
}

static int file_open(char path[4096])
{
    snprintf(path, 4096, "%s/%d-%u-%s.journal", directory, (int)getpid(), self.tid, JOURNAL_LIB);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        give_up("open", path);
    return fd;
}

static uint64_t file_size(int fd)
{
    struct stat st;
    return fstat(fd, &st) ? 0 : (uint64_t)st.st_size;
}

static void window_close(void)
{
    if (self.window)
        munmap(self.window, WINDOW_SIZE);
    self.window = NULL;
}

static void window_map(int fd, const char *path)
{
    self.window_start = self.end & ~(WINDOW_ALIGN - 1);
    uint64_t need = self.window_start + WINDOW_SIZE;
    if (file_size(fd) < need && ftruncate(fd, (off_t)need))
        give_up("grow", path);
    self.window = mmap(NULL, WINDOW_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)self.window_start);
    if (self.window == MAP_FAILED)
        give_up("map", path);
}

/* The descriptor is not kept: programs with many threads, or that close all files, must not feel the journal. */
static void window_move(void)
{
    char path[4096];
    window_close();
    int fd = file_open(path);
    window_map(fd, path);
    close(fd);
}

/* The file exists if the process ran another program before (exec), or had a thread of the same id. */
static uint64_t committed_end(int fd, uint64_t size)
{
    struct journal_entry entry;
    uint64_t end = 0;
    while (end + sizeof entry <= size && pread(fd, &entry, sizeof entry, (off_t)end) == (ssize_t)sizeof entry &&
           entry.flags & JOURNAL_COMMITTED)
        end += sizeof entry * (1 + journal_text_slots(entry.flags));
    return end;
}

static void thread_begin(void)
{
    char path[4096];
    self.tid = (uint32_t)syscall(SYS_gettid);
    int fd = file_open(path);
    self.end = committed_end(fd, file_size(fd));
    window_map(fd, path);
    close(fd);
    pthread_setspecific(thread_key, &self);
}

/* Cuts off the unused part. A call from a later destructor opens the file again. */
static void thread_end(void *unused)
{
    char path[4096];
    (void)unused;
    if (!self.window)
        return;
    window_close();
    int fd = file_open(path);
    if (ftruncate(fd, (off_t)self.end))
        give_up("cut", path);
    close(fd);
    memset(&self, 0, sizeof self);
}

/* The child must not write into its parent's file. */
static void forget_thread(void)
{
    window_close();
    memset(&self, 0, sizeof self);
}

__attribute__((constructor)) static void journal_start(void)
{
    directory = getenv("ASCEND_SIM_JOURNAL");
    if (!directory || !*directory || getenv("ASCEND_SIM_JOURNAL_SKIP_" JOURNAL_LIB))
        return;
    directory = strdup(directory); /* the program may change its environment */
    pthread_key_create(&thread_key, thread_end);
    pthread_atfork(NULL, NULL, forget_thread);
    journal_on = true;
    /* After an exec in the same process, nothing of what stands before this record lives on. */
    journal_add(JF_journal_load, 0, ARGS(0), 0);
}

static struct journal_entry *reserve(unsigned slots)
{
    uint64_t bytes = slots * sizeof(struct journal_entry);
    if (!self.window)
        thread_begin();
    if (self.end + bytes > self.window_start + WINDOW_SIZE)
        window_move();
    return (struct journal_entry *)(self.window + (self.end - self.window_start));
}

static uint64_t commit(struct journal_entry *entry, uint16_t func, unsigned text_slots)
{
    struct timespec now;
    uint64_t place = self.end;
    clock_gettime(CLOCK_MONOTONIC, &now);
    entry->time_ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    entry->tid = self.tid;
    entry->func = func;
    atomic_store_explicit((_Atomic uint16_t *)&entry->flags, (uint16_t)(text_slots << 8 | JOURNAL_COMMITTED),
                          memory_order_release);
    self.end += (1 + text_slots) * sizeof *entry;
    return place;
}

uint64_t journal_add(uint16_t func, int64_t ret, const uint64_t args[4], uint64_t out)
{
    struct journal_entry *entry = reserve(1);
    entry->ret = ret;
    memcpy(entry->args, args, sizeof entry->args);
    entry->out = out;
    return commit(entry, func, 0);
}

uint64_t journal_add_bytes(uint16_t func, int64_t ret, const uint64_t args[4], uint64_t out, const void *bytes,
                           uint64_t length)
{
    uint64_t kept = length < JOURNAL_TEXT_MAX ? length : JOURNAL_TEXT_MAX;
    unsigned slots = (unsigned)((kept + sizeof(struct journal_entry) - 1) / sizeof(struct journal_entry));
    struct journal_entry *entry = reserve(1 + slots);
    entry->ret = ret;
    memcpy(entry->args, args, sizeof entry->args);
    entry->args[3] = bytes ? length : JOURNAL_TEXT_NULL;
    entry->out = out;
    if (kept)
        memcpy(entry + 1, bytes, kept);
    return commit(entry, func, slots);
}

uint64_t journal_add_text(uint16_t func, int64_t ret, const uint64_t args[4], uint64_t out, const char *text)
{
    return journal_add_bytes(func, ret, args, out, text, text ? strlen(text) : 0);
}

/* The window may have moved on since the entry; then the file is written instead. */
static void settle_in_file(uint64_t place, int64_t ret, uint64_t out)
{
    char path[4096];
    int fd = file_open(path);
    if (pwrite(fd, &out, sizeof out, (off_t)(place + offsetof(struct journal_entry, out))) != (ssize_t)sizeof out ||
        pwrite(fd, &ret, sizeof ret, (off_t)(place + offsetof(struct journal_entry, ret))) != (ssize_t)sizeof ret)
        give_up("write", path);
    close(fd);
}

void journal_settle(uint64_t place, int64_t ret, uint64_t out)
{
    if (!self.window || place < self.window_start) {
        settle_in_file(place, ret, out);
        return;
    }
    struct journal_entry *entry = (struct journal_entry *)(self.window + (place - self.window_start));
    entry->out = out;
    entry->ret = ret;
}
