// A process that has some memory and does nothing: what an idle sandbox is to the daemon.

#include <unistd.h>

enum { BYTES = 1 << 20, PAGE_BYTES = 4096 };

// Volatile: a compiler may leave out what nobody reads.
static volatile char memory[BYTES];

int main(void)
{
    for (int at = 0; at < BYTES; at += PAGE_BYTES)
        memory[at] = 1;
    for (;;)
        pause();
}
