/*
 * timed: one thread that waits in calls which a careless tracer makes return EINTR, or last for
 * ever.
 *
 * A program that waits has no other thread to borrow, so each page out stops the waiting one.  The
 * call must end by its own timeout, never before it, however often that happens; or by SIGUSR1,
 * which has a handler.  Commands:
 *   wait NAME MS    wait, in one of the calls below     ok RESULT ERRNO MS-IT-TOOK
 *   verify          every page against its pattern      ok PAGES | bad COUNT
 *   exit
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "pattern.h"
#include "protocol.h"

/* Newer than the headers of some distributions that the targets are compiled on. */
enum { CALL_EPOLL_PWAIT2 = 441 };
enum { PAGES = 256 };

static int epoll_fd;
static uint8_t *memory;

static struct timespec span_of(int ms)
{
    return (struct timespec){ms / 1000, ms % 1000 * 1000000L};
}

static int wait_epoll(int ms)
{
    struct epoll_event event;
    return epoll_wait(epoll_fd, &event, 1, ms);
}

static int wait_epoll2(int ms)
{
    struct epoll_event event;
    struct timespec span = span_of(ms);
    return syscall(CALL_EPOLL_PWAIT2, epoll_fd, &event, 1, &span, NULL, 0);
}

static int wait_signal(int ms)
{
    sigset_t set;
    struct timespec span = span_of(ms);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return sigtimedwait(&set, NULL, &span);
}

static const struct {
    const char *name;
    int (*call)(int ms);
} waits[] = {
    {"epoll_wait", wait_epoll},
    {"epoll_pwait2", wait_epoll2},
    {"sigtimedwait", wait_signal},
};

static void handle(int number)
{
    (void)number;
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void wait_in(const char *name, int ms)
{
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        if (strcmp(name, waits[i].name))
            continue;
        long begin = now_ms();
        errno = 0;
        int result = waits[i].call(ms);
        int why = errno;
        answer("ok %d %d %ld", result, why, now_ms() - begin);
        return;
    }
    answer("bad name");
}

static void verify(void)
{
    int bad = 0;
    for (int i = 0; i < PAGES; i++)
        bad += !pattern_matches(memory + i * PAGE_BYTES, 9, i, 1);
    answer(bad ? "bad %d" : "ok %d", bad ? bad : PAGES);
}

int main(void)
{
    sigset_t set;
    struct sigaction action = {.sa_handler = handle};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGUSR1, &action, NULL);
    memory = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (memory == MAP_FAILED || epoll_fd < 0) {
        perror("timed");
        return 1;
    }
    for (int i = 0; i < PAGES; i++)
        pattern_fill(memory + i * PAGE_BYTES, 9, i, 1);
    answer("ready %d", getpid());
    char line[64], name[32];
    int ms;
    while (read_line(line, sizeof line)) {
        if (sscanf(line, "wait %31s %d", name, &ms) == 2)
            wait_in(name, ms);
        else if (!strcmp(line, "verify"))
            verify();
        else if (!strcmp(line, "exit"))
            break;
    }
    _exit(0);
}
