/*
 * The raw kernel primitives that the engine's figures are divided by; see floor.c.
 */
#ifndef AGENTZIP_FLOOR_H
#define AGENTZIP_FLOOR_H

#include <stddef.h>
#include <stdint.h>

/* Nanoseconds since some moment. */
uint64_t now(void);

/* Drop the memory and let another process, on that CPU, answer its faults from raw pages; 0 or
 * an errno. */
int floor_open(uint8_t *memory, size_t bytes, int cpu);

/* Let that process bring the rest home in runs, and end it; nanoseconds and pages it took. */
int floor_close(uint64_t *nanoseconds, uint64_t *pages);

/* Move the memory out by UFFDIO_MOVE, `chunk` bytes at a time, and back; times the way out. */
int floor_move(uint8_t *memory, size_t bytes, size_t chunk, uint32_t *samples);

#endif
