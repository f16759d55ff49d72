/*
 * The raw kernel primitives: what the engine does, without the engine.
 *
 * The floor of a page fault is a process that polls a userfaultfd and answers each message by one
 * UFFDIO_COPY of a page that lies ready: no table, no lock, no codec, no checksum.  It is forked
 * from the target, so that its own memory is the copy, and runs at the priority of the engine's
 * fault threads.  The floor of a page in is UFFDIO_COPY in runs, of a page out UFFDIO_MOVE.
 */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef UFFDIO_MOVE /* Headers older than Linux 6.8. */
struct uffdio_move {
    uint64_t dst, src, len, mode;
    int64_t move;
};
#define UFFDIO_MOVE _IOWR(0xAA, 0x05, struct uffdio_move)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#define FEATURE_MOVE ((uint64_t)1 << 16)

enum { PAGE = 4096, RUN = 64 * PAGE };

static struct {
    uint8_t *memory;
    size_t bytes;
    int descriptor;
    int control;
    pid_t server;
} here;

uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int open_userfaultfd(uint64_t features)
{
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device < 0)
        return -1;
    int descriptor = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
    close(device);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    if (descriptor >= 0 && ioctl(descriptor, UFFDIO_API, &api) < 0) {
        close(descriptor);
        return -1;
    }
    return descriptor;
}

static int watch(int descriptor, void *start, size_t bytes)
{
    struct uffdio_register range = {
        .range = {.start = (uintptr_t)start, .len = bytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    return ioctl(descriptor, UFFDIO_REGISTER, &range);
}

static void answer_faults(void)
{
    struct uffd_msg message;
    while (read(here.descriptor, &message, sizeof message) == sizeof message) {
        uint64_t page = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        struct uffdio_copy copy = {.dst = page, .src = page, .len = PAGE};
        if (ioctl(here.descriptor, UFFDIO_COPY, &copy) < 0)
            _exit(4);
        return;
    }
}

/* Everything that is still out, in runs of 64 pages; the runs are cut where a page is at home. */
static void bring_home(uint64_t result[2])
{
    uint64_t began = now();
    uint64_t pages = 0;
    for (size_t at = 0; at < here.bytes;) {
        size_t length = here.bytes - at < RUN ? here.bytes - at : RUN;
        uint64_t address = (uintptr_t)here.memory + at;
        struct uffdio_copy copy = {.dst = address, .src = address, .len = length};
        if (ioctl(here.descriptor, UFFDIO_COPY, &copy) == 0) {
            pages += length / PAGE;
            at += length;
        } else if (copy.copy > 0) {
            pages += (uint64_t)copy.copy / PAGE;
            at += (size_t)copy.copy;
        } else if (copy.copy == -EEXIST) {
            at += PAGE;
        } else {
            _exit(5);
        }
    }
    result[0] = now() - began;
    result[1] = pages;
}

static _Noreturn void serve(int control, int cpu)
{
    cpu_set_t place;
    CPU_ZERO(&place);
    CPU_SET(cpu, &place);
    sched_setaffinity(0, sizeof place, &place);
    struct sched_param priority = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char ready = 'r';
    if (write(control, &ready, 1) != 1)
        _exit(1);
    struct pollfd sources[2] = {
        {.fd = here.descriptor, .events = POLLIN},
        {.fd = control, .events = POLLIN},
    };
    for (;;) {
        if (poll(sources, 2, -1) < 0 && errno != EINTR)
            _exit(2);
        if (sources[0].revents)
            answer_faults();
        if (sources[1].revents) {
            uint64_t result[2];
            bring_home(result);
            _exit(write(control, result, sizeof result) == sizeof result ? 0 : 3);
        }
    }
}

int floor_open(uint8_t *memory, size_t bytes, int cpu)
{
    int pair[2];
    here.memory = memory;
    here.bytes = bytes;
    here.descriptor = open_userfaultfd(0);
    if (here.descriptor < 0 || watch(here.descriptor, memory, bytes) < 0)
        return errno;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return errno;
    here.server = fork();
    if (here.server < 0)
        return errno;
    if (here.server == 0) {
        close(pair[0]);
        serve(pair[1], cpu);
    }
    close(pair[1]);
    here.control = pair[0];
    char ready;
    if (read(here.control, &ready, 1) != 1)
        return EPIPE;
    return madvise(memory, bytes, MADV_DONTNEED) < 0 ? errno : 0;
}

int floor_close(uint64_t *nanoseconds, uint64_t *pages)
{
    uint64_t result[2] = {0, 0};
    char go = 'g';
    bool right = write(here.control, &go, 1) == 1 &&
                 read(here.control, result, sizeof result) == (ssize_t)sizeof result;
    int status = 0;
    waitpid(here.server, &status, 0);
    close(here.control);
    close(here.descriptor);
    *nanoseconds = result[0];
    *pages = result[1];
    return right && status == 0 ? 0 : EPIPE;
}

static int move(int descriptor, void *to, void *from, size_t bytes)
{
    struct uffdio_move move = {.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = bytes};
    return ioctl(descriptor, UFFDIO_MOVE, &move) < 0 ? errno : 0;
}

int floor_move(uint8_t *memory, size_t bytes, size_t chunk, uint32_t *samples)
{
    int descriptor = open_userfaultfd(FEATURE_MOVE);
    uint8_t *staging =
        mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (descriptor < 0 || staging == MAP_FAILED)
        return errno;
    int failed = 0;
    if (watch(descriptor, staging, chunk) < 0 || watch(descriptor, memory, bytes) < 0)
        failed = errno;
    for (size_t at = 0; at < bytes && !failed; at += chunk) {
        size_t length = bytes - at < chunk ? bytes - at : chunk;
        uint64_t began = now();
        failed = move(descriptor, staging, memory + at, length);
        *samples++ = (uint32_t)(now() - began);
        if (!failed)
            failed = move(descriptor, memory + at, staging, length);
    }
    close(descriptor);
    munmap(staging, chunk);
    return failed;
}
