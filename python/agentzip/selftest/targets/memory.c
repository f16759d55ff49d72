/*
 * memory MIB [SEED]: a process that holds MIB of known content and can check every page itself.
 *
 * The exactness checks page its memory out and ask it to verify.  Commands, one answer line each:
 *   verify            every page against its pattern      ok PAGES | bad COUNT first=INDEX
 *   touch I, write I  check / rewrite one page            writeall: rewrite every page
 *   walk I COUNT STEP, rewrite I COUNT STEP               the same with every STEPth page from I
 *   grow-brk MIB, grow-mmap MIB                           more pages, by sbrk(2) or mmap(2)
 *   threads N, stop-threads                               busy threads that verify and write
 *   churn MS          threads that come and go for MS milliseconds
 *   hold-lock GIB MS  a thread that keeps the address space locked, a while each time, by changing
 *                     GIB of empty pages, for MS milliseconds
 *   fork-verify       a child and a grandchild verify, write their copies and verify again
 *   leader-exit       the first thread ends, the process lives on in another
 *   ping              an answer that touches next to nothing
 *   where             byte ranges of the content          exec: start this program anew   exit
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

/* Newer than the headers of some distributions that the targets are compiled on. */
enum { ADVICE_POPULATE_READ = 22 };
enum { BLOCKS_MAX = 64, PARTS = 16, MIB_PAGES = 256 };

/* A run of pages and the generation each of them holds now. */
struct block {
    uint8_t *base;
    uint64_t first;
    uint64_t pages;
    uint32_t *generation;
};

static struct block blocks[BLOCKS_MAX];
static atomic_int block_count;
static uint64_t page_count;
static uint64_t seed = 1;
static char **arguments;

/* Guards the pages whose index is congruent to the slot, content and generation together. */
static pthread_mutex_t part_lock[PARTS];

static pthread_t workers[PARTS];
static int worker_count;
static atomic_bool workers_stop;
static atomic_long worker_bad, worker_steps;

static void *map_pages(uint64_t pages)
{
    void *base = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

static bool add_block(uint8_t *base, uint64_t pages)
{
    int slot = atomic_load(&block_count);
    uint32_t *generation = map_pages((pages * sizeof(uint32_t) + PAGE_BYTES - 1) / PAGE_BYTES);
    if (!base || !generation || slot == BLOCKS_MAX)
        return false;
    for (uint64_t i = 0; i < pages; i++) {
        generation[i] = 1;
        pattern_fill(base + i * PAGE_BYTES, seed, page_count + i, 1);
    }
    blocks[slot] = (struct block){base, page_count, pages, generation};
    page_count += pages;
    atomic_store(&block_count, slot + 1);
    return true;
}

static struct block *block_of(uint64_t index)
{
    int count = atomic_load(&block_count);
    for (int i = 0; i < count; i++)
        if (index - blocks[i].first < blocks[i].pages)
            return &blocks[i];
    abort();
}

static bool page_right(uint64_t index)
{
    struct block *block = block_of(index);
    uint64_t at = index - block->first;
    return pattern_matches(block->base + at * PAGE_BYTES, seed, index, block->generation[at]);
}

static void page_write(uint64_t index)
{
    struct block *block = block_of(index);
    uint64_t at = index - block->first;
    pattern_fill(block->base + at * PAGE_BYTES, seed, index, ++block->generation[at]);
}

static bool check_locked(uint64_t index)
{
    pthread_mutex_lock(&part_lock[index % PARTS]);
    bool right = page_right(index);
    pthread_mutex_unlock(&part_lock[index % PARTS]);
    return right;
}

static void write_locked(uint64_t index)
{
    pthread_mutex_lock(&part_lock[index % PARTS]);
    page_write(index);
    pthread_mutex_unlock(&part_lock[index % PARTS]);
}

static void verify_all(void)
{
    uint64_t bad = 0, first = 0;
    for (uint64_t i = 0; i < page_count; i++)
        if (!check_locked(i) && bad++ == 0)
            first = i;
    bad += atomic_load(&worker_bad);
    if (bad)
        answer("bad %lu first=%lu address=%p", bad, first,
               (void *)(block_of(first)->base + (first - block_of(first)->first) * PAGE_BYTES));
    else
        answer("ok %lu", page_count);
}

/* Check or rewrite COUNT pages; STEP sets them apart. */
static void walk(uint64_t first, uint64_t count, uint64_t step, void (*change)(uint64_t))
{
    uint64_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t index = (first + i * step) % page_count;
        if (change)
            change(index);
        else
            bad += !check_locked(index);
    }
    answer(bad ? "bad %lu" : "ok %lu", bad ? bad : count);
}

static void *work(void *argument)
{
    uint64_t state = seed + 7919 * (uintptr_t)argument;
    uint64_t pages = page_count;
    while (!atomic_load(&workers_stop)) {
        uint64_t dice = pattern_next(&state);
        uint64_t index = (dice >> 8) % pages;
        if ((dice & 3) == 0)
            write_locked(index);
        else if (!check_locked(index))
            atomic_fetch_add(&worker_bad, 1);
        atomic_fetch_add(&worker_steps, 1);
    }
    return NULL;
}

static void start_threads(int count)
{
    if (worker_count || count < 1 || count > PARTS) {
        answer("bad thread count");
        return;
    }
    atomic_store(&workers_stop, false);
    for (; worker_count < count; worker_count++)
        if (pthread_create(&workers[worker_count], NULL, work, (void *)(uintptr_t)worker_count))
            break;
    answer(worker_count == count ? "ok %d" : "bad only %d threads", worker_count);
}

static void stop_threads(void)
{
    atomic_store(&workers_stop, true);
    for (int i = 0; i < worker_count; i++)
        pthread_join(workers[i], NULL);
    worker_count = 0;
    long bad = atomic_load(&worker_bad);
    answer(bad ? "bad %ld pages in threads" : "ok %ld", bad ? bad : atomic_load(&worker_steps));
}

static void *visit(void *argument)
{
    if (!check_locked((uintptr_t)argument % page_count))
        atomic_fetch_add(&worker_bad, 1);
    return NULL;
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A debugger that lists threads and then visits them meets threads that are gone already. */
static void churn(long milliseconds)
{
    long end = now_ms() + milliseconds, made = 0;
    while (now_ms() < end) {
        pthread_t thread[4];
        int started = 0;
        for (; started < 4; started++)
            if (pthread_create(&thread[started], NULL, visit, (void *)(uintptr_t)(made * 31)))
                break;
        for (int i = 0; i < started; i++)
            pthread_join(thread[i], NULL);
        made += started;
    }
    answer("ok %ld", made);
}

struct hold {
    size_t bytes;
    long milliseconds;
};
static struct hold hold;

/* Changing a protection takes the lock of the address space for as long as there are pages. */
static void *hold_lock(void *argument)
{
    uint8_t *base = argument;
    long end = now_ms() + hold.milliseconds;
    for (int i = 0; now_ms() < end; i++)
        mprotect(base, hold.bytes, i & 1 ? PROT_READ | PROT_EXEC : PROT_READ);
    munmap(base, hold.bytes);
    return NULL;
}

static void start_hold(size_t gib, long milliseconds)
{
    hold = (struct hold){gib << 30, milliseconds};
    void *base = mmap(NULL, hold.bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    pthread_t thread;
    /* Left alone by the pager, and without memory: every page is the one page of zeros. */
    if (base == MAP_FAILED || madvise(base, hold.bytes, MADV_DONTDUMP)
        || (madvise(base, hold.bytes, MADV_NOHUGEPAGE) && errno != EINVAL))
        answer("bad cannot map %zu GiB: %s", gib, strerror(errno));
    else if (madvise(base, hold.bytes, ADVICE_POPULATE_READ))
        answer("skip no MADV_POPULATE_READ: %s", strerror(errno));
    else {
        long began = now_ms();
        mprotect(base, hold.bytes, PROT_READ | PROT_EXEC);
        long held = now_ms() - began;
        if (pthread_create(&thread, NULL, hold_lock, base)) {
            answer("bad pthread_create");
            return;
        }
        pthread_detach(thread);
        answer("ok %ld", held);
    }
}

/* Runs in a forked child: only this thread exists, so no lock is needed or taken. */
static int verify_as_child(void)
{
    for (uint64_t i = 0; i < page_count; i++)
        if (!page_right(i))
            return 1;
    for (uint64_t i = 0; i < page_count; i += 7)
        page_write(i);
    for (uint64_t i = 0; i < page_count; i++)
        if (!page_right(i))
            return 2;
    return 0;
}

static int status_of(pid_t child)
{
    int status;
    if (child < 0)
        return 90;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 91;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void fork_verify(void)
{
    /* All locks are held over the fork so that no page is half written in the child's copy. */
    for (int i = 0; i < PARTS; i++)
        pthread_mutex_lock(&part_lock[i]);
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(verify_as_child());
        int own = verify_as_child();
        int theirs = status_of(grandchild);
        _exit(own ? own : theirs ? theirs + 10 : 0);
    }
    for (int i = 0; i < PARTS; i++)
        pthread_mutex_unlock(&part_lock[i]);
    int status = status_of(child);
    answer(status ? "bad child status %d" : "ok %d", status);
}

static void where(void)
{
    char text[2048] = "";
    int count = atomic_load(&block_count), used = 0;
    for (int i = 0; i < count && used < (int)sizeof text - 64; i++)
        used += snprintf(text + used, sizeof text - used, " %lx-%lx", (long)blocks[i].base,
                         (long)(blocks[i].base + blocks[i].pages * PAGE_BYTES));
    answer("ok%s", text);
}

static void grow(const char *how, uint64_t mib)
{
    uint64_t pages = mib * MIB_PAGES;
    uint8_t *base;
    if (how[0] == 'b') {
        /* The break need not be page-aligned: libc's allocator moved it before us. */
        uintptr_t gap = -(uintptr_t)sbrk(0) & (PAGE_BYTES - 1);
        if (sbrk(gap) == (void *)-1) {
            answer("bad sbrk");
            return;
        }
        base = sbrk(pages * PAGE_BYTES);
        if (base == (void *)-1)
            base = NULL;
    } else {
        base = map_pages(pages);
    }
    answer(add_block(base, pages) ? "ok %lu" : "bad cannot grow from %lu", page_count);
}

static void *serve(void *first_answer)
{
    char line[128];
    if (first_answer)
        answer("%s", (const char *)first_answer);
    while (read_line(line, sizeof line)) {
        char word[32] = "";
        unsigned long number = 0, second = 0, third = 1;
        sscanf(line, "%31s %lu %lu %lu", word, &number, &second, &third);
        if (!strcmp(word, "verify"))
            verify_all();
        else if (!strcmp(word, "touch"))
            answer(check_locked(number % page_count) ? "ok" : "bad page %lu", number);
        else if (!strcmp(word, "write")) {
            write_locked(number % page_count);
            answer("ok");
        } else if (!strcmp(word, "walk"))
            walk(number, second, third, NULL);
        else if (!strcmp(word, "rewrite"))
            walk(number, second, third, write_locked);
        else if (!strcmp(word, "writeall")) {
            for (uint64_t i = 0; i < page_count; i++)
                write_locked(i);
            answer("ok %lu", page_count);
        } else if (!strcmp(word, "grow-brk") || !strcmp(word, "grow-mmap"))
            grow(word + 5, number);
        else if (!strcmp(word, "threads"))
            start_threads(number);
        else if (!strcmp(word, "stop-threads"))
            stop_threads();
        else if (!strcmp(word, "churn"))
            churn(number);
        else if (!strcmp(word, "hold-lock"))
            start_hold(number, second);
        else if (!strcmp(word, "ping"))
            answer("ok");
        else if (!strcmp(word, "fork-verify"))
            fork_verify();
        else if (!strcmp(word, "where"))
            where();
        else if (!strcmp(word, "leader-exit")) {
            pthread_t heir;
            if (pthread_create(&heir, NULL, serve, "ok the leader is gone") == 0)
                pthread_exit(NULL);
            answer("bad pthread_create");
        } else if (!strcmp(word, "exec")) {
            execv("/proc/thread-self/exe", arguments);
            answer("bad execv: %s", strerror(errno));
        } else if (!strcmp(word, "exit"))
            _exit(0);
        else
            answer("bad unknown command %s", word);
    }
    _exit(0);
}

int main(int count, char **values)
{
    arguments = values;
    if (count < 2) {
        fprintf(stderr, "usage: memory MIB [SEED]\n");
        return 2;
    }
    if (count > 2)
        seed = strtoul(values[2], NULL, 10);
    for (int i = 0; i < PARTS; i++)
        pthread_mutex_init(&part_lock[i], NULL);
    uint64_t pages = strtoul(values[1], NULL, 10) * MIB_PAGES;
    if (!pages || !add_block(map_pages(pages), pages)) {
        fprintf(stderr, "memory: cannot map %lu pages\n", pages);
        return 1;
    }
    answer("ready %d", getpid());
    serve(NULL);
    return 0;
}
