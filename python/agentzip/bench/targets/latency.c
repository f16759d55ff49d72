/*
 * The target of the benchmark: a heap of known pages, and a stopwatch around each touch.
 *
 *   latency MIB        answers `ready START END` (addresses of the heap, hexadecimal)
 *   fill G             make every page anew, as of generation G      -> filled
 *   touch K SKIP SEED FILE  read one word of K random pages, one by one; with the same seed and
 *                      SKIP pages left out -> touched K (32-bit nanoseconds of each, to FILE)
 *   sweep              read one word of every page in order          -> swept NANOSECONDS
 *   verify             compare every page with what it must hold     -> wrong N
 *   drop CPU           raw userfaultfd floor: drop all, another process answers from that CPU
 *                      -> dropped
 *   restore            end of that: the rest comes home in runs      -> restored NANOSECONDS PAGES
 *   move CHUNK FILE    raw UFFDIO_MOVE of all, CHUNK bytes at a time -> moved COUNT
 *
 * Everything else it needs lies outside of that heap, so that a touch is one fault or none.
 */
#include "../../selftest/targets/protocol.h"
#include "floor.h"
#include "heap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGES_MAX = 1 << 20, SAMPLES_MAX = 1 << 17 };

static uint8_t *heap;
static uint64_t pages;
static uint64_t generation;
static uint32_t order[PAGES_MAX];
static uint32_t samples[SAMPLES_MAX];

static void fill(void)
{
    for (uint64_t page = 0; page < pages; page++)
        heap_page(heap + page * PAGE_BYTES, page, generation);
}

static uint64_t count_wrong(void)
{
    static uint8_t expected[PAGE_BYTES];
    uint64_t wrong = 0;
    for (uint64_t page = 0; page < pages; page++) {
        heap_page(expected, page, generation);
        wrong += memcmp(expected, heap + page * PAGE_BYTES, PAGE_BYTES) != 0;
    }
    return wrong;
}

/* The first `count` of a shuffled list of all pages: no page twice. */
static void shuffle(uint64_t count, uint64_t seed)
{
    for (uint64_t page = 0; page < pages; page++)
        order[page] = (uint32_t)page;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t other = at + dice(&seed) % (pages - at);
        uint32_t taken = order[other];
        order[other] = order[at];
        order[at] = taken;
    }
}

static void touch(uint64_t count, const uint32_t *chosen)
{
    for (uint64_t at = 0; at < count; at++) {
        volatile uint64_t *word = (volatile uint64_t *)(heap + (uint64_t)chosen[at] * PAGE_BYTES);
        uint64_t began = now();
        (void)*word;
        samples[at] = (uint32_t)(now() - began);
    }
}

static uint64_t sweep(void)
{
    uint64_t began = now();
    for (uint64_t page = 0; page < pages; page++)
        (void)*(volatile uint64_t *)(heap + page * PAGE_BYTES);
    return now() - began;
}

static bool save(const char *path, uint64_t count)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t bytes = (ssize_t)(count * sizeof samples[0]);
    bool right = file >= 0 && write(file, samples, (size_t)bytes) == bytes;
    if (file >= 0)
        close(file);
    return right;
}

static void report_touch(const char *command)
{
    unsigned long long count, skip, seed;
    char path[1024];
    if (sscanf(command, "touch %llu %llu %llu %1023s", &count, &skip, &seed, path) != 4 ||
        count > SAMPLES_MAX || skip > pages || count > pages - skip) {
        answer("error: bad touch");
        return;
    }
    shuffle(skip + count, seed);
    touch(count, order + skip);
    answer(save(path, count) ? "touched %llu" : "error: cannot write the samples of %llu", count);
}

static void report_move(const char *command)
{
    unsigned long long chunk;
    char path[1024];
    if (sscanf(command, "move %llu %1023s", &chunk, path) != 2 || chunk == 0) {
        answer("error: bad move");
        return;
    }
    uint64_t count = (pages * PAGE_BYTES + chunk - 1) / chunk;
    int failed = floor_move(heap, pages * PAGE_BYTES, chunk, samples);
    if (failed || !save(path, count))
        answer("error: move: %s", strerror(failed));
    else
        answer("moved %llu", (unsigned long long)count);
}

static void report_drop(int cpu)
{
    int failed = floor_open(heap, pages * PAGE_BYTES, cpu);
    answer(failed ? "error: userfaultfd floor: %s" : "dropped", strerror(failed));
}

static void report_restore(void)
{
    uint64_t nanoseconds = 0, count = 0;
    int failed = floor_close(&nanoseconds, &count);
    if (failed)
        answer("error: userfaultfd floor: %s", strerror(failed));
    else
        answer("restored %llu %llu", (unsigned long long)nanoseconds, (unsigned long long)count);
}

static void obey(const char *command)
{
    int cpu;
    if (sscanf(command, "fill %lu", &generation) == 1) {
        fill();
        answer("filled");
    } else if (strncmp(command, "touch ", 6) == 0) {
        report_touch(command);
    } else if (strcmp(command, "sweep") == 0) {
        answer("swept %llu", (unsigned long long)sweep());
    } else if (strcmp(command, "verify") == 0) {
        answer("wrong %llu", (unsigned long long)count_wrong());
    } else if (sscanf(command, "drop %d", &cpu) == 1) {
        report_drop(cpu);
    } else if (strcmp(command, "restore") == 0) {
        report_restore();
    } else if (strncmp(command, "move ", 5) == 0) {
        report_move(command);
    } else {
        answer("error: unknown command");
    }
}

int main(int count, char **arguments)
{
    pages = count > 1 ? strtoull(arguments[1], NULL, 10) * 256 : 0;
    if (pages == 0 || pages > PAGES_MAX)
        return 2;
    size_t bytes = pages * PAGE_BYTES;
    heap = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED)
        return 1;
    madvise(heap, bytes, MADV_NOHUGEPAGE);
    memset(order, 0, sizeof order);
    memset(samples, 0, sizeof samples);
    fill();
    answer("ready %lx %lx", (unsigned long)(uintptr_t)heap, (unsigned long)(uintptr_t)heap + bytes);
    char command[2048];
    while (read_line(command, sizeof command))
        obey(command);
    return 0;
}
