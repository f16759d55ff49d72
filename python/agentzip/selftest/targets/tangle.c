/*
 * tangle THREADS: threads that do nothing but move their mappings to where another's has just been.
 *
 * All mappings are of one length, so the place that the kernel finds for a new one is mostly the
 * hole that some thread's mremap(2) has left a moment ago, before that thread could say so.  Now
 * and then all rest, so that their pages can leave, and look at their pages after the next moves.
 *
 * Commands, one answer line each:
 *   status     ops MOVES bad PAGES
 *   finish     final ops MOVES bad PAGES, and the end
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "pattern.h"
#include "protocol.h"

enum { PAGES = 4, BYTES = PAGES * PAGE_BYTES, MOVES_PER_LOOK = 100, THREADS_MAX = 64 };

static atomic_long moves, bad;
static atomic_bool over;
static pthread_barrier_t all;
/* Written between two barriers by one thread. */
static bool last;

static void *map(int protection)
{
    void *place = mmap(NULL, BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        _exit(4);
    return place;
}

static void write_all(uint64_t *base, uint64_t thread)
{
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t word = 0; word < 8; word++)
            base[page * PAGE_WORDS + word] = ~(thread * PAGES + page);
}

static void look(uint64_t *base, uint64_t thread)
{
    for (uint64_t page = 0; page < PAGES; page++) {
        uint64_t found = base[page * PAGE_WORDS];
        if (found != ~(thread * PAGES + page)) {
            atomic_fetch_add(&bad, 1);
            fprintf(stderr, "BAD page %lu of thread %lu at %p: %016lx\n", page, thread,
                    (void *)base, found);
        }
    }
    write_all(base, thread);
}

static void *work(void *argument)
{
    uint64_t thread = (uint64_t)argument, *base = map(PROT_READ | PROT_WRITE);
    write_all(base, thread);
    for (;;) {
        const struct timespec rest = {0, 8000000};
        if (pthread_barrier_wait(&all) == PTHREAD_BARRIER_SERIAL_THREAD)
            last = atomic_load(&over);
        pthread_barrier_wait(&all);
        if (last)
            break;
        nanosleep(&rest, NULL);
        for (int move = 0; move < MOVES_PER_LOOK; move++) {
            void *place = map(PROT_NONE);
            if (mremap(base, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place)
                _exit(5);
            base = place;
        }
        atomic_fetch_add(&moves, MOVES_PER_LOOK);
        look(base, thread);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    char line[64];
    pthread_t threads[THREADS_MAX];
    long wanted = count > 1 ? atol(arguments[1]) : 4;
    if (wanted < 1 || wanted > THREADS_MAX || pthread_barrier_init(&all, NULL, wanted))
        return 2;
    for (long k = 0; k < wanted; k++)
        if (pthread_create(&threads[k], NULL, work, (void *)k))
            return 3;
    answer("ready %d", getpid());
    while (read_line(line, sizeof line)) {
        bool finish = !strcmp(line, "finish");
        if (finish) {
            atomic_store(&over, true);
            for (long k = 0; k < wanted; k++)
                pthread_join(threads[k], NULL);
        }
        answer("%sops %ld bad %ld", finish ? "final " : "", atomic_load(&moves),
               atomic_load(&bad));
        if (finish)
            return 0;
    }
    return 0;
}
