/*
 * events [--dir DIR] [OPERATION...]: what programs do to memory that is not there.
 *
 * Each operation has a region of its own.  After `ready PID` a line with the name of an operation
 * performs it and is answered by `ok`, `bad WHAT` or `skip WHY`.  More commands:
 *   list          every operation as name:leaves (leaves: y, n or m, see events.h)
 *   where NAME    the region's byte range; `gone` when the operation has none
 *   expected NAME address, length and CRC-32 of the content that the region must have now,
 *                 computed without touching it, for readers from outside
 *   verify        every region against what it must hold after the operations so far
 *   exit
 * Without names on the command line all operations are prepared.
 */
#define _GNU_SOURCE
#include "events.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "protocol.h"

enum { OPERATIONS_MAX = 96 };

static const struct operation *operations[OPERATIONS_MAX];
static struct region regions[OPERATIONS_MAX];
static struct verdict prepared[OPERATIONS_MAX];
static int operation_count;
const char *work_directory = ".";

static void say(struct verdict *v, char state, const char *format, va_list arguments)
{
    if (v->state != 'o')
        return;
    v->state = state;
    vsnprintf(v->text, sizeof v->text, format, arguments);
}

void fail(struct verdict *v, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(v, 'b', format, arguments);
    va_end(arguments);
}

void skip(struct verdict *v, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(v, 's', format, arguments);
    va_end(arguments);
}

void expect(struct region *r, unsigned from, unsigned count, enum expectation what)
{
    memset(r->expect + from, what, count);
}

static bool page_right(const struct region *r, unsigned page)
{
    switch (r->expect[page]) {
    case PATTERN:
        return pattern_matches(page_at(r, page), r->seed, page, 1);
    case ZERO:
        return page_is_zero(page_at(r, page));
    case FILE_BYTES:
        return pattern_matches(page_at(r, page), FILE_SEED, page, 1);
    case EITHER:
        return page_is_zero(page_at(r, page)) ||
               pattern_matches(page_at(r, page), r->seed, page, 1);
    default:
        return true;
    }
}

int count_wrong(const struct region *r)
{
    int wrong = 0;
    for (unsigned page = 0; page < r->pages; page++)
        wrong += !page_right(r, page);
    return wrong;
}

void check(const struct region *r, struct verdict *v, const char *when)
{
    int wrong = 0, first = -1;
    for (unsigned page = 0; page < r->pages; page++)
        if (!page_right(r, page) && wrong++ == 0)
            first = page;
    if (wrong)
        fail(v, "%s: %d wrong pages, first %d, expected '%c', holds %016lx", when, wrong, first,
             r->expect[first], *(long *)page_at(r, first));
}

void write_page(struct region *r, unsigned page)
{
    pattern_fill(page_at(r, page), r->seed, page, 1);
    expect(r, page, 1, PATTERN);
}

void fill_region(struct region *r)
{
    for (unsigned page = 0; page < r->pages; page++)
        write_page(r, page);
}

void *map_anonymous(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        perror("events: mmap");
        _exit(4);
    }
    return base;
}

int status_of(pid_t child)
{
    int status;
    if (child < 0)
        return 90;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 91;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static sigjmp_buf after_fault;

static void on_fault(int signal)
{
    siglongjmp(after_fault, signal);
}

static bool faults(volatile uint8_t *byte, bool write)
{
    struct sigaction action = {.sa_handler = on_fault}, segv, bus;
    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
    bool fault = true;
    if (sigsetjmp(after_fault, 1) == 0) {
        uint8_t value = *byte;
        if (write)
            *byte = value;
        fault = false;
    }
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return fault;
}

bool read_faults(const volatile uint8_t *byte)
{
    return faults((volatile uint8_t *)byte, false);
}

bool write_faults(volatile uint8_t *byte)
{
    return faults(byte, true);
}

int open_file(int flags, struct verdict *v)
{
    char path[512];
    uint8_t page[PAGE_BYTES];
    snprintf(path, sizeof path, "%s/events-%d.dat", work_directory, getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (unsigned i = 0; file >= 0 && i < REGION_PAGES; i++) {
        pattern_fill(page, FILE_SEED, i, 1);
        if (pwrite(file, page, sizeof page, (off_t)i * PAGE_BYTES) != PAGE_BYTES)
            fail(v, "cannot fill %s", path);
    }
    if (file >= 0 && flags) {
        fsync(file);
        close(file);
        file = open(path, O_RDWR | O_CLOEXEC | flags);
    }
    if (file < 0 && errno == EINVAL)
        skip(v, "this file system does not take the open flags %x", flags);
    else if (file < 0)
        fail(v, "open %s: %s", path, strerror(errno));
    unlink(path);
    return file;
}

static uint32_t crc32_of(uint32_t crc, const uint8_t *bytes, size_t count)
{
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
    }
    return ~crc;
}

static void tell_expected(const struct region *r)
{
    uint8_t page[PAGE_BYTES];
    uint32_t crc = 0;
    for (unsigned i = 0; i < r->pages; i++) {
        if (r->expect[i] != PATTERN) {
            answer("bad page %u holds no pattern", i);
            return;
        }
        pattern_fill(page, r->seed, i, 1);
        crc = crc32_of(crc, page, sizeof page);
    }
    answer("ok %lx %zu %08x", (long)r->base, (size_t)r->pages * PAGE_BYTES, crc);
}

static void prepare(int at)
{
    const struct operation *operation = operations[at];
    struct region *r = &regions[at];
    size_t room = (size_t)ROOM_PAGES * PAGE_BYTES;
    prepared[at].state = 'o';
    /* Address space that stays ours on both sides, so that no two regions become one mapping. */
    uint8_t *space = mmap(NULL, REGION_BYTES + 2 * room, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    r->base = space + room;
    r->room = r->base + REGION_BYTES;
    r->pages = REGION_PAGES;
    r->seed = 100 + at;
    if (space == MAP_FAILED || mprotect(r->base, REGION_BYTES, PROT_READ | PROT_WRITE)) {
        perror("events: region");
        _exit(4);
    }
    fill_region(r);
    if (operation->prepare)
        operation->prepare(r, &prepared[at]);
}

static bool wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name))
            return true;
    return count == 0;
}

static void collect(const struct operation *table, int count, char **names)
{
    for (; table->name; table++)
        if (wanted(table->name, count, names) && operation_count < OPERATIONS_MAX)
            operations[operation_count++] = table;
}

static int find(const char *name)
{
    for (int i = 0; i < operation_count; i++)
        if (!strcmp(operations[i]->name, name))
            return i;
    return -1;
}

static void tell(const struct verdict *v)
{
    answer("%s%s%s", v->state == 'o' ? "ok" : v->state == 's' ? "skip" : "bad",
           v->text[0] ? " " : "", v->text);
}

static void perform(int at)
{
    struct verdict v = prepared[at];
    if (v.state == 'o')
        operations[at]->perform(&regions[at], &v);
    tell(&v);
}

static void list(void)
{
    char text[4000];
    int used = 0;
    for (int i = 0; i < operation_count; i++)
        used += snprintf(text + used, sizeof text - used, " %s:%c", operations[i]->name,
                         operations[i]->leaves);
    answer("ok%s", text);
}

static void verify(void)
{
    struct verdict v = {.state = 'o'};
    for (int i = 0; i < operation_count; i++)
        if (prepared[i].state == 'o')
            check(&regions[i], &v, operations[i]->name);
    tell(&v);
}

static void serve(void)
{
    char line[128], word[32], name[64];
    while (read_line(line, sizeof line)) {
        word[0] = name[0] = '\0';
        sscanf(line, "%31s %63s", word, name);
        int at = find(name[0] ? name : word);
        if (!strcmp(word, "list"))
            list();
        else if (!strcmp(word, "verify"))
            verify();
        else if (!strcmp(word, "exit"))
            _exit(0);
        else if (at < 0)
            answer("bad unknown operation %s", line);
        else if (!strcmp(word, "where") && regions[at].pages)
            answer("ok %lx-%lx", (long)regions[at].base,
                   (long)page_at(&regions[at], regions[at].pages));
        else if (!strcmp(word, "where"))
            answer("gone");
        else if (!strcmp(word, "expected"))
            tell_expected(&regions[at]);
        else
            perform(at);
    }
}

int main(int count, char **values)
{
    int at = 1;
    if (count > 1 && !strcmp(values[1], "--exit-zero"))
        return 0;
    if (count > 2 && !strcmp(values[1], "--dir")) {
        work_directory = values[2];
        at = 3;
    }
    collect(map_operations, count - at, values + at);
    collect(fork_operations, count - at, values + at);
    collect(io_operations, count - at, values + at);
    collect(special_operations, count - at, values + at);
    for (int i = 0; i < operation_count; i++)
        prepare(i);
    answer("ready %d", getpid());
    serve();
    return 0;
}
