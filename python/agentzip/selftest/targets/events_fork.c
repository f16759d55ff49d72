/*
 * Operations that make new processes: every child must see what the parent had, and neither may
 * see what the other writes afterwards.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "events.h"

extern char **environ;

static const char self[] = "/proc/self/exe";
static char *const exit_zero[] = {"events", "--exit-zero", NULL};

/* In a child: right before, own after its own writes. */
static int child_checks(struct region *r)
{
    if (count_wrong(r))
        return 1;
    memset(page_at(r, 5), 0x5a, PAGE_BYTES);
    memset(page_at(r, r->pages - 1), 0xa5, PAGE_BYTES);
    expect(r, 5, 1, UNTOUCHED);
    expect(r, r->pages - 1, 1, UNTOUCHED);
    if (count_wrong(r))
        return 2;
    return *page_at(r, 5) == 0x5a && *page_at(r, r->pages - 1) == 0xa5 ? 0 : 3;
}

static void child_was_right(struct verdict *v, const char *who, pid_t child)
{
    int status = status_of(child);
    if (status)
        fail(v, "%s ended with status %d", who, status);
}

static void plain_fork(struct region *r, struct verdict *v)
{
    pid_t child = fork();
    if (child == 0)
        _exit(child_checks(r));
    child_was_right(v, "child", child);
    check(r, v, "parent");
}

static void grandchild(struct region *r, struct verdict *v)
{
    pid_t child = fork();
    if (child == 0) {
        pid_t next = fork();
        if (next == 0)
            _exit(child_checks(r));
        int theirs = status_of(next);
        int own = child_checks(r);
        _exit(theirs ? 10 + theirs : own);
    }
    child_was_right(v, "child or grandchild", child);
    check(r, v, "parent");
}

/* The process in the middle is gone before the grandchild touches anything. */
static void orphan(struct region *r, struct verdict *v)
{
    int report[2], start[2];
    char result = 'x';
    if (pipe(report) || pipe(start))
        fail(v, "pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            close(start[1]);
            if (read(start[0], &result, 1) != 0)
                _exit(9);
            result = '0' + child_checks(r);
            _exit(write(report[1], &result, 1) != 1);
        }
        _exit(0);
    }
    child_was_right(v, "child", child);
    close(report[1]);
    close(start[0]);
    close(start[1]);
    if (read(report[0], &result, 1) != 1 || result != '0')
        fail(v, "the orphan reports %c", result);
    close(report[0]);
    check(r, v, "first process");
}

/* What the parent drops and rewrites after the fork stays as it was in the child. */
static void fork_then_drop(struct region *r, struct verdict *v)
{
    int start[2];
    char byte;
    if (pipe(start))
        fail(v, "pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        close(start[1]);
        if (read(start[0], &byte, 1) != 0)
            _exit(9);
        _exit(child_checks(r));
    }
    close(start[0]);
    madvise(r->base, REGION_BYTES / 2, MADV_DONTNEED);
    expect(r, 0, REGION_PAGES / 2, ZERO);
    memset(page_at(r, REGION_PAGES - 2), 7, PAGE_BYTES);
    expect(r, REGION_PAGES - 2, 1, UNTOUCHED);
    check(r, v, "parent after the drop");
    close(start[1]);
    child_was_right(v, "child", child);
    check(r, v, "parent");
}

static void many_children(struct region *r, struct verdict *v)
{
    pid_t children[8];
    for (int i = 0; i < 8; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(child_checks(r));
    }
    for (int i = 0; i < 8; i++)
        child_was_right(v, "one of eight children", children[i]);
    check(r, v, "parent");
}

static void plain_vfork(struct region *r, struct verdict *v)
{
    pid_t child = vfork();
    if (child == 0)
        _exit(pattern_matches(page_at(r, 9), r->seed, 9, 1) ? 0 : 1);
    child_was_right(v, "child", child);
    check(r, v, "parent");
}

static void spawn(struct region *r, struct verdict *v)
{
    pid_t child;
    int error = posix_spawn(&child, self, NULL, NULL, exit_zero, environ);
    if (error)
        fail(v, "posix_spawn: %s", strerror(error));
    else
        child_was_right(v, "spawned program", child);
    check(r, v, "parent");
}

static void exec_in_child(struct region *r, struct verdict *v)
{
    pid_t child = fork();
    if (child == 0) {
        if (count_wrong(r))
            _exit(1);
        execv(self, exit_zero);
        _exit(9);
    }
    child_was_right(v, "child", child);
    check(r, v, "parent");
}

static void dontfork(struct region *r, struct verdict *v)
{
    madvise(r->base, REGION_BYTES / 2, MADV_DONTFORK);
    pid_t child = fork();
    if (child == 0) {
        bool hidden = read_faults(page_at(r, 0));
        expect(r, 0, REGION_PAGES / 2, UNTOUCHED);
        _exit(!hidden ? 1 : count_wrong(r) ? 2 : 0);
    }
    child_was_right(v, "child", child);
    check(r, v, "parent");
}

static void wipeonfork_prepare(struct region *r, struct verdict *v)
{
    if (madvise(r->base, REGION_BYTES, MADV_WIPEONFORK))
        skip(v, "no MADV_WIPEONFORK: %s", strerror(errno));
}

static void wipeonfork(struct region *r, struct verdict *v)
{
    pid_t child = fork();
    if (child == 0) {
        expect(r, 0, r->pages, ZERO);
        _exit(count_wrong(r) ? 1 : 0);
    }
    child_was_right(v, "child that must see zeros", child);
    check(r, v, "parent");
}

const struct operation fork_operations[] = {
    {"fork", 'y', NULL, plain_fork},
    {"fork-grandchild", 'y', NULL, grandchild},
    {"fork-orphan", 'y', NULL, orphan},
    {"fork-then-drop", 'y', NULL, fork_then_drop},
    {"fork-many", 'y', NULL, many_children},
    {"vfork", 'y', NULL, plain_vfork},
    {"posix-spawn", 'y', NULL, spawn},
    {"exec-in-child", 'y', NULL, exec_in_child},
    {"dontfork", 'y', NULL, dontfork},
    {"wipeonfork", 'n', wipeonfork_prepare, wipeonfork},
    {NULL, 0, NULL, NULL},
};
