/*
 * What else a program does in its life beside changing its mappings: threads, other programs,
 * signals, timers, huge pages.  Each returns true if all was as it must be.
 */
#ifndef AGENTZIP_STRESS_LIFE_H
#define AGENTZIP_STRESS_LIFE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pattern.h"

extern char **environ;

/* Signals that this thread's handler has seen; on the thread's own page, which may be away. */
static _Thread_local volatile sig_atomic_t signals_seen;

static void on_signal(int number)
{
    (void)number;
    signals_seen++;
}

static void life_begins(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
}

struct errand {
    uint64_t seed;
    bool right;
};

/* A stack full of known pages, written and read back by a thread that lives no longer. */
static void *run_errand(void *argument)
{
    struct errand *errand = argument;
    uint8_t stack[8 * PAGE_BYTES];
    for (int page = 0; page < 8; page++)
        pattern_fill(stack + page * PAGE_BYTES, errand->seed, page, 1);
    sched_yield();
    errand->right = true;
    for (int page = 0; page < 8; page++)
        errand->right &= pattern_matches(stack + page * PAGE_BYTES, errand->seed, page, 1);
    return NULL;
}

static bool life_thread(uint64_t seed)
{
    struct errand errand = {.seed = seed};
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run_errand, &errand);
    if (error)
        return error == EAGAIN;
    pthread_join(thread, NULL);
    return errand.right;
}

/* Another program: `true` is exec'ed in a child that shares our memory until then. */
static bool life_exec(void)
{
    char *arguments[] = {"true", NULL};
    pid_t child;
    int status;
    if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ))
        return false;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return false;
    return status == 0;
}

static bool life_signal(void)
{
    sig_atomic_t before = signals_seen;
    for (int k = 0; k < 4; k++)
        pthread_kill(pthread_self(), SIGUSR1);
    /* Sent to oneself, a signal has been handled when the call returns. */
    return signals_seen == before + 4;
}

static bool life_timer(unsigned microseconds)
{
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (timer < 0)
        return errno == EMFILE;
    struct itimerspec span = {.it_value = {0, 1000 * (1 + microseconds)}};
    uint64_t expirations = 0;
    timerfd_settime(timer, 0, &span, NULL);
    ssize_t got = read(timer, &expirations, sizeof expirations);
    close(timer);
    return got == sizeof expirations && expirations == 1;
}

/* Two huge pages, of which the program drops a part, as an allocator does. */
static bool life_huge(uint64_t seed)
{
    enum { HUGE_BYTES = 2 << 20, PAGES = 2 * HUGE_BYTES / PAGE_BYTES, STEP = 37 };
    uint8_t *raw = mmap(NULL, 3 * HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return errno == ENOMEM;
    uint8_t *base = (uint8_t *)(((uintptr_t)raw + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    madvise(base, 2 * HUGE_BYTES, MADV_HUGEPAGE);
    for (int page = 0; page < PAGES; page += STEP)
        pattern_fill(base + (size_t)page * PAGE_BYTES, seed, page, 1);
    sched_yield();
    bool right = true;
    madvise(base + HUGE_BYTES / 2, HUGE_BYTES, MADV_DONTNEED);
    for (int page = 0; page < PAGES; page += STEP) {
        uint8_t *at = base + (size_t)page * PAGE_BYTES;
        bool dropped = at >= base + HUGE_BYTES / 2 && at < base + HUGE_BYTES + HUGE_BYTES / 2;
        right &= dropped ? page_is_zero(at) : pattern_matches(at, seed, page, 1);
    }
    munmap(raw, 3 * HUGE_BYTES);
    return right;
}

#endif
