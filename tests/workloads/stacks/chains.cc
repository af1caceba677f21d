// Allocates from call chains of all kinds, and says from where, as the unwinder of the compiler's own library sees it.
//   chains [wait] [pause] [parked] CASE...
// Each block has a size of its own. For each a line: stack <pid> <size> <case> <address>...
// The first address lies in `allocate`, the others are return addresses.
// `wait` waits for a byte in the pipe `go`, which lies in the working directory.
// `parked`: the first calls of each case wait for that in `park`, so that a debugger can look: parked <tid> <size> at <number>
extern "C" {
#include "ascend_hal.h"
}
#include "callers.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#if defined __clang__
#define KEEP __attribute__((noinline))
#else
#define KEEP __attribute__((noinline, noclone))
#endif
/* Not a tail call. */
#define AFTER __asm__ volatile("" ::: "memory")

static const char *now = "none";
static uint64_t blocks;
static bool says = true, calls = true;
static unsigned pause_us;
enum { PARKS = 2, STEPS_PARKED = 24 };
static bool may_park;
static int parks_left;

/* A page of the stack that cannot be read while the driver is called. */
static char *gone;
static const size_t page = (size_t)sysconf(_SC_PAGESIZE);

__attribute__((always_inline)) static inline void wait_for_go(void)
{
    static int go = open("go", O_RDWR);
    char byte;
    alarm(300); /* No reader comes. */
    if (read(go, &byte, 1) != 1) {
        fprintf(stderr, "nobody to wait for\n");
        exit(1);
    }
    alarm(0);
}

static void protect(int how)
{
    if (gone && mprotect(gone, page, how))
        abort();
}

/* Takes the size as a pointer: what it is called with is looked for in traces. */
extern "C" KEEP void park(const void *size)
{
    static int parks;
    dprintf(1, "parked %ld %llu at %d\n", (long)syscall(SYS_gettid), (unsigned long long)(uintptr_t)size, ++parks);
    wait_for_go();
}

static void say(uint64_t size, void **frames, int count)
{
    static char line[32768];
    int at = snprintf(line, sizeof line, "stack %d %llu %s", (int)getpid(), (unsigned long long)size, now);
    for (int i = 0; i < count; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, " %p", frames[i]);
    line[at++] = '\n';
    if (write(1, line, (size_t)at) != at)
        abort();
}

extern "C" KEEP void allocate(void)
{
    static void *frames[1100];
    void *block;
    uint64_t size = 4096 * ++blocks;
    uint64_t flag = MEM_DEV | MEM_TYPE_HBM | MEM_SET_ALIGN_SIZE(9) | (uint64_t)MODULE_HCCL << MEM_MODULE_ID_BIT;
    if (says)
        say(size, frames, callers(frames, 1100));
    if (!calls)
        return;
    protect(PROT_NONE);
    bool failed = halMemAlloc(&block, size, flag) || halMemFree(block);
    protect(PROT_READ | PROT_WRITE);
    if (failed) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    if (parks_left > 0 && parks_left--)
        park((const void *)size);
    if (pause_us)
        usleep(pause_us);
}

enum { NARROW = 120, WIDE = 3000 };

template <int ROOM> KEEP static int recurse(int depth, volatile char *from)
{
    volatile char room[ROOM];
    room[0] = from[0];
    if (depth)
        return recurse<ROOM>(depth - 1, room) + room[0];
    allocate();
    return room[0];
}

/* A stack of its own for each path: the two calls are not made one. */
KEEP static void branch(unsigned path, int depth)
{
    if (!depth) {
        allocate();
        AFTER;
    } else if (path & 1) {
        branch(path >> 1, depth - 1);
        __asm__ volatile("" : : "i"(1));
    } else {
        branch(path >> 1, depth - 1);
        __asm__ volatile("" : : "i"(2));
    }
}

KEEP static void with_alloca(size_t len)
{
    volatile char *room = (volatile char *)__builtin_alloca(len);
    for (size_t at = 0; at < len; at++)
        room[at] = 1;
    allocate();
    room[len - 1] = 1;
}

/* Leaves pages of the stack unwritten, so they are not in memory. */
KEEP static void with_hole(void)
{
    volatile char room[48 << 10];
    room[0] = 1;
    allocate();
    room[sizeof room - 1] = 1;
}

/* More aligned than the stack is, and of unknown size besides: the frame is found by what was stored, not by a register. */
KEEP static void realigned(size_t len, int a, int b, int c, int d, int e, long on_stack)
{
    alignas(64) volatile char room[128];
    volatile char *more = (volatile char *)__builtin_alloca(len);
    room[0] = (char)(a + b + c + d + e + on_stack);
    more[0] = 1;
    allocate();
    more[len - 1] = room[0];
}

struct Local {
    KEEP ~Local() { allocate(); }
};

KEEP static void thrower(int depth)
{
    Local local;
    if (depth)
        thrower(depth - 1);
    else
        throw std::string("thrown");
    AFTER;
}

KEEP static void catcher(void)
{
    try {
        thrower(2);
    } catch (const std::string &) {
        allocate();
    }
}

KEEP static int compare(const void *a, const void *b)
{
    static int calls;
    if (!calls++)
        allocate();
    return *(const int *)a - *(const int *)b;
}

struct Base {
    virtual void run(const std::function<void()> &) = 0;
    virtual ~Base() = default;
};
struct Derived : Base {
    KEEP void run(const std::function<void()> &what) override
    {
        what();
        AFTER;
    }
};

static void on_signal(int)
{
    allocate();
}

/* The first instruction reads what is not there. */
extern "C" int faults_at_once(const volatile int *from);
#if defined __x86_64__
__asm__(".text\n.type faults_at_once,@function\nfaults_at_once:\n.cfi_startproc\nmov (%rdi),%eax\nret\n.cfi_endproc\n"
        ".size faults_at_once,.-faults_at_once\n");
enum { FAULT_LEN = 2 };
static void skip(ucontext_t *context)
{
    context->uc_mcontext.gregs[REG_RIP] += FAULT_LEN;
}
#elif defined __aarch64__
__asm__(".text\n.type faults_at_once,%function\nfaults_at_once:\n.cfi_startproc\nldr w0,[x0]\nret\n.cfi_endproc\n"
        ".size faults_at_once,.-faults_at_once\n");
static void skip(ucontext_t *context)
{
    context->uc_mcontext.pc += 4;
}
#endif

static void on_fault(int, siginfo_t *, void *context)
{
    allocate();
    skip((ucontext_t *)context);
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    if (sigaction(signal, &action, nullptr))
        abort();
}

KEEP static void fault(void)
{
    volatile int got = faults_at_once(nullptr);
    (void)got;
}

static void *thread(void *)
{
    recurse<NARROW>(3, (volatile char *)"x");
    return nullptr;
}

/* Code without unwind information: push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret */
static void made_at_run_time(void)
{
#if defined __x86_64__
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
#elif defined __aarch64__
    static const uint32_t code[] = {0xa9bf7bfd, 0x910003fd, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0};
#endif
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    __builtin___clear_cache((char *)page, (char *)page + sizeof code);
    printf("made %p\n", page);
    fflush(stdout);
    ((void (*)(void (*)(void)))page)(allocate);
    AFTER;
}

#if defined __x86_64__
enum { TRAP_FLAG = 0x100, MOST_STEPS = 400 };
static volatile int steps_left;

static void on_step(int, siginfo_t *, void *context)
{
    if (steps_left > 0 && steps_left--)
        allocate();
    else
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

/* A stack at every instruction: prologues, epilogues, the linkage table, the loader as it binds. */
KEEP static void stepped(void)
{
    volatile long sum = 0;
    handle(SIGTRAP, on_step, 0);
    steps_left = MOST_STEPS;
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | TRAP_FLAG);
    sum += labs(-(long)getppid()) + (long)getpid() + (long)getuid();
    /* Reading and writing the flags here would move the stack, which unwind information does not show. */
    steps_left = 0;
    (void)sum;
}
#else
static void stepped(void) {}
#endif

#ifdef WITHOUT_LOADER
static void plugin(const std::string &) {}
#else
typedef void (*Plugin)(void (*)(void));

static void plugin(const std::string &name)
{
    void *library = dlopen(name.c_str(), RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    ((Plugin)dlsym(library, "run"))(allocate);
    dlclose(library);
}
#endif

/* Two libraries with code at the same places and other frames, in turn at the same address. */
static void plugins(const std::string &folder, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        plugin(folder + "/libframes_a.so");
        plugin(folder + "/libframes_b.so");
    }
}

/* Parent and child load different libraries, which get the same address: what the simulation maps again in a child is mapped
 * before, in the place of what it has unmapped. */
static void forked(const std::string &folder)
{
    allocate();
    pid_t child = fork();
    allocate();
    plugin(folder + (child ? "/libframes_a.so" : "/libframes_b.so"));
    if (!child)
        _exit(0);
    int status;
    if (waitpid(child, &status, 0) != child || status)
        exit(1);
}

/* First all calls are said, then they are made N times, as fast as can be; before each of the first M times a byte is written. */
static void burst(unsigned rounds, unsigned paths, int ready, unsigned bytes)
{
    for (unsigned round = 0; round <= rounds; round++) {
        says = round == 0;
        calls = round != 0;
        if (round != 0 && round <= bytes && write(ready, "r", 1) != 1)
            abort();
        blocks = 0;
        for (unsigned path = 0; path < paths; path++)
            branch(path, 12);
    }
}

/* Ends while it calls: at its first ones, or behind some. */
static void killed(unsigned after_us, unsigned bytes)
{
    int ends[2];
    char byte;
    if (pipe(ends))
        exit(1);
    pid_t child = fork();
    if (!child)
        burst(~0u - 1, 16, ends[1], bytes);
    for (unsigned i = 0; i < bytes; i++)
        if (read(ends[0], &byte, 1) != 1)
            exit(1);
    if (close(ends[0]) || close(ends[1]))
        exit(1);
    usleep(after_us);
    int status;
    if (kill(child, SIGKILL) || waitpid(child, &status, 0) != child)
        exit(1);
}

int main(int argc, char **argv)
{
    std::string folder = argv[0];
    folder = folder.substr(0, folder.rfind('/')) + "/../lib/stacks";
    void *frames[4];
    callers(frames, 4); /* loads what it needs */
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        now = argv[i];
        parks_left = !may_park ? 0 : name == "stepped" ? STEPS_PARKED : PARKS;
        if (name == "pause") {
            pause_us = 120000;
        } else if (name == "wait") {
            dprintf(1, "waits\n");
            wait_for_go();
        } else if (name == "parked") {
            may_park = true;
        } else if (name == "recurse") {
            for (int round = 0; round < 3; round++)
                recurse<NARROW>(30, (volatile char *)"x");
        } else if (name == "deep") {
            recurse<NARROW>(600, (volatile char *)"x");
        } else if (name == "alloca") {
            for (size_t len = 100; len < 40000; len *= 3)
                with_alloca(len);
        } else if (name == "hole") {
            for (int round = 0; round < 12; round++)
                with_hole();
        } else if (name == "gone") {
            /* Where the middle of the callers will be; then it is back. */
            /* A hundred of them reach over pages of up to 64 KiB. */
            auto *callers = page > 4096 ? recurse<WIDE> : recurse<NARROW>;
            gone = (char *)(((uintptr_t)__builtin_frame_address(0) - 2 * page) & ~(uintptr_t)(page - 1));
            for (int round = 0; round < 3; round++)
                callers(100, (volatile char *)"x");
            gone = nullptr;
            /* Where our own callers are further up than what is copied of a stack, each round finds one more rule that is needed. */
            for (int round = 0; round < 6; round++)
                callers(100, (volatile char *)"x");
        } else if (name == "burst") {
            burst(4, 4096, -1, 0);
        } else if (name == "killed") {
            for (int round = 0; round < 20; round++)
                killed(500 * round, 1 + round % 2);
        } else if (name == "realigned") {
            for (size_t len = 100; len < 40000; len *= 3)
                realigned(len, 1, 2, 3, 4, 5, 6);
        } else if (name == "exceptions") {
            catcher();
            catcher();
        } else if (name == "callbacks") {
            int numbers[] = {3, 1, 2};
            qsort(numbers, 3, sizeof numbers[0], compare);
            Derived derived;
            Base *base = &derived;
            base->run([] { allocate(); AFTER; });
        } else if (name == "signal") {
            signal(SIGUSR1, on_signal);
            raise(SIGUSR1);
            raise(SIGUSR1);
        } else if (name == "fault") {
            handle(SIGSEGV, on_fault, 0);
            fault();
            fault();
        } else if (name == "altstack") {
            stack_t stack = {};
            stack.ss_size = 1 << 17;
            stack.ss_sp = malloc(stack.ss_size);
            sigaltstack(&stack, nullptr);
            handle(SIGSEGV, on_fault, SA_ONSTACK);
            fault();
            fault();
        } else if (name == "thread") {
            for (int round = 0; round < 2; round++) {
                pthread_t id;
                pthread_create(&id, nullptr, thread, nullptr);
                pthread_join(id, nullptr);
            }
        } else if (name == "made") {
            made_at_run_time();
            made_at_run_time();
        } else if (name == "stepped") {
            /* From one place, so that nothing is new the last time. */
            for (int round = 0; round < (may_park ? 1 : 3); round++) {
                now = round < 2 ? "stepped" : "again";
                stepped();
                usleep(500000);
            }
        } else if (name == "plugins") {
            plugins(folder, 10);
        } else if (name == "forked") {
            forked(folder);
        } else if (name == "repeat") {
            for (int round = 0; round < 200; round++) {
                recurse<NARROW>(40, (volatile char *)"x");
                pause_us = round < 2 ? pause_us : 0;
            }
        } else {
            fprintf(stderr, "no case %s\n", argv[i]);
            return 2;
        }
    }
    return 0;
}
