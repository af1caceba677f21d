/* Runs a program as in a container: in mount, user and pid namespaces of its own, with another root. Prints nothing, ends as
 * the program does, and takes it along when it is killed.
 *   contain [--root DIR] [--overlay DIR] [--bind DIR] [--same-pids] PROGRAM ARGUMENTS...
 * --overlay: what is in that folder, and in those above it, with changes kept in memory, becomes the new root.
 * --bind: is seen below the new root under the same path. --same-pids: no pid namespace. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(call) \
    do { \
        if ((call) < 0) { \
            perror(#call); \
            exit(99); \
        } \
    } while (0)

/* Mounted over the folder for changes, which this process alone sees. */
static void mount_overlay(const char *lower, const char *root)
{
    char options[3 * 4096], changes[4000], work[4000];
    MUST(mount("tmpfs", root, "tmpfs", 0, NULL));
    snprintf(changes, sizeof changes, "%s/changes", root);
    snprintf(work, sizeof work, "%s/work", root);
    MUST(mkdir(changes, 0755));
    MUST(mkdir(work, 0755));
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", lower, changes, work);
    MUST(mount("overlay", root, "overlay", 0, options));
}

/* The folder is there, or can be made in this root. */
static void bind_mount(const char *folder, const char *root)
{
    char path[4096];
    size_t start = (size_t)snprintf(path, sizeof path, "%s", root);
    snprintf(path + start, sizeof path - start, "%s", folder);
    for (char *slash = path + start + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0755);
    }
    mkdir(path, 0755);
    MUST(mount(folder, path, NULL, MS_BIND, NULL));
}

int main(int argc, char **argv)
{
    const char *root = NULL, *lower = NULL, *bind = NULL;
    int namespaces = CLONE_NEWNS | CLONE_NEWPID, at = 1, status = 0;
    for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
        if (!strcmp(argv[at], "--same-pids"))
            namespaces &= ~CLONE_NEWPID;
        else if (at + 1 < argc && !strcmp(argv[at], "--root"))
            root = argv[++at];
        else if (at + 1 < argc && !strcmp(argv[at], "--overlay"))
            lower = argv[++at];
        else if (at + 1 < argc && !strcmp(argv[at], "--bind"))
            bind = argv[++at];
        else
            return 98;
    }
    if (at == argc)
        return 98;
    MUST(unshare(namespaces));
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    if (lower)
        mount_overlay(lower, root);
    if (bind)
        bind_mount(bind, root ? root : "");
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        /* After the mounts, which the new user has no right to. */
        MUST(unshare(CLONE_NEWUSER));
        MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
        if (root) {
            MUST(chroot(root));
            MUST(chdir("/"));
        }
        execv(argv[at], argv + at);
        perror(argv[at]);
        _exit(97);
    }
    MUST(waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
