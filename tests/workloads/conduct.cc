/* Does what a tracer could get in the way of, and writes down what came of it: exceptions, longjmp, children, a stop of itself that a child
 * ends, libraries that come and go, threads that wait in calls which a stop would interrupt.
 *   conduct OUTPUT [--loads 8] [--no-stop]
 * Two runs of it write the same, whoever watches. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

namespace {

std::atomic<int> interrupted[3];
std::atomic<int> signals_seen[65];
std::atomic<pid_t> waiters[3];
int events, done_event, semaphore;

void seen(int number) { signals_seen[number]++; }

void nap(long nanoseconds)
{
    timespec time = {0, nanoseconds};
    while (nanosleep(&time, &time) < 0 && errno == EINTR) {
    }
}

/* State letter of a task, by its file below /proc. */
char state_of(const std::string &task)
{
    char text[512] = {};
    int file = open((task + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    const char *end = size > 0 ? strrchr(text, ')') : nullptr;
    return end ? end[2] : 0;
}

void *wait_for_events(void *)
{
    waiters[0] = static_cast<pid_t>(syscall(SYS_gettid));
    epoll_event event;
    while (epoll_wait(events, &event, 1, -1) < 0 && errno == EINTR)
        interrupted[0]++;
    return nullptr;
}

void *wait_for_signal(void *)
{
    waiters[1] = static_cast<pid_t>(syscall(SYS_gettid));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    timespec time = {60, 0};
    while (sigtimedwait(&set, nullptr, &time) < 0 && errno == EINTR)
        interrupted[1]++;
    return nullptr;
}

void *wait_for_semaphore(void *)
{
    waiters[2] = static_cast<pid_t>(syscall(SYS_gettid));
    sembuf down = {0, -1, 0};
    timespec time = {60, 0};
    while (semtimedop(semaphore, &down, 1, &time) < 0 && errno == EINTR)
        interrupted[2]++;
    return nullptr;
}

void wait_until_all_wait()
{
    for (auto &waiter : waiters)
        while (waiter == 0 || state_of("/proc/self/task/" + std::to_string(waiter.load())) != 'S')
            nap(1000000);
    nap(5000000);
}

int throw_through(int depth)
{
    std::string ballast(64, 'x');
    if (depth == 0)
        throw std::runtime_error("out of here");
    return throw_through(depth - 1) + static_cast<int>(ballast.size());
}

int catch_all(int count)
{
    int caught = 0;
    for (int i = 0; i < count; i++) {
        try {
            throw_through(i % 20);
        } catch (const std::exception &) {
            caught++;
        }
    }
    return caught;
}

jmp_buf place;

int jump_all(int count)
{
    volatile int jumped = 0;
    for (volatile int i = 0; i < count; i++) {
        if (setjmp(place) == 0)
            longjmp(place, 1);
        jumped = jumped + 1;
    }
    return jumped;
}

int load_all(int count)
{
    static const char *const names[] = {"libascendcl.so", "libmypool.so", "libms_tools_ext.so"};
    int loaded = 0;
    for (int i = 0; i < count; i++) {
        void *library = dlopen(names[i % 3], RTLD_NOW | RTLD_LOCAL);
        loaded += library && dlclose(library) == 0;
    }
    return loaded;
}

/* Ends of children, as a parent that looks for stops sees them. */
std::string children(int count, char *self)
{
    std::string ends;
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i % 3 == 0)
                execl("/bin/sh", "sh", "-c", "exit 3", static_cast<char *>(nullptr));
            if (i % 3 == 1)
                execl(self, self, "--child", static_cast<char *>(nullptr));
            raise(SIGTERM);
            _exit(99);
        }
        int status = 0;
        waitpid(child, &status, WUNTRACED | WCONTINUED);
        ends += std::to_string(status) + " ";
        if (!WIFEXITED(status) && !WIFSIGNALED(status))
            waitpid(child, &status, 0);
    }
    return ends;
}

/* Stops this process; a child has it go on. */
int stop_self()
{
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0) {
        while (state_of("/proc/" + std::to_string(parent)) != 'T')
            nap(1000000);
        nap(20000000);
        bool stays = state_of("/proc/" + std::to_string(parent)) == 'T';
        kill(parent, SIGCONT);
        _exit(stays ? 5 : 6);
    }
    raise(SIGSTOP);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

/* Threads that were joined may be listed for a moment. */
void wait_until_alone()
{
    for (;;) {
        int threads = 0;
        DIR *tasks = opendir("/proc/self/task");
        while (const dirent *task = readdir(tasks))
            threads += task->d_name[0] != '.';
        closedir(tasks);
        if (threads == 1)
            return;
        nap(1000000);
    }
}

/* Lines of /proc/self/status that are the same in each run. */
void write_status(FILE *out)
{
    wait_until_alone();
    static const char *const kept[] = {"State", "Umask", "TracerPid", "Uid", "Gid", "Groups", "FDSize", "Threads", "SigPnd", "ShdPnd", "SigBlk",
                                       "SigIgn", "SigCgt", "Cap", "NoNewPrivs", "Seccomp", "Speculation", "Cpus_allowed:", "Mems_allowed:"};
    FILE *status = fopen("/proc/self/status", "re");
    char line[4096];
    while (status && fgets(line, sizeof line, status))
        for (const char *name : kept)
            if (strncmp(line, name, strlen(name)) == 0)
                fputs(line, out);
    if (status)
        fclose(status);
    for (int fd = 0; fd < 32; fd++)
        if (fd != fileno(out) && fcntl(fd, F_GETFD) >= 0)
            fprintf(out, "open %d\n", fd);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--child") == 0)
        return catch_all(10) == 10 ? 4 : 44;
    if (argc < 2)
        return 2;
    int loads = 8;
    bool stops = true;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--no-stop") == 0)
            stops = false;
        else if (strcmp(argv[i], "--loads") == 0 && i + 1 < argc)
            loads = atoi(argv[++i]);
    }
    FILE *out = fopen(argv[1], "we");
    if (!out)
        return 2;
    write_status(out);
    for (int number = 1; number <= 64; number++)
        if (number != SIGUSR2 && number != SIGKILL && number != SIGSTOP && number < 32 && number != SIGSEGV && number != SIGBUS)
            signal(number, seen);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);

    events = epoll_create1(EPOLL_CLOEXEC);
    done_event = eventfd(0, EFD_CLOEXEC);
    epoll_event event = {};
    event.events = EPOLLIN;
    epoll_ctl(events, EPOLL_CTL_ADD, done_event, &event);
    semaphore = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT);
    /* Handlers run here, not in the threads: an interruption there is none of ours. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    pthread_t threads[3];
    void *(*bodies[])(void *) = {wait_for_events, wait_for_signal, wait_for_semaphore};
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], nullptr, bodies[i], nullptr);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    wait_until_all_wait();

    fprintf(out, "caught %d\n", catch_all(100));
    fprintf(out, "jumped %d\n", jump_all(100));
    fprintf(out, "loaded %d of %d\n", load_all(loads), loads);
    fprintf(out, "interrupted by loading %d %d %d\n", interrupted[0].load(), interrupted[1].load(), interrupted[2].load());
    fprintf(out, "children %s\n", children(6, argv[0]).c_str());
    raise(SIGUSR1);
    if (stops) {
        wait_until_all_wait();
        fprintf(out, "stopped %d\n", stop_self());
    }
    fprintf(out, "loaded %d of %d\n", load_all(loads), loads);
    for (int number = 1; number <= 64; number++)
        if (number != SIGCHLD && signals_seen[number] != 0)
            fprintf(out, "signal %d: %d\n", number, signals_seen[number].load());
    uint64_t one = 1;
    if (write(done_event, &one, sizeof one) != sizeof one)
        return 3;
    pthread_kill(threads[1], SIGUSR2);
    sembuf up = {0, 1, 0};
    semop(semaphore, &up, 1);
    for (auto &thread : threads)
        pthread_join(thread, nullptr);
    fprintf(out, "interrupted %d %d %d\n", interrupted[0].load(), interrupted[1].load(), interrupted[2].load());
    semctl(semaphore, 0, IPC_RMID);
    write_status(out);
    fclose(out);
    return 7;
}
