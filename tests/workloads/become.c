/* Becomes another user in a session of its own, out of reach of anybody's SIGCONT, and runs a program:
 *   become USER PROGRAM ARGUMENTS...
 * Installed set-user-id root, like su. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    uid_t user = argc > 2 ? (uid_t)atol(argv[1]) : 0;
    if (!user || setsid() < 0 || setresuid(user, user, user)) {
        perror("become");
        return 1;
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 1;
}
