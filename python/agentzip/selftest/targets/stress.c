/*
 * stress --ops N --threads T --forks on|off --moves on|off --life on|off --regions N --seed S:
 * threads that change their address space.
 *
 * Each thread owns a set of regions and does random operations on them: verify, write, drop, unmap
 * and map again, move, map over, protect, fork.  It knows what every page must hold, so any page
 * that a pager loses, mixes up or brings back from the dead is found and named.  While it runs,
 * `status` on stdin answers with the counts so far and `finish` ends it early; at the end every
 * page is verified and one line `ops N bad B forks F` is printed.
 *
 * With `--life` they also make threads, start programs, send signals, wait for timers and use huge
 * pages; with `--regions` the process holds that many more mappings, a page each.
 *
 * Nothing here can deadlock by itself: a forked child only reads and writes the memory of the
 * thread that forked it, takes no lock, and leaves by _exit(2).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "pattern.h"
#include "protocol.h"
#include "stress_life.h"

enum { REGIONS = 24, PAGES_MIN = 8, PAGES_MAX = 256, THREADS_MAX = 16 };
enum { READ_WRITE = PROT_READ | PROT_WRITE, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS };

/* Generation 0 means: never written since it was mapped, so it must read as zeros. */
struct region {
    uint8_t *base;
    unsigned pages;
    uint32_t generation[PAGES_MAX];
};

struct worker {
    unsigned id;
    pthread_t thread;
    uint64_t dice;
    uint32_t generation;
    struct region *regions;
};

static long quota;
static bool forks_on;
static bool moves_on; /* Threads often move regions to places that others have just left. */
static bool life_on;
static unsigned lone_pages; /* Mappings of one page, with one of nobody's between any two. */
static uint8_t *lone_base;
static uint64_t seed = 1;
static atomic_bool finish;
static atomic_long total_ops, total_bad, total_forks;

static unsigned roll(struct worker *w, unsigned sides)
{
    return (pattern_next(&w->dice) >> 16) % sides;
}

static uint8_t *page_at(const struct region *r, unsigned page)
{
    return r->base + (size_t)page * PAGE_BYTES;
}

/* The content depends on the owner and the generation, never on the address: pages may move. */
static bool page_right(const struct worker *w, const struct region *r, unsigned page)
{
    uint32_t generation = r->generation[page];
    if (generation == 0)
        return page_is_zero(page_at(r, page));
    return pattern_matches(page_at(r, page), seed, w->id, generation);
}

static void page_write(struct worker *w, struct region *r, unsigned page)
{
    r->generation[page] = ++w->generation;
    pattern_fill(page_at(r, page), seed, w->id, w->generation);
}

static void verify(struct worker *w, struct region *r, unsigned page, const char *after)
{
    if (page_right(w, r, page))
        return;
    atomic_fetch_add(&total_bad, 1);
    fprintf(stderr, "BAD %s: thread %u page %p generation %u holds %016lx\n", after, w->id,
            (void *)page_at(r, page), r->generation[page], *(long *)page_at(r, page));
    /* Count each damage once: make the page known again. */
    page_write(w, r, page);
}

static void forget(struct region *r, unsigned from, unsigned count)
{
    memset(r->generation + from, 0, count * sizeof r->generation[0]);
}

static void map_region(struct worker *w, struct region *r)
{
    r->pages = PAGES_MIN + roll(w, PAGES_MAX - PAGES_MIN);
    r->base = mmap(NULL, (size_t)r->pages * PAGE_BYTES, READ_WRITE, PRIVATE, -1, 0);
    if (r->base == MAP_FAILED) {
        perror("stress: mmap");
        _exit(4);
    }
    forget(r, 0, PAGES_MAX);
}

static void drop(struct worker *w, struct region *r)
{
    unsigned from = roll(w, r->pages), count = 1 + roll(w, r->pages - from);
    madvise(page_at(r, from), (size_t)count * PAGE_BYTES, MADV_DONTNEED);
    forget(r, from, count);
    verify(w, r, from, "dontneed");
}

static void map_over(struct worker *w, struct region *r)
{
    unsigned from = roll(w, r->pages), count = 1 + roll(w, r->pages - from);
    void *got = mmap(page_at(r, from), (size_t)count * PAGE_BYTES, READ_WRITE, PRIVATE | MAP_FIXED,
                     -1, 0);
    if (got == MAP_FAILED)
        return;
    forget(r, from, count);
    verify(w, r, from + count - 1, "map fixed");
}

static void resize(struct worker *w, struct region *r)
{
    unsigned pages = PAGES_MIN + roll(w, PAGES_MAX - PAGES_MIN);
    size_t old_bytes = (size_t)r->pages * PAGE_BYTES, new_bytes = (size_t)pages * PAGE_BYTES;
    uint8_t *moved;
    if (moves_on || roll(w, 3) == 0) {
        /* Move to a place of our choice: the kernel moves page tables, not bytes. */
        void *place = mmap(NULL, new_bytes, PROT_NONE, PRIVATE, -1, 0);
        if (place == MAP_FAILED)
            return;
        moved = mremap(r->base, old_bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (moved == MAP_FAILED)
            munmap(place, new_bytes);
    } else {
        moved = mremap(r->base, old_bytes, new_bytes, MREMAP_MAYMOVE);
    }
    /*
     * mremap(2) refuses a range that a partial mapping has split into unequal ones (EFAULT).
     * Map it anew then, which is an operation of its own.
     */
    if (moved == MAP_FAILED) {
        munmap(r->base, old_bytes);
        map_region(w, r);
        return;
    }
    if (pages < r->pages)
        forget(r, pages, r->pages - pages);
    r->base = moved;
    r->pages = pages;
    verify(w, r, roll(w, pages), "mremap");
}

static void protect(struct worker *w, struct region *r)
{
    size_t half = (size_t)(r->pages / 2) * PAGE_BYTES;
    mprotect(r->base, half, roll(w, 2) ? PROT_READ : PROT_NONE);
    verify(w, r, r->pages - 1, "mprotect of a neighbour");
    mprotect(r->base, half, PROT_READ);
    verify(w, r, roll(w, r->pages / 2), "mprotect read-only");
    mprotect(r->base, (size_t)r->pages * PAGE_BYTES, READ_WRITE);
}

/* In a child: verify a part of all regions, write own copies, verify those. 0 is right. */
static int child_verify(struct worker *w)
{
    unsigned start = roll(w, 4);
    for (int k = 0; k < REGIONS; k++) {
        struct region *r = &w->regions[k];
        for (unsigned page = start; page < r->pages; page += 4)
            if (!page_right(w, r, page))
                return 1;
        unsigned page = roll(w, r->pages);
        page_write(w, r, page);
        if (!page_right(w, r, page))
            return 2;
    }
    return 0;
}

static int status_of(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 91;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void fork_child(struct worker *w)
{
    bool grandchild = roll(w, 4) == 0;
    pid_t child = fork();
    if (child == 0) {
        if (grandchild) {
            pid_t next = fork();
            if (next == 0)
                _exit(child_verify(w));
            int theirs = next < 0 ? 0 : status_of(next);
            if (theirs)
                _exit(10 + theirs);
        }
        _exit(child_verify(w));
    }
    if (child < 0)
        return;
    int status = status_of(child);
    atomic_fetch_add(&total_forks, 1);
    if (status) {
        atomic_fetch_add(&total_bad, 1);
        fprintf(stderr, "BAD fork: child of thread %u ended with %d\n", w->id, status);
    }
}

static uint8_t *lone_page(unsigned index)
{
    return lone_base + (size_t)2 * index * PAGE_BYTES;
}

static void map_lone_pages(void)
{
    size_t bytes = (size_t)2 * lone_pages * PAGE_BYTES;
    if (!lone_pages)
        return;
    lone_base = mmap(NULL, bytes, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0);
    if (lone_base == MAP_FAILED)
        _exit(4);
    for (unsigned index = 0; index < lone_pages; index++) {
        if (mprotect(lone_page(index), PAGE_BYTES, READ_WRITE)) {
            perror("stress: mprotect");
            _exit(4);
        }
        pattern_fill(lone_page(index), seed, index, 1);
    }
}

static void verify_lone_page(unsigned index)
{
    if (pattern_matches(lone_page(index), seed, index, 1))
        return;
    atomic_fetch_add(&total_bad, 1);
    fprintf(stderr, "BAD lone page %u holds %016lx\n", index, *(long *)lone_page(index));
    pattern_fill(lone_page(index), seed, index, 1);
}

static void live(struct worker *w)
{
    unsigned kind = roll(w, 16);
    bool right = kind < 4    ? life_thread(w->dice)
                 : kind < 8  ? life_signal()
                 : kind < 12 ? life_timer(roll(w, 200))
                 : kind < 15 ? life_huge(w->dice)
                             : life_exec();
    if (right)
        return;
    atomic_fetch_add(&total_bad, 1);
    fprintf(stderr, "BAD life of thread %u: kind %u: %s\n", w->id, kind, strerror(errno));
}

static void step(struct worker *w)
{
    struct region *r = &w->regions[roll(w, REGIONS)];
    unsigned dice = roll(w, 10000);
    if (moves_on && dice < 1000)
        resize(w, r);
    else if (life_on && dice < 1020)
        live(w);
    else if (lone_pages && dice < 1500)
        verify_lone_page(roll(w, lone_pages));
    else if (dice < 5000)
        verify(w, r, roll(w, r->pages), "verify");
    else if (dice < 9100)
        page_write(w, r, roll(w, r->pages));
    else if (dice < 9400)
        drop(w, r);
    else if (dice < 9500) {
        munmap(r->base, (size_t)r->pages * PAGE_BYTES);
        map_region(w, r);
    } else if (dice < 9700)
        resize(w, r);
    else if (dice < 9800)
        map_over(w, r);
    else if (dice < 9900)
        protect(w, r);
    else if (dice < 9910 && forks_on)
        fork_child(w);
    else {
        struct timespec pause = {0, 1000 * roll(w, 300)};
        nanosleep(&pause, NULL);
    }
}

static void *work(void *argument)
{
    struct worker *w = argument;
    w->regions = mmap(NULL, REGIONS * sizeof(struct region), READ_WRITE, PRIVATE, -1, 0);
    if (w->regions == MAP_FAILED)
        return NULL;
    for (int k = 0; k < REGIONS; k++) {
        map_region(w, &w->regions[k]);
        for (unsigned page = 0; page < w->regions[k].pages; page += 1 + roll(w, 3))
            page_write(w, &w->regions[k], page);
    }
    for (long done = 0; done < quota && !atomic_load(&finish); done++) {
        step(w);
        atomic_fetch_add(&total_ops, 1);
    }
    for (int k = 0; k < REGIONS; k++)
        for (unsigned page = 0; page < w->regions[k].pages; page++)
            verify(w, &w->regions[k], page, "final");
    return NULL;
}

static void print_counts(const char *prefix)
{
    answer("%sops %ld bad %ld forks %ld", prefix, atomic_load(&total_ops),
           atomic_load(&total_bad), atomic_load(&total_forks));
}

/* The end of the input is not the end of the work: stdin may well be /dev/null. */
static void *listen_to_commands(void *unused)
{
    char line[64];
    while (read_line(line, sizeof line)) {
        if (!strcmp(line, "status"))
            print_counts("");
        else if (!strcmp(line, "finish"))
            atomic_store(&finish, true);
    }
    return unused;
}

int main(int count, char **values)
{
    static struct worker workers[THREADS_MAX];
    unsigned threads = 4;
    long ops = 100000;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(values[i], "--ops"))
            ops = atol(values[i + 1]);
        else if (!strcmp(values[i], "--threads"))
            threads = atoi(values[i + 1]);
        else if (!strcmp(values[i], "--forks"))
            forks_on = !strcmp(values[i + 1], "on");
        else if (!strcmp(values[i], "--moves"))
            moves_on = !strcmp(values[i + 1], "on");
        else if (!strcmp(values[i], "--life"))
            life_on = !strcmp(values[i + 1], "on");
        else if (!strcmp(values[i], "--regions"))
            lone_pages = atoi(values[i + 1]);
        else if (!strcmp(values[i], "--seed"))
            seed = strtoul(values[i + 1], NULL, 10);
    }
    if (threads < 1 || threads > THREADS_MAX || ops < threads) {
        fprintf(stderr, "usage: stress --ops N --threads 1..16 --forks|--moves|--life on|off"
                        " --regions N --seed S\n");
        return 2;
    }
    quota = ops / threads;
    life_begins();
    map_lone_pages();
    answer("ready %d", getpid());
    for (unsigned i = 0; i < threads; i++) {
        workers[i] = (struct worker){.id = i + 1, .dice = seed * 1000003 + i};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            return 5;
    }
    pthread_t listener;
    if (pthread_create(&listener, NULL, listen_to_commands, NULL))
        return 5;
    for (unsigned i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned index = 0; index < lone_pages; index++)
        verify_lone_page(index);
    print_counts("final ");
    _exit(atomic_load(&total_bad) ? 1 : 0);
}
