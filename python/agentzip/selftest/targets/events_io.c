/*
 * Operations in which the kernel, not the program, reads or writes the memory that is out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "events.h"

enum { RING_ENTRIES = 8, PIPE_PAGES = 8 };

static void wants(struct verdict *v, const char *call, ssize_t got, size_t wanted)
{
    if (got < 0)
        fail(v, "%s: %s", call, strerror(errno));
    else if ((size_t)got != wanted)
        fail(v, "%s: %zd of %zu bytes", call, got, wanted);
}

/* What arrived in the file must be the region's pattern. */
static void file_matches(int file, const struct region *r, struct verdict *v)
{
    uint8_t page[PAGE_BYTES];
    for (unsigned i = 0; i < REGION_PAGES; i++) {
        wants(v, "pread back", pread(file, page, sizeof page, (off_t)i * PAGE_BYTES), sizeof page);
        if (!pattern_matches(page, r->seed, i, 1))
            fail(v, "page %u in the file is wrong", i);
    }
}

static void read_into(struct region *r, struct verdict *v)
{
    int file = open_file(0, v);
    wants(v, "read", read(file, r->base, REGION_BYTES), REGION_BYTES);
    close(file);
    expect(r, 0, r->pages, FILE_BYTES);
    check(r, v, "read");
}

static void write_from(struct region *r, struct verdict *v)
{
    int file = open_file(0, v);
    wants(v, "pwrite", pwrite(file, r->base, REGION_BYTES, 0), REGION_BYTES);
    file_matches(file, r, v);
    close(file);
    check(r, v, "written");
}

/* A few bytes into the middle of each page: the rest must still be what it was. */
static void pread_into_middle(struct region *r, struct verdict *v)
{
    enum { AT = 1000, COUNT = 100 };
    uint8_t expected[PAGE_BYTES], from_file[PAGE_BYTES];
    int file = open_file(0, v);
    for (unsigned i = 0; i < REGION_PAGES; i++) {
        off_t offset = (off_t)i * PAGE_BYTES;
        wants(v, "pread", pread(file, page_at(r, i) + AT, COUNT, offset), COUNT);
        pattern_fill(expected, r->seed, i, 1);
        pattern_fill(from_file, FILE_SEED, i, 1);
        memcpy(expected + AT, from_file, COUNT);
        if (memcmp(expected, page_at(r, i), PAGE_BYTES))
            fail(v, "page %u is wrong", i);
    }
    close(file);
    expect(r, 0, r->pages, UNTOUCHED);
}

/* One call that scatters over pages in reverse order. */
static void readv_into(struct region *r, struct verdict *v)
{
    struct iovec parts[REGION_PAGES];
    int file = open_file(0, v);
    for (unsigned i = 0; i < REGION_PAGES; i++)
        parts[i] = (struct iovec){page_at(r, REGION_PAGES - 1 - i), PAGE_BYTES};
    wants(v, "preadv", preadv(file, parts, REGION_PAGES, 0), REGION_BYTES);
    close(file);
    for (unsigned i = 0; i < REGION_PAGES; i++)
        if (!pattern_matches(page_at(r, REGION_PAGES - 1 - i), FILE_SEED, i, 1))
            fail(v, "part %u is wrong", i);
    expect(r, 0, r->pages, UNTOUCHED);
}

static void direct_read(struct region *r, struct verdict *v)
{
    int file = open_file(O_DIRECT, v);
    if (file < 0)
        return;
    wants(v, "O_DIRECT pread", pread(file, r->base, REGION_BYTES, 0), REGION_BYTES);
    close(file);
    expect(r, 0, r->pages, FILE_BYTES);
    check(r, v, "O_DIRECT read");
}

static void direct_write(struct region *r, struct verdict *v)
{
    int file = open_file(O_DIRECT, v);
    if (file < 0)
        return;
    wants(v, "O_DIRECT pwrite", pwrite(file, r->base, REGION_BYTES, 0), REGION_BYTES);
    /* Reading back needs aligned memory with this flag, so it is taken off. */
    fcntl(file, F_SETFL, 0);
    file_matches(file, r, v);
    close(file);
    check(r, v, "O_DIRECT written");
}

/* A submission ring made by bare system calls; one request at a time. */
struct ring {
    int fd;
    uint8_t *rings;
    struct io_uring_sqe *entries;
    struct io_uring_params parameters;
};

static bool ring_open(struct ring *ring, struct verdict *v)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = syscall(SYS_io_uring_setup, RING_ENTRIES, &ring->parameters);
    if (ring->fd < 0) {
        skip(v, "io_uring_setup: %s", strerror(errno));
        return false;
    }
    const struct io_uring_params *p = &ring->parameters;
    size_t sq = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->rings = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
                       IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, p->sq_entries * sizeof *ring->entries, PROT_READ | PROT_WRITE,
                         MAP_SHARED, ring->fd, IORING_OFF_SQES);
    if (ring->rings == MAP_FAILED || (void *)ring->entries == MAP_FAILED) {
        fail(v, "mmap of the ring: %s", strerror(errno));
        return false;
    }
    return true;
}

static _Atomic uint32_t *ring_word(struct ring *ring, uint32_t offset)
{
    return (_Atomic uint32_t *)(ring->rings + offset);
}

static ssize_t ring_do(struct ring *ring, uint8_t opcode, int file, void *buffer, size_t bytes)
{
    const struct io_uring_params *p = &ring->parameters;
    uint32_t tail = atomic_load(ring_word(ring, p->sq_off.tail));
    uint32_t slot = tail & *ring_word(ring, p->sq_off.ring_mask);
    ring->entries[slot] = (struct io_uring_sqe){
        .opcode = opcode, .fd = file, .addr = (uintptr_t)buffer, .len = bytes,
    };
    *ring_word(ring, p->sq_off.array + slot * sizeof(uint32_t)) = slot;
    atomic_store(ring_word(ring, p->sq_off.tail), tail + 1);
    if (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
        return -1;
    uint32_t head = atomic_load(ring_word(ring, p->cq_off.head));
    struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->rings + p->cq_off.cqes);
    ssize_t result = done[head & *ring_word(ring, p->cq_off.ring_mask)].res;
    atomic_store(ring_word(ring, p->cq_off.head), head + 1);
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}

static bool ring_register(struct ring *ring, struct region *r, struct verdict *v)
{
    struct iovec whole = {r->base, REGION_BYTES};
    if (syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &whole, 1) == 0)
        return true;
    /* A low memlock limit is the host's choice, not a fault of the pager. */
    if (errno == ENOMEM)
        skip(v, "io_uring_register: %s", strerror(errno));
    else
        fail(v, "io_uring_register: %s", strerror(errno));
    return false;
}

static void uring_read(struct region *r, struct verdict *v)
{
    struct ring ring;
    int file = open_file(0, v);
    if (!ring_open(&ring, v))
        return;
    wants(v, "io_uring read", ring_do(&ring, IORING_OP_READ, file, r->base, REGION_BYTES),
          REGION_BYTES);
    close(file);
    expect(r, 0, r->pages, FILE_BYTES);
    check(r, v, "io_uring read");
}

static void uring_write(struct region *r, struct verdict *v)
{
    struct ring ring;
    int file = open_file(0, v);
    if (!ring_open(&ring, v))
        return;
    wants(v, "io_uring write", ring_do(&ring, IORING_OP_WRITE, file, r->base, REGION_BYTES),
          REGION_BYTES);
    file_matches(file, r, v);
    close(file);
    check(r, v, "io_uring written");
}

static void fixed_read(struct ring *ring, struct region *r, struct verdict *v)
{
    int file = open_file(0, v);
    wants(v, "fixed read", ring_do(ring, IORING_OP_READ_FIXED, file, r->base, REGION_BYTES),
          REGION_BYTES);
    expect(r, 0, r->pages, FILE_BYTES);
    check(r, v, "fixed read");
    fill_region(r);
    wants(v, "fixed write", ring_do(ring, IORING_OP_WRITE_FIXED, file, r->base, REGION_BYTES),
          REGION_BYTES);
    file_matches(file, r, v);
    close(file);
}

/* Registered before the page out: pinned, so the pages must not be replaced behind the ring. */
static struct ring pinned_ring;

static void pinned_prepare(struct region *r, struct verdict *v)
{
    if (ring_open(&pinned_ring, v))
        ring_register(&pinned_ring, r, v);
}

static void pinned(struct region *r, struct verdict *v)
{
    check(r, v, "pinned");
    fixed_read(&pinned_ring, r, v);
}

/* Registered while the pages are out: the kernel must bring them home first. */
static void uring_register(struct region *r, struct verdict *v)
{
    static struct ring ring;
    if (!ring_open(&ring, v) || !ring_register(&ring, r, v))
        return;
    check(r, v, "registered");
    fixed_read(&ring, r, v);
}

static void drain(int pipe_end, const struct region *r, struct verdict *v)
{
    static uint8_t buffer[PAGE_BYTES];
    for (unsigned i = 0; i < PIPE_PAGES; i++) {
        size_t used = 0;
        while (used < sizeof buffer) {
            ssize_t got = read(pipe_end, buffer + used, sizeof buffer - used);
            if (got <= 0) {
                fail(v, "read from the pipe: %s", got ? strerror(errno) : "end");
                return;
            }
            used += got;
        }
        if (!pattern_matches(buffer, r->seed, i, 1))
            fail(v, "page %u from the pipe is wrong", i);
    }
}

static void splice_pages(int pipe_end, struct region *r, struct verdict *v)
{
    struct iovec part = {r->base, PIPE_PAGES * PAGE_BYTES};
    wants(v, "vmsplice", vmsplice(pipe_end, &part, 1, 0), part.iov_len);
}

static void splice_out(struct region *r, struct verdict *v)
{
    int ends[2];
    if (pipe(ends))
        fail(v, "pipe: %s", strerror(errno));
    splice_pages(ends[1], r, v);
    drain(ends[0], r, v);
    close(ends[0]);
    close(ends[1]);
    check(r, v, "spliced");
}

/* The pipe holds references to the pages while they are paged out. */
static int held[2];

static void splice_prepare(struct region *r, struct verdict *v)
{
    if (pipe(held))
        fail(v, "pipe: %s", strerror(errno));
    splice_pages(held[1], r, v);
}

static void splice_held(struct region *r, struct verdict *v)
{
    check(r, v, "memory");
    drain(held[0], r, v);
}

/* A third process reads by process_vm_readv before this runs; here only our own view. */
static void external_read(struct region *r, struct verdict *v)
{
    check(r, v, "after the reader from outside");
}

const struct operation io_operations[] = {
    {"read-into", 'y', NULL, read_into},
    {"write-from", 'y', NULL, write_from},
    {"pread-middle", 'y', NULL, pread_into_middle},
    {"readv-scatter", 'y', NULL, readv_into},
    {"direct-read", 'y', NULL, direct_read},
    {"direct-write", 'y', NULL, direct_write},
    {"io-uring-read", 'y', NULL, uring_read},
    {"io-uring-write", 'y', NULL, uring_write},
    {"io-uring-register", 'y', NULL, uring_register},
    {"io-uring-pinned", 'n', pinned_prepare, pinned},
    {"vmsplice", 'y', NULL, splice_out},
    {"vmsplice-held", 'm', splice_prepare, splice_held},
    {"external-read", 'y', NULL, external_read},
    {NULL, 0, NULL, NULL},
};
