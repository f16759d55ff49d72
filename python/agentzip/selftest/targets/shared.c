/*
 * shared: memory that a child has in common with us since its fork, so that the pager must have the
 * kernel copy it before it can leave.  Commands:
 *   where           the memory                                        ok START END
 *   drop            every second page is given back to the kernel     ok PAGES
 *   part            the child ends; nothing is shared any more        ok
 *   verify          pages against their pattern, dropped ones zero    ok PAGES | bad COUNT
 *   exit
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "pattern.h"
#include "protocol.h"

enum { PAGES = 4096, SEED = 12 };

static uint8_t *memory;
static bool dropped;
static pid_t child;

static void verify(void)
{
    static const uint8_t zeros[PAGE_BYTES];
    int bad = 0;
    for (int i = 0; i < PAGES; i++) {
        const uint8_t *page = memory + (size_t)i * PAGE_BYTES;
        if (dropped && i % 2)
            bad += memcmp(page, zeros, PAGE_BYTES) != 0;
        else
            bad += !pattern_matches(page, SEED, i, 1);
    }
    answer(bad ? "bad %d" : "ok %d", bad ? bad : PAGES);
}

static void drop(void)
{
    dropped = true;
    for (int i = 1; i < PAGES; i += 2)
        if (madvise(memory + (size_t)i * PAGE_BYTES, PAGE_BYTES, MADV_DONTNEED)) {
            answer("bad errno %d", errno);
            return;
        }
    answer("ok %d", PAGES / 2);
}

static void part(void)
{
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    child = 0;
    answer("ok");
}

int main(void)
{
    memory = mmap(NULL, (size_t)PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, (size_t)PAGES * PAGE_BYTES, MADV_NOHUGEPAGE)) {
        perror("shared");
        return 1;
    }
    for (int i = 0; i < PAGES; i++)
        pattern_fill(memory + (size_t)i * PAGE_BYTES, SEED, i, 1);
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    answer("ready %d", getpid());
    char line[64];
    while (read_line(line, sizeof line)) {
        if (!strcmp(line, "where"))
            answer("ok %zu %zu", (size_t)memory, (size_t)memory + (size_t)PAGES * PAGE_BYTES);
        else if (!strcmp(line, "drop"))
            drop();
        else if (!strcmp(line, "part"))
            part();
        else if (!strcmp(line, "verify"))
            verify();
        else if (!strcmp(line, "exit"))
            break;
    }
    if (child > 0)
        kill(child, SIGKILL);
    _exit(0);
}
