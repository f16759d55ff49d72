/*
 * Memory with a meaning of its own: guards, huge pages, stacks, secrets, shared and file mappings,
 * words that threads wait on, and ranges that belong to another userfaultfd.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "events.h"

enum { READ_WRITE = PROT_READ | PROT_WRITE, GUARD_AT = 20, GUARDS = 4 };

static void still_right(struct region *r, struct verdict *v)
{
    check(r, v, "content");
    write_page(r, 1);
    check(r, v, "written");
}

/* Guards are page-table marks inside an ordinary mapping; no flag in /proc/PID/maps tells. */
static void guard_prepare(struct region *r, struct verdict *v)
{
    if (madvise(page_at(r, GUARD_AT), GUARDS * PAGE_BYTES, ADVICE_GUARD_INSTALL))
        skip(v, "no MADV_GUARD_INSTALL: %s", strerror(errno));
    expect(r, GUARD_AT, GUARDS, UNTOUCHED);
}

static void guard(struct region *r, struct verdict *v)
{
    check(r, v, "around the guards");
    for (int i = 0; i < GUARDS; i++)
        if (!read_faults(page_at(r, GUARD_AT + i)) || !write_faults(page_at(r, GUARD_AT + i)))
            fail(v, "guard page %d is gone", i);
}

enum { HUGE_PAGE = 2 << 20 };

static void huge_prepare(struct region *r, struct verdict *v)
{
    uint8_t *space = map_anonymous(3 * HUGE_PAGE);
    r->base = (uint8_t *)(((uintptr_t)space + HUGE_PAGE - 1) & -(uintptr_t)HUGE_PAGE);
    r->pages = PAGES_MAX;
    if (madvise(r->base, 2 * HUGE_PAGE, MADV_HUGEPAGE))
        skip(v, "no huge pages: %s", strerror(errno));
    fill_region(r);
}

/* Frames of the caller hold pattern pages in [stack] itself, deeper ones are made afterwards. */
static int recurse(unsigned depth, uint64_t seed)
{
    uint8_t frame[8 * PAGE_BYTES];
    for (int i = 0; i < 8; i++)
        pattern_fill(frame + i * PAGE_BYTES, seed, depth * 8 + i, 1);
    int bad = depth ? recurse(depth - 1, seed) : 0;
    for (int i = 0; i < 8; i++)
        bad += !pattern_matches(frame + i * PAGE_BYTES, seed, depth * 8 + i, 1);
    return bad;
}

static void stack_growth(struct region *r, struct verdict *v)
{
    int bad = recurse(90, r->seed);
    if (bad)
        fail(v, "%d stack pages are wrong", bad);
    check(r, v, "region");
}

/* The used stack is touched deep down once, so that pages below the present frame can leave. */
static void stack_prepare(struct region *r, struct verdict *v)
{
    if (recurse(30, r->seed))
        fail(v, "the stack was wrong before anything happened");
}

static pthread_t stack_thread;
static _Atomic uint32_t stack_word;
static int stack_thread_bad;

static void *hold_frames(void *argument)
{
    struct region *r = argument;
    uint8_t frames[16 * PAGE_BYTES];
    for (int i = 0; i < 16; i++)
        pattern_fill(frames + i * PAGE_BYTES, r->seed, 500 + i, 1);
    atomic_store(&stack_word, 1);
    while (atomic_load(&stack_word) == 1)
        syscall(SYS_futex, &stack_word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    for (int i = 0; i < 16; i++)
        stack_thread_bad += !pattern_matches(frames + i * PAGE_BYTES, r->seed, 500 + i, 1);
    stack_thread_bad += recurse(10, r->seed);
    return NULL;
}

static void thread_stack_prepare(struct region *r, struct verdict *v)
{
    if (pthread_create(&stack_thread, NULL, hold_frames, r))
        fail(v, "pthread_create");
    while (v->state == 'o' && atomic_load(&stack_word) != 1)
        usleep(1000);
}

static void thread_stack(struct region *r, struct verdict *v)
{
    atomic_store(&stack_word, 2);
    syscall(SYS_futex, &stack_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_join(stack_thread, NULL);
    if (stack_thread_bad)
        fail(v, "%d pages of a thread's stack are wrong", stack_thread_bad);
    check(r, v, "region");
}

/* The kernel writes a signal frame to an alternate stack that is out. */
enum { STACK_FROM = REGION_PAGES / 2 };
static uintptr_t handler_frame;

static void on_signal(int signal)
{
    (void)signal;
    handler_frame = (uintptr_t)__builtin_frame_address(0);
}

static void signal_stack(struct region *r, struct verdict *v)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK}, old;
    stack_t stack = {.ss_sp = page_at(r, STACK_FROM), .ss_size = REGION_BYTES / 2}, none;
    sigaltstack(&stack, &none);
    sigaction(SIGUSR1, &action, &old);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &old, NULL);
    sigaltstack(&none, NULL);
    if (handler_frame < (uintptr_t)page_at(r, STACK_FROM) ||
        handler_frame >= (uintptr_t)page_at(r, REGION_PAGES))
        fail(v, "the handler ran on another stack");
    expect(r, STACK_FROM, REGION_PAGES - STACK_FROM, UNTOUCHED);
    check(r, v, "below the signal stack");
}

/* A thread sleeps on a word of a page that goes out meanwhile. */
enum { FUTEX_PAGE = 7 };
static pthread_t sleeper;
static atomic_int sleeper_state;

static void *sleep_on_word(void *argument)
{
    _Atomic uint32_t *word = argument;
    atomic_store(&sleeper_state, 1);
    while (atomic_load(word) == 0)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    atomic_store(&sleeper_state, 2);
    return NULL;
}

static void futex_prepare(struct region *r, struct verdict *v)
{
    memset(page_at(r, FUTEX_PAGE), 0, PAGE_BYTES);
    expect(r, FUTEX_PAGE, 1, UNTOUCHED);
    if (pthread_create(&sleeper, NULL, sleep_on_word, page_at(r, FUTEX_PAGE)))
        fail(v, "pthread_create");
    while (v->state == 'o' && atomic_load(&sleeper_state) != 1)
        usleep(1000);
    usleep(20000);
}

static void futex(struct region *r, struct verdict *v)
{
    _Atomic uint32_t *word = (_Atomic uint32_t *)page_at(r, FUTEX_PAGE);
    atomic_store(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    for (int i = 0; i < 2000 && atomic_load(&sleeper_state) != 2; i++)
        usleep(1000);
    if (atomic_load(&sleeper_state) != 2)
        fail(v, "the sleeper was not woken");
    else
        pthread_join(sleeper, NULL);
    check(r, v, "region");
}

static void use_descriptor(struct region *r, struct verdict *v, int fd, int flags)
{
    if (fd < 0 || ftruncate(fd, REGION_BYTES)) {
        skip(v, "cannot make it: %s", strerror(errno));
        return;
    }
    munmap(r->base, REGION_BYTES);
    r->base = mmap(NULL, REGION_BYTES, READ_WRITE, flags, fd, 0);
    if (r->base == MAP_FAILED)
        skip(v, "cannot map it: %s", strerror(errno));
    else
        fill_region(r);
}

static void secret_prepare(struct region *r, struct verdict *v)
{
    use_descriptor(r, v, syscall(SYS_memfd_secret, O_CLOEXEC), MAP_SHARED);
}

static void memfd_shared_prepare(struct region *r, struct verdict *v)
{
    use_descriptor(r, v, memfd_create("events", MFD_CLOEXEC), MAP_SHARED);
}

static void memfd_private_prepare(struct region *r, struct verdict *v)
{
    use_descriptor(r, v, memfd_create("events", MFD_CLOEXEC), MAP_PRIVATE);
}

static void file_shared_prepare(struct region *r, struct verdict *v)
{
    use_descriptor(r, v, open_file(0, v), MAP_SHARED);
}

static void file_private_prepare(struct region *r, struct verdict *v)
{
    use_descriptor(r, v, open_file(0, v), MAP_PRIVATE);
}

static void anonymous_shared_prepare(struct region *r, struct verdict *v)
{
    munmap(r->base, REGION_BYTES);
    r->base = mmap(NULL, REGION_BYTES, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->base == MAP_FAILED)
        fail(v, "mmap: %s", strerror(errno));
    else
        fill_region(r);
}

static void sysv_prepare(struct region *r, struct verdict *v)
{
    int id = shmget(IPC_PRIVATE, REGION_BYTES, IPC_CREAT | 0600);
    void *base = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
    if (id >= 0)
        shmctl(id, IPC_RMID, NULL);
    if (base == (void *)-1) {
        skip(v, "no System V shared memory: %s", strerror(errno));
        return;
    }
    r->base = base;
    fill_region(r);
}

static void read_only_prepare(struct region *r, struct verdict *v)
{
    if (mprotect(r->base, REGION_BYTES, PROT_READ))
        fail(v, "mprotect: %s", strerror(errno));
}

static void read_only(struct region *r, struct verdict *v)
{
    check(r, v, "read-only");
    mprotect(r->base, REGION_BYTES, READ_WRITE);
    still_right(r, v);
}

static void locked_prepare(struct region *r, struct verdict *v)
{
    if (mlock(r->base, REGION_BYTES))
        skip(v, "mlock: %s", strerror(errno));
}

/* The second half belongs to a fault handler inside the program, as in a VMM or a collector. */
enum { OWN_FROM = REGION_PAGES / 2, OWN_MISSING = 8 };
static int own_uffd;
static atomic_int own_served;
static struct region *own_region;

static void *serve_own(void *unused)
{
    static uint8_t page[PAGE_BYTES] __attribute__((aligned(PAGE_BYTES)));
    struct uffd_msg message;
    while (read(own_uffd, &message, sizeof message) == sizeof message) {
        uint8_t *at = (uint8_t *)(message.arg.pagefault.address & -(uintptr_t)PAGE_BYTES);
        pattern_fill(page, own_region->seed, (at - own_region->base) / PAGE_BYTES, 1);
        struct uffdio_copy copy = {.dst = (uintptr_t)at, .src = (uintptr_t)page, .len = PAGE_BYTES};
        /* Counted before the copy: the copy lets the reader go on, and it looks at the count. */
        atomic_fetch_add(&own_served, 1);
        if (ioctl(own_uffd, UFFDIO_COPY, &copy))
            atomic_fetch_add(&own_served, 1000);
    }
    return unused;
}

static void own_prepare(struct region *r, struct verdict *v)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {
        .range = {(uintptr_t)page_at(r, OWN_FROM), REGION_BYTES / 2},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    pthread_t thread;
    own_region = r;
    own_uffd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (own_uffd < 0 || ioctl(own_uffd, UFFDIO_API, &api)) {
        skip(v, "no userfaultfd of its own: %s", strerror(errno));
        return;
    }
    madvise(page_at(r, REGION_PAGES - OWN_MISSING), OWN_MISSING * PAGE_BYTES, MADV_DONTNEED);
    if (ioctl(own_uffd, UFFDIO_REGISTER, &range))
        fail(v, "UFFDIO_REGISTER: %s", strerror(errno));
    else if (pthread_create(&thread, NULL, serve_own, NULL))
        fail(v, "pthread_create");
}

static void own(struct region *r, struct verdict *v)
{
    check(r, v, "both halves");
    if (atomic_load(&own_served) != OWN_MISSING)
        fail(v, "the program's own handler served %d pages instead of %d",
             atomic_load(&own_served), OWN_MISSING);
}

static void dontdump_prepare(struct region *r, struct verdict *v)
{
    if (madvise(r->base, REGION_BYTES, MADV_DONTDUMP))
        skip(v, "no MADV_DONTDUMP: %s", strerror(errno));
}

enum { KEY_FROM = REGION_PAGES / 4, KEY_PAGES = REGION_PAGES / 2 };

static int middle_key, late_key;

/* Whatever left a signal handler by a jump has lost its rights to all keys: they are set anew
 * before each use, and the key is taken off at the end. */
static void key_prepare(struct region *r, struct verdict *v)
{
    middle_key = pkey_alloc(0, 0);
    if (middle_key < 0)
        skip(v, "no memory protection keys on this CPU: %s", strerror(errno));
    else if (pkey_mprotect(page_at(r, KEY_FROM), KEY_PAGES * PAGE_BYTES, READ_WRITE, middle_key))
        fail(v, "pkey_mprotect: %s", strerror(errno));
}

static void use_key(struct region *r, struct verdict *v, int key, unsigned from, unsigned count)
{
    uint8_t *last = page_at(r, from + count - 1);
    pkey_set(key, PKEY_DISABLE_ACCESS);
    if (!read_faults(page_at(r, from)) || !write_faults(last))
        fail(v, "the protection key no longer protects");
    pkey_set(key, 0);
    check(r, v, "with all rights");
    pkey_set(key, PKEY_DISABLE_WRITE);
    if (!write_faults(page_at(r, from)))
        fail(v, "the protection key no longer forbids writing");
    pkey_set(key, 0);
    check(r, v, "after a refused write");
    write_page(r, from);
    check(r, v, "written");
    if (pkey_mprotect(page_at(r, from), count * PAGE_BYTES, READ_WRITE, 0) || pkey_free(key))
        fail(v, "taking the key off: %s", strerror(errno));
}

static void key_middle(struct region *r, struct verdict *v)
{
    use_key(r, v, middle_key, KEY_FROM, KEY_PAGES);
}

static void key_late_prepare(struct region *r, struct verdict *v)
{
    (void)r;
    late_key = pkey_alloc(0, 0);
    if (late_key < 0)
        skip(v, "no memory protection keys on this CPU: %s", strerror(errno));
}

/* Pages that are out get a key: touching one must be refused, not served. */
static void key_late(struct region *r, struct verdict *v)
{
    if (pkey_mprotect(r->base, REGION_BYTES, READ_WRITE, late_key))
        fail(v, "pkey_mprotect: %s", strerror(errno));
    use_key(r, v, late_key, 0, REGION_PAGES);
}

const struct operation special_operations[] = {
    {"guard", 'y', guard_prepare, guard},
    {"huge", 'y', huge_prepare, still_right},
    {"stack-growth", 'y', stack_prepare, stack_growth},
    {"thread-stack", 'y', thread_stack_prepare, thread_stack},
    {"signal-stack", 'y', NULL, signal_stack},
    {"futex", 'y', futex_prepare, futex},
    {"secret", 'n', secret_prepare, still_right},
    {"shared-memfd", 'n', memfd_shared_prepare, still_right},
    {"private-memfd", 'n', memfd_private_prepare, still_right},
    {"shared-file", 'n', file_shared_prepare, still_right},
    {"private-file", 'n', file_private_prepare, still_right},
    {"shared-anonymous", 'n', anonymous_shared_prepare, still_right},
    {"shared-sysv", 'n', sysv_prepare, still_right},
    {"read-only", 'n', read_only_prepare, read_only},
    {"locked", 'n', locked_prepare, still_right},
    {"dontdump", 'n', dontdump_prepare, still_right},
    {"protection-key", 'm', key_prepare, key_middle},
    {"protection-key-late", 'y', key_late_prepare, key_late},
    {"own-userfaultfd", 'm', own_prepare, own},
    {NULL, 0, NULL, NULL},
};
