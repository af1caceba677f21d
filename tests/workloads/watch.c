/* Operators that launch kernels, one of which writes where it should not. The watched block is the output of `start`, an operation of ATB.
 *   watch [--rounds 6] [--bad 3] [--threads 1] [--size 4096] [--gap-us 0] [--warm 20000] [--registers 0] [--deny errno] [--handler 1] [--abi 0]
 *         [--aclnn 1] [--storm 1] [--inside 1] [--hold 1] [--lost-device 1] [--block 300] [--free 2] [--reuse 1] [--again 1] [--take handler|ignore] [--fail wait|copy] [--exec 1|2] [--fork 1] [--guard 1]
 * With `--exec 2` the program that is run has a handler of its own; with `--guard` it puts one up whenever it is traced, before `start`.
 * Behind round `again`, `start` writes its output again.
 * Round: op0 … op7, each with a kernel of its own name; op5 of round `bad` also writes into the watched block. At the end the bytes of
 * the block, all the same, are printed, what an operator took, how often the thread waited meanwhile, and what must not have happened meanwhile: interrupted calls, changed
 * registers. */
#define _GNU_SOURCE
#include "atb_library.h"
#include "../ascend-sim/src/device.h"
#include "registers.h"
#include "runtime/rt.h"
#include "simopapi.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define OPS 8
static char stubs[OPS + 1];
static const char *const NAMES[OPS + 1] = {"op0", "op1", "op2", "op3", "op4", "op5", "op6", "op7", "spoil"};
static const char *const ACLNN[OPS] = {"aclnnAdd", "aclnnSub", "aclnnMul", "aclnnDiv", "aclnnNeg", "aclnnExp", "aclnnAbs", "aclnnCos"};
static simopapi_phase_two *aclnn[OPS];
static simopapi_executor_func *executor;
static char *block, *warm;
static uint64_t size, rounds, bad, gap_us, free_round, again_round;
static bool with_aclnn, with_inside, with_hold, lost_device, with_reuse;
static const char *failing, *taking;
static simatb_run_func *run;
static volatile bool over;
static volatile long interrupted;
static volatile sig_atomic_t urgent, enough, handled;
static uint64_t sent;
static pid_t main_thread;

static void launch(int op, char *to, uint64_t len, uint64_t value)
{
    struct sim_fill fill = {SIM_FILL, to, len, value};
    CHECK(rtKernelLaunch(&stubs[op], 1, &fill, sizeof fill, NULL, NULL));
}

/* What an operation does on the device: nothing, if its number is below 0. */
struct part {
    int op;
    bool spoils;
    char *own;
};

static void kernels(void *argument)
{
    const struct part *part = argument;
    if (part->op < 0)
        return;
    launch(part->op, part->own, 512, (uint64_t)part->op + 1);
    if (part->spoils)
        launch(OPS, block + 64, 64, 0xee);
}

static void operation(const char *name, const struct part *part, char *data, uint64_t output_size)
{
    struct simatb_request request = {.name = name, .data = data, .outputs = 1, .output_size = output_size, .kernels = kernels, .argument = (void *)part};
    CHECK(run(&request));
}

static void quiet_operation(void *name)
{
    operation(name, &(struct part){-1, false, NULL}, warm, 512);
}

/* An operation while the runtime's lock is held, by this thread. */
static void operation_inside(void)
{
    void *other;
    sim_inside_runtime(quiet_operation, "inside");
    CHECK(rtMalloc(&other, 512, RT_MEMORY_DEFAULT, 0));
    CHECK(rtFree(other));
}

static void nap(void *unused)
{
    (void)unused;
    usleep(20000);
}

/* Holds the runtime's lock again and again. */
static void *hold(void *unused)
{
    CHECK(aclrtSetDevice(0));
    while (!over) {
        void *other;
        sim_inside_runtime(nap, NULL);
        CHECK(rtMalloc(&other, 512, RT_MEMORY_DEFAULT, 0));
        CHECK(rtFree(other));
        usleep(1000);
    }
    return unused;
}

static void on_urgent(int number);

/* Another block at the same place, with other bytes. */
static void reuse(void)
{
    char *again = device_alloc(size);
    CHECK(again != block);
    launch(OPS, again, size, 0x55);
    CHECK(aclrtSynchronizeDevice());
    printf("reused %p\n", (void *)again);
}

static void after_operator(uint64_t round, int op)
{
    if (op == 2 && round == free_round) {
        CHECK(aclrtFree(block));
        if (with_reuse)
            reuse();
    }
    if (op == OPS - 1 && round == again_round)
        operation("start", &(struct part){3, false, block}, block, size);
    if (op == 3 && round == 2 && taking)
        signal(SIGURG, strcmp(taking, "ignore") ? on_urgent : SIG_IGN);
    if (op == 6 && round == 1 && failing)
        sim_device_fails(strcmp(failing, "wait") ? 0 : 507899, strcmp(failing, "copy") ? 0 : 507899);
    if (op == 3 && with_inside)
        operation_inside();
    if (gap_us)
        usleep((useconds_t)gap_us);
}

static void *work(void *argument)
{
    uint64_t thread = (uint64_t)argument;
    bool is_lost = thread && lost_device;
    if (!is_lost)
        CHECK(aclrtSetDevice(0));
    char *own = is_lost ? NULL : device_alloc(4096);
    for (uint64_t round = 0; round < rounds; round++)
        for (int op = 0; op < OPS; op++) {
            struct part part = {is_lost ? -1 : op, thread == 0 && op == 5 && round == bad, own};
            errno = 77;
            if (with_aclnn)
                CHECK(aclnn[op](NULL, 0, executor(kernels, &part), NULL));
            else
                operation(NAMES[op], &part, is_lost ? warm : own, 512);
            if (errno != 77)
                interrupted += 1000000;
            if (!thread)
                after_operator(round, op);
        }
    return NULL;
}

static void *poll_nothing(void *unused)
{
    struct epoll_event event;
    uint32_t word = 0;
    int fd = epoll_create1(0);
    while (!over) {
        struct timespec nap = {0, 5000000};
        if (epoll_wait(fd, &event, 1, 20) < 0 && errno == EINTR)
            interrupted++;
        if (nanosleep(&nap, NULL) && errno == EINTR)
            interrupted++;
        if (syscall(SYS_futex, &word, FUTEX_WAIT, 0, &nap, NULL, 0) < 0 && errno == EINTR)
            interrupted++;
    }
    return unused;
}

/* Signals to the main thread, one after the other, each once the one before it was handled; and between them one without a handler. */
static void *storm(void *unused)
{
    static const int numbers[] = {SIGUSR2, SIGPROF, SIGINT};
    for (uint64_t i = 0; !over; i++) {
        sent++;
        syscall(SYS_tgkill, getpid(), main_thread, numbers[i % 3]);
        while (handled < (sig_atomic_t)sent && !over)
            usleep(50);
        syscall(SYS_tgkill, getpid(), main_thread, SIGURG);
        usleep(200);
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

static bool has_handler(void (*handler)(int))
{
    struct sigaction action;
    return !sigaction(SIGURG, NULL, &action) && action.sa_handler == handler;
}

static bool is_watched(void)
{
    return !has_handler(SIG_DFL);
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

static void on_storm(int number)
{
    (void)number;
    handled++;
}

static bool is_traced(void)
{
    char line[256];
    int tracer = 0;
    FILE *status = fopen("/proc/thread-self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "TracerPid: %d", &tracer) == 1)
            break;
    if (status)
        fclose(status);
    return tracer != 0;
}

/* The program has a handler of its own as long as it is traced. Gives whether it was taken away. */
static bool guard(void)
{
    static bool is_mine;
    bool was_mine = is_mine, is_lost = is_mine && !has_handler(on_urgent);
    is_mine = is_traced();
    if (is_mine != was_mine && !is_lost) {
        signal(SIGURG, is_mine ? on_urgent : SIG_DFL);
        if (is_mine)
            printf("traced\n");
        fflush(stdout);
    }
    return is_lost;
}

/* A child that has what its parent had mapped, and works with it. */
static void fork_and_work(void)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 200; i++) {
            quiet_operation("child");
            usleep(2000);
        }
        _exit(0);
    }
    CHECK(child < 0 || waitpid(child, &status, 0) < 0);
    printf("child ended with %d\n", status);
}

static void set_signals(int how, int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    CHECK(pthread_sigmask(how, &set, NULL));
}

static void load_operators(void)
{
    void *library = load_beside("libopapi.so");
    for (int op = 0; op < OPS; op++)
        aclnn[op] = (simopapi_phase_two *)dlsym(library, ACLNN[op]);
    executor = (simopapi_executor_func *)dlsym(library, "simopapi_executor");
    CHECK(!executor || !aclnn[OPS - 1]);
}

int main(int argc, char **argv)
{
    rtDevBinary_t binary = {.magic = RT_DEV_BINARY_MAGIC_ELF, .data = "\177ELF", .length = 4};
    void *handle;
    pthread_t threads[MAX_THREADS], poller, stormer, holder;
    const char *denied = option_text(argc, argv, "--deny");
    uint64_t count = option(argc, argv, "--threads", 1);
    rounds = option(argc, argv, "--rounds", 6);
    bad = option(argc, argv, "--bad", 3);
    size = option(argc, argv, "--size", 4096);
    gap_us = option(argc, argv, "--gap-us", 0);
    free_round = option(argc, argv, "--free", UINT64_MAX);
    again_round = option(argc, argv, "--again", UINT64_MAX);
    failing = option_text(argc, argv, "--fail");
    taking = option_text(argc, argv, "--take");
    with_reuse = option(argc, argv, "--reuse", 0);
    with_aclnn = option(argc, argv, "--aclnn", 0);
    with_inside = option(argc, argv, "--inside", 0);
    with_hold = option(argc, argv, "--hold", 0);
    lost_device = option(argc, argv, "--lost-device", 0);
    bool with_storm = option(argc, argv, "--storm", 0);
    uint64_t blocked = option(argc, argv, "--block", 0);
    bool with_guard = option(argc, argv, "--guard", 0);
    int lost = 0;
    run = load_atb(option(argc, argv, "--abi", 0));
    if (with_aclnn)
        load_operators();
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
    /* No signal of ours interrupts the poller. */
    signal(SIGUSR1, on_enough);
    main_thread = (pid_t)syscall(SYS_gettid);
    set_signals(SIG_BLOCK, SIGUSR1);
    CHECK(pthread_create(&poller, NULL, poll_nothing, NULL));
    set_signals(SIG_UNBLOCK, SIGUSR1);
    if (with_storm) {
        struct sigaction action = {.sa_handler = on_storm, .sa_flags = SA_RESTART};
        CHECK(sigaction(SIGUSR2, &action, NULL) || sigaction(SIGPROF, &action, NULL) || sigaction(SIGINT, &action, NULL));
        CHECK(pthread_create(&stormer, NULL, storm, NULL));
    }
    if (with_hold)
        CHECK(pthread_create(&holder, NULL, hold, NULL));
    if (blocked)
        set_signals(SIG_BLOCK, SIGURG);
    printf("ready %d\nblock %p\n", getpid(), (void *)block);
    fflush(stdout);
    /* Until a watch, if there is one, is in place: some time after its handler is there, or as often as said, or until SIGUSR1. */
    warm = device_alloc(4096);
    for (int i = 0, last = (int)option(argc, argv, "--warm", 20000); i < last && !enough; i++) {
        if (last == 20000 && is_watched())
            last = i + 100;
        if (blocked && i == (int)blocked)
            set_signals(SIG_UNBLOCK, SIGURG);
        if (with_guard && guard())
            lost++;
        operation("warm", &(struct part){0, false, warm}, warm, 512);
        usleep(2000);
    }
    if (with_guard)
        printf("handlers taken away: %d\n", lost);
    if (option(argc, argv, "--fork", 0))
        fork_and_work();
    uint64_t exec = option(argc, argv, "--exec", 0);
    if (exec) {
        fflush(stdout);
        if (exec == 2)
            execl("/proc/self/exe", argv[0], "--handler", "1", "--warm", "300", NULL);
        execl("/proc/self/exe", argv[0], NULL);
    }
    operation("start", &(struct part){1, false, warm}, block, size);
    for (uint64_t i = 1; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i));
    struct timespec begin, end;
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_THREAD, &before));
    CHECK(clock_gettime(CLOCK_MONOTONIC, &begin));
    work(NULL);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &end));
    CHECK(getrusage(RUSAGE_THREAD, &after));
    if (rounds)
        printf("operator: %llu ns\n", (unsigned long long)((end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec) / (rounds * OPS));
    printf("waits: %ld\n", after.ru_nvcsw - before.ru_nvcsw);
    if (checks) {
        void (*quiet)(void) = (void (*)(void))dlsym(chip, "rtKernelLaunch");
        for (uint64_t i = 0; i < checks; i++)
            damaged += check_registers(quiet);
        printf("registers: %llu damaged of %llu\n", (unsigned long long)damaged, (unsigned long long)checks);
    }
    for (uint64_t i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
    operation("end", &(struct part){2, false, warm}, warm, 512);
    sim_device_fails(0, 0);
    CHECK(aclrtSynchronizeDevice());
    over = true;
    pthread_join(poller, NULL);
    if (with_hold)
        pthread_join(holder, NULL);
    if (with_storm) {
        pthread_join(stormer, NULL);
        printf("signals: %llu sent, %llu handled\n", (unsigned long long)sent, (unsigned long long)handled);
    }
    unsigned char bytes[128] = {0};
    if (free_round == UINT64_MAX)
        CHECK(aclrtMemcpy(bytes, sizeof bytes, block, sizeof bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("done: byte 0 is %u, byte 64 is %u; interrupted %ld; urgent %d\n", bytes[0], bytes[64], interrupted, (int)urgent);
    return 0;
}
