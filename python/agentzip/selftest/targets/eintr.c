/*
 * eintr: threads that wait in every system call which a careless tracer makes return EINTR.
 *
 * A program that calls epoll_wait(2) without a loop around it sees an error that it would not have
 * seen without us.  So each thread waits in one kind of call, counts how often it comes back with
 * EINTR, and `report` prints the counts.  `fill` rewrites the memory, so that each page out has
 * something to move.  Commands: report, fill, verify, exit.
 *
 * With `exposed` every thread, this one too, waits in a call that the kernel does not make again by
 * itself after a stop: whoever wants a thread must take one of them.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "pattern.h"
#include "protocol.h"

enum { PAGES = 512, LONG_S = 600 };

struct wait {
    const char *name;
    int (*call)(void);
    bool restarts; /* by the kernel, after a stop */
    atomic_long interrupted;
    atomic_long returned;
};

static int silent_pipe[2], silent_socket[2], epoll_fd;
static uint32_t generation;
static uint8_t *memory;

static int wait_nanosleep(void)
{
    struct timespec span = {LONG_S, 0};
    return nanosleep(&span, NULL);
}

static int wait_futex(void)
{
    static uint32_t word;
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static int wait_futex_timed(void)
{
    static uint32_t word;
    struct timespec span = {LONG_S, 0};
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &span, NULL, 0);
}

static int wait_poll(void)
{
    struct pollfd one = {.fd = silent_pipe[0], .events = POLLIN};
    return poll(&one, 1, -1);
}

static int wait_epoll(void)
{
    struct epoll_event event;
    return epoll_wait(epoll_fd, &event, 1, -1);
}

static int wait_epoll_timed(void)
{
    struct epoll_event event;
    return epoll_wait(epoll_fd, &event, 1, LONG_S * 1000);
}

static int wait_read(void)
{
    char byte;
    return read(silent_pipe[0], &byte, 1);
}

static int wait_sigtimedwait(void)
{
    sigset_t set;
    struct timespec span = {LONG_S, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return sigtimedwait(&set, NULL, &span);
}

static int wait_recv_timed(void)
{
    char byte;
    return recv(silent_socket[0], &byte, 1, 0);
}

static struct wait waits[] = {
    {.name = "nanosleep", .call = wait_nanosleep, .restarts = true},
    {.name = "futex", .call = wait_futex, .restarts = true},
    {.name = "futex-timed", .call = wait_futex_timed, .restarts = true},
    {.name = "poll", .call = wait_poll, .restarts = true},
    {.name = "epoll", .call = wait_epoll},
    {.name = "epoll-timed", .call = wait_epoll_timed},
    {.name = "read", .call = wait_read, .restarts = true},
    {.name = "sigtimedwait", .call = wait_sigtimedwait},
    {.name = "recv-timed", .call = wait_recv_timed},
    {.name = "main"},
};
enum { WAITS = sizeof waits / sizeof waits[0], MAIN = WAITS - 1 };

static void *wait_for_ever(void *argument)
{
    struct wait *wait = argument;
    while (true) {
        int result = wait->call();
        atomic_fetch_add(result < 0 && errno == EINTR ? &wait->interrupted : &wait->returned, 1);
    }
    return NULL;
}

static void report(void)
{
    char text[1024];
    int used = 0;
    for (int i = 0; i < WAITS; i++)
        used += snprintf(text + used, sizeof text - used, " %s=%ld/%ld", waits[i].name,
                         atomic_load(&waits[i].interrupted), atomic_load(&waits[i].returned));
    answer("ok%s", text);
}

static void fill(void)
{
    generation++;
    for (int i = 0; i < PAGES; i++)
        pattern_fill(memory + i * PAGE_BYTES, 9, i, generation);
}

static void verify(void)
{
    int bad = 0;
    for (int i = 0; i < PAGES; i++)
        bad += !pattern_matches(memory + i * PAGE_BYTES, 9, i, generation);
    answer(bad ? "bad %d" : "ok %d", bad ? bad : PAGES);
}

/* Wait for a command as an event loop does. */
static void wait_for_command(int commands)
{
    struct epoll_event event;
    while (epoll_wait(commands, &event, 1, -1) < 0)
        atomic_fetch_add(&waits[MAIN].interrupted, 1);
}

int main(int count, char **words)
{
    bool exposed = count > 1 && !strcmp(words[1], "exposed");
    struct timeval span = {.tv_sec = LONG_S};
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    memory = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int commands = epoll_create1(EPOLL_CLOEXEC);
    if (memory == MAP_FAILED || epoll_fd < 0 || commands < 0 || pipe(silent_pipe) ||
        epoll_ctl(commands, EPOLL_CTL_ADD, STDIN_FILENO, &event) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, silent_socket) ||
        setsockopt(silent_socket[0], SOL_SOCKET, SO_RCVTIMEO, &span, sizeof span) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, silent_pipe[0], &event)) {
        perror("eintr");
        return 1;
    }
    fill();
    for (int i = 0; i < MAIN; i++) {
        pthread_t thread;
        if (exposed && waits[i].restarts)
            continue;
        if (pthread_create(&thread, NULL, wait_for_ever, &waits[i]))
            return 1;
    }
    answer("ready %d", getpid());
    char line[64];
    while (true) {
        if (exposed)
            wait_for_command(commands);
        if (!read_line(line, sizeof line))
            break;
        if (!strcmp(line, "report"))
            report();
        else if (!strcmp(line, "fill")) {
            fill();
            answer("ok");
        } else if (!strcmp(line, "verify"))
            verify();
        else if (!strcmp(line, "exit"))
            break;
    }
    _exit(0);
}
