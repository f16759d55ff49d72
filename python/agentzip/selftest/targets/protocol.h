/*
 * The line protocol of the test targets: one command per line in, one answer per line out.
 *
 * It uses read(2) and write(2) on buffers of its own and never stdio, so that nothing is allocated
 * behind the back of a check that compares the mappings before and after.
 */
#ifndef AGENTZIP_PROTOCOL_H
#define AGENTZIP_PROTOCOL_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Read one line into `line` without its newline; false at the end of the input. */
static bool read_line(char *line, size_t size)
{
    size_t used = 0;
    for (;;) {
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        if (byte == '\n')
            break;
        if (used + 1 < size)
            line[used++] = byte;
    }
    line[used] = '\0';
    return true;
}

/* Write one whole line at once: answers of several threads must not mix. */
__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...)
{
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    if ((size_t)length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    for (int at = 0; at < length;) {
        ssize_t put = write(STDOUT_FILENO, line + at, length - at);
        if (put < 0 && errno != EINTR)
            _exit(3);
        if (put > 0)
            at += put;
    }
}

#endif
