/*
 * seccomp_wrap kill|errno [--no-new-privs] [--nobody] PROGRAM ARGS...
 *
 * Confines itself as a hardened sandbox would and then becomes PROGRAM: every system call that a
 * pager could be tempted to run inside its target kills the process (or fails with EPERM).  The
 * filter is written by hand: a static program must not depend on libseccomp.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static const unsigned denied[] = {
    SYS_userfaultfd,    SYS_process_madvise, SYS_madvise,          SYS_mremap,
    SYS_io_uring_setup, SYS_io_uring_enter,  SYS_io_uring_register, SYS_pidfd_open,
    SYS_pidfd_getfd,    SYS_socketpair,      SYS_recvmsg,          SYS_ptrace,
    SYS_process_vm_readv, SYS_process_vm_writev,
};
enum { DENIED = sizeof denied / sizeof denied[0] };

static int install(unsigned action)
{
    struct sock_filter filter[DENIED + 6];
    unsigned at = 0;
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                offsetof(struct seccomp_data, arch));
    filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < DENIED; i++)
        filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[i],
                                                    DENIED - i, 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    struct sock_fprog program = {.len = at, .filter = filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **values)
{
    int at = 2, no_new_privs = 0, nobody = 0;
    for (; at < count && !strncmp(values[at], "--", 2); at++) {
        no_new_privs |= !strcmp(values[at], "--no-new-privs");
        nobody |= !strcmp(values[at], "--nobody");
    }
    if (count < 3 || at >= count) {
        fprintf(stderr, "usage: seccomp_wrap kill|errno [--no-new-privs] [--nobody] PROGRAM...\n");
        return 2;
    }
    unsigned action = !strcmp(values[1], "kill") ? SECCOMP_RET_KILL_PROCESS
                                                 : SECCOMP_RET_ERRNO | EPERM;
    if (no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
        perror("no_new_privs");
        return 1;
    }
    if (install(action)) {
        perror("seccomp");
        return 1;
    }
    if (nobody && (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
                   setresuid(NOBODY, NOBODY, NOBODY))) {
        perror("setresuid");
        return 1;
    }
    execv(values[at], values + at);
    perror(values[at]);
    return 1;
}
