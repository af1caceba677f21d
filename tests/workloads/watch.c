/* Operators of ATB that launch kernels, one of which writes where it should not. The watched block is the output of `start`.
 *   watch [--rounds 6] [--bad 3] [--threads 1] [--size 4096] [--gap-us 0] [--warm 20000] [--registers 0] [--deny errno] [--handler 1] [--abi 0]
 * Round: op0 … op7, each with a kernel of its own name; op5 of round `bad` also writes into the watched block. At the end the bytes of
 * the block, all the same, are printed, what an operator took, and what must not have happened meanwhile: interrupted calls, changed
 * registers. */
#define _GNU_SOURCE
#include "atb_library.h"
#include "../ascend-sim/src/device.h"
#include "registers.h"
#include "runtime/rt.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define OPS 8
static char stubs[OPS + 1];
static const char *const NAMES[OPS + 1] = {"op0", "op1", "op2", "op3", "op4", "op5", "op6", "op7", "spoil"};
static char *block;
static uint64_t size, rounds, bad, gap_us;
static simatb_run_func *run;
static volatile bool over;
static volatile long interrupted;
static volatile sig_atomic_t urgent, enough;

static void launch(int op, char *to, uint64_t len, uint64_t value)
{
    struct sim_fill fill = {SIM_FILL, to, len, value};
    CHECK(rtKernelLaunch(&stubs[op], 1, &fill, sizeof fill, NULL, NULL));
}

struct part {
    int op;
    bool spoils;
    char *own;
};

/* What an operation does on the device. */
static void kernels(void *argument)
{
    const struct part *part = argument;
    launch(part->op, part->own, 512, (uint64_t)part->op + 1);
    if (part->spoils)
        launch(OPS, block + 64, 64, 0xee);
}

static void operation(const char *name, const struct part *part, char *data, uint64_t output_size)
{
    struct simatb_request request = {.name = name, .data = data, .outputs = 1, .output_size = output_size, .kernels = kernels, .argument = (void *)part};
    CHECK(run(&request));
}

static void *work(void *argument)
{
    uint64_t thread = (uint64_t)argument;
    CHECK(aclrtSetDevice(0));
    char *own = device_alloc(4096);
    for (uint64_t round = 0; round < rounds; round++)
        for (int op = 0; op < OPS; op++) {
            struct part part = {op, thread == 0 && op == 5 && round == bad, own};
            errno = 77;
            operation(NAMES[op], &part, own, 512);
            if (errno != 77)
                interrupted += 1000000;
            if (gap_us)
                usleep((useconds_t)gap_us);
        }
    return NULL;
}

static void *poll_nothing(void *unused)
{
    struct epoll_event event;
    int fd = epoll_create1(0);
    while (!over) {
        struct timespec nap = {0, 5000000};
        if (epoll_wait(fd, &event, 1, 20) < 0 && errno == EINTR)
            interrupted++;
        if (nanosleep(&nap, NULL) && errno == EINTR)
            interrupted++;
    }
    return unused;
}

static void deny(unsigned number, unsigned action)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static bool is_watched(void)
{
    struct sigaction action;
    return !sigaction(SIGURG, NULL, &action) && action.sa_handler != SIG_DFL;
}

static void on_enough(int number)
{
    (void)number;
    enough = 1;
}

static void on_urgent(int number)
{
    (void)number;
    urgent++;
}

int main(int argc, char **argv)
{
    rtDevBinary_t binary = {.magic = RT_DEV_BINARY_MAGIC_ELF, .data = "\177ELF", .length = 4};
    void *handle;
    pthread_t threads[MAX_THREADS], poller;
    const char *denied = option_text(argc, argv, "--deny");
    uint64_t count = option(argc, argv, "--threads", 1);
    rounds = option(argc, argv, "--rounds", 6);
    bad = option(argc, argv, "--bad", 3);
    size = option(argc, argv, "--size", 4096);
    gap_us = option(argc, argv, "--gap-us", 0);
    run = load_atb(option(argc, argv, "--abi", 0));
    CHECK(count > MAX_THREADS);
    if (option(argc, argv, "--handler", 0))
        signal(SIGURG, on_urgent);
    if (denied)
        deny(SYS_memfd_create, strcmp(denied, "kill") ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS);
    acl_begin(0);
    CHECK(rtDevBinaryRegister(&binary, &handle));
    for (int op = 0; op <= OPS; op++)
        CHECK(rtFunctionRegister(handle, &stubs[op], NAMES[op], NAMES[op], 0));
    block = device_alloc(size);
    /* Now: a program that is traced from its start is stopped when it maps a library. */
    uint64_t checks = option(argc, argv, "--registers", 0), damaged = 0;
    void *chip = checks ? dlopen("libruntime_v100.so", RTLD_NOW) : NULL;
    /* No signal of ours interrupts it. */
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    signal(SIGUSR1, on_enough);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    CHECK(pthread_create(&poller, NULL, poll_nothing, NULL));
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    printf("ready %d\nblock %p\n", getpid(), (void *)block);
    fflush(stdout);
    /* Until a watch, if there is one, is in place: some time after its handler is there, or as often as said, or until SIGUSR1. */
    char *warm = device_alloc(4096);
    for (int i = 0, last = (int)option(argc, argv, "--warm", 20000); i < last && !enough; i++) {
        if (last == 20000 && is_watched())
            last = i + 100;
        operation("warm", &(struct part){0, false, warm}, warm, 512);
        usleep(2000);
    }
    operation("start", &(struct part){1, false, warm}, block, size);
    for (uint64_t i = 1; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i));
    struct timespec begin, end;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &begin));
    work(NULL);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &end));
    if (rounds)
        printf("operator: %llu ns\n", (unsigned long long)((end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec) / (rounds * OPS));
    if (checks) {
        void (*quiet)(void) = (void (*)(void))dlsym(chip, "rtKernelLaunch");
        for (uint64_t i = 0; i < checks; i++)
            damaged += check_registers(quiet);
        printf("registers: %llu damaged of %llu\n", (unsigned long long)damaged, (unsigned long long)checks);
    }
    for (uint64_t i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
    operation("end", &(struct part){2, false, warm}, warm, 512);
    CHECK(aclrtSynchronizeDevice());
    over = true;
    pthread_join(poller, NULL);
    unsigned char bytes[128];
    CHECK(aclrtMemcpy(bytes, sizeof bytes, block, sizeof bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("done: byte 0 is %u, byte 64 is %u; interrupted %ld; urgent %d\n", bytes[0], bytes[64], interrupted, (int)urgent);
    return 0;
}
