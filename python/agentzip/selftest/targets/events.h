/*
 * What the parts of the `events` target share: regions whose expected content is known per page,
 * and operations on them.
 *
 * An operation prepares its region before the pager sees the process, and is performed when all
 * pages are out.  It changes the expectation of the pages along with the pages, so the same region
 * can be checked again after any later page out.
 */
#ifndef AGENTZIP_EVENTS_H
#define AGENTZIP_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "pattern.h"

/* Newer than the headers of some distributions that the targets are compiled on. */
enum { ADVICE_COLLAPSE = 25, ADVICE_GUARD_INSTALL = 102, ADVICE_GUARD_REMOVE = 103 };

enum { REGION_PAGES = 64, PAGES_MAX = 1024, ROOM_PAGES = 1024, TEXT_MAX = 240 };
#define REGION_BYTES ((size_t)REGION_PAGES * PAGE_BYTES)

/* What a page must hold. */
enum expectation {
    PATTERN = 'p',     /* the region's own pattern */
    ZERO = 'z',
    FILE_BYTES = 'f',  /* the pattern of the helper file */
    EITHER = 'e',      /* the pattern or zeros: what MADV_FREE promises until the next write */
    UNTOUCHED = '-',   /* not to be looked at: a guard, unmapped, or somebody else's bytes */
};

struct region {
    uint8_t *base;
    uint8_t *room;     /* free address space after the region, ROOM_PAGES long, PROT_NONE */
    unsigned pages;
    uint64_t seed;
    char expect[PAGES_MAX];
};

struct verdict {
    char state;        /* 'o' ok, 'b' bad, 's' skipped */
    char text[TEXT_MAX];
};

/* `leaves`: 'y' the region must go out, 'n' it must stay, 'm' some of it may stay. */
struct operation {
    const char *name;
    char leaves;
    void (*prepare)(struct region *, struct verdict *);
    void (*perform)(struct region *, struct verdict *);
};

extern const struct operation map_operations[], io_operations[], fork_operations[],
    special_operations[];
extern const char *work_directory;

/* The first thing that goes wrong is the one that is told. */
__attribute__((format(printf, 2, 3))) void fail(struct verdict *, const char *format, ...);
__attribute__((format(printf, 2, 3))) void skip(struct verdict *, const char *format, ...);

void expect(struct region *, unsigned from, unsigned count, enum expectation);
void check(const struct region *, struct verdict *, const char *when);
int count_wrong(const struct region *);
void *map_anonymous(size_t bytes);
void fill_region(struct region *);
void write_page(struct region *, unsigned page);
int status_of(pid_t child);

/* True if reading (or writing) the byte raises SIGSEGV or SIGBUS; the write keeps the value. */
bool read_faults(const volatile uint8_t *);
bool write_faults(volatile uint8_t *);

/* A file of REGION_BYTES that holds FILE_BYTES; opened with `flags`, -1 on failure. */
int open_file(int flags, struct verdict *);
enum { FILE_SEED = 0xf11e };

static inline uint8_t *page_at(const struct region *r, unsigned page)
{
    return r->base + (size_t)page * PAGE_BYTES;
}

#endif
