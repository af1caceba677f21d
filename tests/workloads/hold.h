/* --hold: a workload waits for signals, SIGUSR1 to go on and SIGTERM to end. */
#ifndef HOLD_H
#define HOLD_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static inline sigset_t hold_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGTERM);
    return signals;
}

/* Before there are further threads, which block them then, too. */
static inline void hold_begin(bool hold)
{
    sigset_t signals = hold_signals();
    if (hold)
        pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

/* All is set up. */
static inline void hold_ready(bool hold)
{
    if (!hold)
        return;
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
}

/* Waits for that signal, or for the one that ends all waiting. */
static inline void hold_until(bool hold, int number)
{
    sigset_t signals = hold_signals();
    int came;
    while (hold && !sigwait(&signals, &came))
        if (came == number || came == SIGTERM)
            return;
}
#endif
