/*
 * The raw kernel primitive of a stop: seize one thread, interrupt it, let it go.
 *
 *   stopper PID COUNT FILE   the time from the interrupt to the release, 32-bit nanoseconds each
 *
 * Nothing is done to the thread while it is stopped; the engine's stop is longer by what it does.
 */
#include "floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_US = 500 };

static int stop_once(pid_t thread, uint32_t *nanoseconds)
{
    int status;
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) < 0)
        return 1;
    uint64_t began = now();
    if (ptrace(PTRACE_INTERRUPT, thread, 0, 0) < 0 || waitpid(thread, &status, __WALL) != thread)
        return 1;
    if (ptrace(PTRACE_DETACH, thread, 0, 0) < 0)
        return 1;
    *nanoseconds = (uint32_t)(now() - began);
    return 0;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    pid_t thread = atoi(arguments[1]);
    FILE *file = fopen(arguments[3], "w");
    for (int left = atoi(arguments[2]); file && left > 0; left--) {
        uint32_t nanoseconds;
        if (stop_once(thread, &nanoseconds)) {
            perror("stopper");
            return 1;
        }
        fwrite(&nanoseconds, sizeof nanoseconds, 1, file);
        usleep(PAUSE_US);
    }
    return file && fclose(file) == 0 ? 0 : 1;
}
