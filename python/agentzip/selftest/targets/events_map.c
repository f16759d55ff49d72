/*
 * Operations on the address space itself: moving, dropping, replacing and protecting mappings.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "events.h"

enum { READ_WRITE = PROT_READ | PROT_WRITE, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS };
enum { HALF = REGION_PAGES / 2, QUARTER = REGION_PAGES / 4 };

/* New pages at the end of a region read as zeros. */
static void grown(struct region *r, uint8_t *base, struct verdict *v)
{
    if (base == MAP_FAILED) {
        fail(v, "mremap: %s", strerror(errno));
        return;
    }
    r->base = base;
    expect(r, r->pages, r->pages, ZERO);
    r->pages *= 2;
    check(r, v, "after growth");
}

static void mremap_grow(struct region *r, struct verdict *v)
{
    munmap(r->room, REGION_BYTES);
    uint8_t *base = mremap(r->base, REGION_BYTES, 2 * REGION_BYTES, 0);
    grown(r, base, v);
}

static void mremap_maymove(struct region *r, struct verdict *v)
{
    uint8_t *old = r->base;
    uint8_t *base = mremap(r->base, REGION_BYTES, 2 * REGION_BYTES, MREMAP_MAYMOVE);
    if (base == old)
        fail(v, "the room behind the region was not taken");
    grown(r, base, v);
    if (!read_faults(old))
        fail(v, "the old place is still mapped");
}

static void mremap_fixed(struct region *r, struct verdict *v)
{
    uint8_t *place = r->room + 7 * PAGE_BYTES, *old = r->base;
    uint8_t *base = mremap(r->base, REGION_BYTES, REGION_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED,
                           place);
    if (base != place) {
        fail(v, "mremap: %s", strerror(errno));
        return;
    }
    r->base = base;
    check(r, v, "after the move");
    if (!read_faults(old))
        fail(v, "the old place is still mapped");
}

/* The second half moves over the first, whose pages are out as well. */
static void mremap_over(struct region *r, struct verdict *v)
{
    uint8_t *base = mremap(page_at(r, HALF), REGION_BYTES / 2, REGION_BYTES / 2,
                           MREMAP_MAYMOVE | MREMAP_FIXED, r->base);
    if (base != r->base) {
        fail(v, "mremap: %s", strerror(errno));
        return;
    }
    for (unsigned page = 0; page < HALF; page++)
        if (!pattern_matches(page_at(r, page), r->seed, HALF + page, 1))
            fail(v, "page %u is not the one that was moved", page);
    expect(r, 0, HALF, UNTOUCHED);
    r->pages = HALF;
}

static void mremap_dontunmap(struct region *r, struct verdict *v)
{
    struct region old = *r;
    uint8_t *base = mremap(r->base, REGION_BYTES, REGION_BYTES,
                           MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (base == MAP_FAILED) {
        fail(v, "mremap: %s", strerror(errno));
        return;
    }
    expect(&old, 0, old.pages, ZERO);
    check(&old, v, "the old place");
    r->base = base;
    check(r, v, "the new place");
}

static void mremap_shrink(struct region *r, struct verdict *v)
{
    uint8_t *end = page_at(r, HALF);
    if (mremap(r->base, REGION_BYTES, REGION_BYTES / 2, 0) != r->base)
        fail(v, "mremap: %s", strerror(errno));
    r->pages = HALF;
    check(r, v, "after shrinking");
    if (!read_faults(end))
        fail(v, "the cut part is still mapped");
}

static void munmap_mmap(struct region *r, struct verdict *v)
{
    munmap(r->base, REGION_BYTES);
    if (mmap(r->base, REGION_BYTES, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0) != r->base)
        fail(v, "mmap: %s", strerror(errno));
    expect(r, 0, r->pages, ZERO);
    /* The rest is touched first after the next page out, which watches the new mapping. */
    r->pages = HALF;
    check(r, v, "mapped again");
    write_page(r, 3);
    check(r, v, "written again");
    r->pages = REGION_PAGES;
}

/* Unmapping the middle leaves two mappings, each with pages out. */
static void munmap_middle(struct region *r, struct verdict *v)
{
    munmap(page_at(r, QUARTER), REGION_BYTES / 2);
    expect(r, QUARTER, HALF, UNTOUCHED);
    check(r, v, "both ends");
    if (!read_faults(page_at(r, HALF)))
        fail(v, "the middle is still mapped");
}

static void map_fixed_anonymous(struct region *r, struct verdict *v)
{
    mmap(page_at(r, QUARTER), REGION_BYTES / 2, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0);
    expect(r, QUARTER, HALF, ZERO);
    check(r, v, "mapped over");
}

static void map_fixed_file(struct region *r, struct verdict *v)
{
    int file = open_file(0, v);
    mmap(page_at(r, QUARTER), REGION_BYTES / 2, PROT_READ, MAP_PRIVATE | MAP_FIXED, file,
         QUARTER * PAGE_BYTES);
    close(file);
    expect(r, QUARTER, HALF, FILE_BYTES);
    check(r, v, "file mapped over");
}

static void map_fixed_none(struct region *r, struct verdict *v)
{
    mmap(page_at(r, QUARTER), REGION_BYTES / 2, PROT_NONE, PRIVATE | MAP_FIXED, -1, 0);
    expect(r, QUARTER, HALF, UNTOUCHED);
    if (!read_faults(page_at(r, HALF)))
        fail(v, "PROT_NONE can be read");
    check(r, v, "around PROT_NONE");
    mprotect(page_at(r, QUARTER), REGION_BYTES / 2, READ_WRITE);
    expect(r, QUARTER, HALF, ZERO);
    check(r, v, "opened again");
}

static void dontneed(struct region *r, struct verdict *v)
{
    if (madvise(r->base, REGION_BYTES / 2, MADV_DONTNEED))
        fail(v, "madvise: %s", strerror(errno));
    expect(r, 0, HALF, ZERO);
    check(r, v, "dropped half");
    write_page(r, 2);
    check(r, v, "written again");
}

/* Until the next write both the old content and zeros are right; after it only the written. */
static void madv_free(struct region *r, struct verdict *v)
{
    if (madvise(r->base, REGION_BYTES / 2, MADV_FREE))
        fail(v, "madvise: %s", strerror(errno));
    expect(r, 0, HALF, EITHER);
    check(r, v, "freed half");
    for (unsigned page = 0; page < HALF; page += 2)
        write_page(r, page);
    check(r, v, "every second written again");
}

static void mprotect_read(struct region *r, struct verdict *v)
{
    mprotect(r->base, REGION_BYTES / 2, PROT_READ);
    if (!write_faults(page_at(r, 1)))
        fail(v, "a read-only page can be written");
    check(r, v, "read-only half");
    mprotect(r->base, REGION_BYTES / 2, READ_WRITE);
    if (write_faults(page_at(r, 1)))
        fail(v, "a page cannot be written after it was opened again");
    check(r, v, "writable again");
}

static void mprotect_none(struct region *r, struct verdict *v)
{
    mprotect(r->base, REGION_BYTES, PROT_NONE);
    if (!read_faults(page_at(r, 1)))
        fail(v, "PROT_NONE can be read");
    mprotect(r->base, REGION_BYTES, READ_WRITE);
    check(r, v, "readable again");
}

static void lock(struct region *r, struct verdict *v)
{
    if (mlock(r->base, REGION_BYTES))
        fail(v, "mlock: %s", strerror(errno));
    check(r, v, "locked");
    munlock(r->base, REGION_BYTES);
    check(r, v, "unlocked");
}

static void populate_read(struct region *r, struct verdict *v)
{
    if (madvise(r->base, REGION_BYTES, MADV_POPULATE_READ))
        fail(v, "madvise: %s", strerror(errno));
    check(r, v, "populated");
}

static void populate_write(struct region *r, struct verdict *v)
{
    if (madvise(r->base, REGION_BYTES, MADV_POPULATE_WRITE))
        fail(v, "madvise: %s", strerror(errno));
    check(r, v, "populated");
}

/* Whether the kernel agrees to collapse is its business; the bytes are ours. */
static void collapse(struct region *r, struct verdict *v)
{
    madvise(r->base, REGION_BYTES, ADVICE_COLLAPSE);
    check(r, v, "collapsed");
}

static void pageout(struct region *r, struct verdict *v)
{
    madvise(r->base, REGION_BYTES, MADV_PAGEOUT);
    check(r, v, "after the target's own MADV_PAGEOUT");
}

/* The break goes down over pages that are out and up again: they must be new. */
static void brk_prepare(struct region *r, struct verdict *v)
{
    sbrk(-(uintptr_t)sbrk(0) & (PAGE_BYTES - 1));
    munmap(r->base, REGION_BYTES);
    r->base = sbrk(REGION_BYTES);
    if (r->base == (void *)-1)
        fail(v, "sbrk: %s", strerror(errno));
    else
        fill_region(r);
}

static void brk_shrink(struct region *r, struct verdict *v)
{
    if (sbrk(0) != page_at(r, r->pages)) {
        skip(v, "the allocator moved the break");
        return;
    }
    if (brk(page_at(r, HALF)) || sbrk(REGION_BYTES / 2) != page_at(r, HALF))
        fail(v, "brk: %s", strerror(errno));
    expect(r, HALF, HALF, ZERO);
    check(r, v, "shrunk and grown");
}

/* A large mapping with few pages in it: most first touches find nothing that was ever there. */
static void sparse_prepare(struct region *r, struct verdict *v)
{
    (void)v;
    r->base = map_anonymous((size_t)PAGES_MAX * PAGE_BYTES);
    r->pages = PAGES_MAX;
    expect(r, 0, PAGES_MAX, ZERO);
    for (unsigned page = 0; page < PAGES_MAX; page += 37)
        write_page(r, page);
}

static void sparse(struct region *r, struct verdict *v)
{
    for (unsigned page = 5; page < PAGES_MAX; page += 37)
        write_page(r, page);
    check(r, v, "sparse");
}

const struct operation map_operations[] = {
    {"mremap-grow", 'y', NULL, mremap_grow},
    {"mremap-maymove", 'y', NULL, mremap_maymove},
    {"mremap-fixed", 'y', NULL, mremap_fixed},
    {"mremap-over", 'y', NULL, mremap_over},
    {"mremap-dontunmap", 'y', NULL, mremap_dontunmap},
    {"mremap-shrink", 'y', NULL, mremap_shrink},
    {"munmap-mmap", 'y', NULL, munmap_mmap},
    {"munmap-middle", 'y', NULL, munmap_middle},
    {"map-fixed-anonymous", 'y', NULL, map_fixed_anonymous},
    {"map-fixed-file", 'y', NULL, map_fixed_file},
    {"map-fixed-none", 'y', NULL, map_fixed_none},
    {"dontneed", 'y', NULL, dontneed},
    {"free", 'y', NULL, madv_free},
    {"mprotect-read", 'y', NULL, mprotect_read},
    {"mprotect-none", 'y', NULL, mprotect_none},
    {"mlock", 'y', NULL, lock},
    {"populate-read", 'y', NULL, populate_read},
    {"populate-write", 'y', NULL, populate_write},
    {"collapse", 'y', NULL, collapse},
    {"pageout", 'y', NULL, pageout},
    {"brk-shrink", 'y', brk_prepare, brk_shrink},
    {"sparse", 'm', sparse_prepare, sparse},
    {NULL, 0, NULL, NULL},
};
