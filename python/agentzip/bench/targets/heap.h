/*
 * Pages as they lie in the heap of an interpreter, made from a number.
 *
 * A benchmark on constant or random pages measures nothing: the first need no codec and the second
 * defeat it.  These hold what a Python process holds: small objects with reference counts, type
 * pointers and short texts, arrays of pointers, columns of numbers, prose, and a few pages that do
 * not shrink.  A page can be made again at any time, so the content is checked without a copy.
 */
#ifndef AGENTZIP_HEAP_H
#define AGENTZIP_HEAP_H

#include <stdint.h>
#include <string.h>

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8 };

static inline uint64_t dice(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u;
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

static const char *const heap_words[32] = {
    "customer", "order",  "price",  "the",   "and",    "region", "count",  "value",
    "error",    "result", "python", "frame", "column", "index",  "tool",   "message",
    "of",       "to",     "state",  "data",  "north",  "south",  "agent",  "request",
    "content",  "role",   "user",   "id",    "text",   "name",   "status", "2026-11",
};

/* An object of 64 bytes: reference count, type, two pointers, hash, length, short text. */
static inline void heap_objects(uint8_t *page, uint64_t *state, uint64_t arena)
{
    uint64_t types = 0x55D0C0DE0000u + (dice(state) & 7) * 0x1A0;
    uint64_t next = arena;
    for (int at = 0; at < PAGE_BYTES; at += 64) {
        uint64_t roll = dice(state);
        uint64_t object[5] = {
            1 + (roll & 3) * (roll >> 60 == 0),
            types + ((roll >> 8) & 1) * 0x1A0,
            next += roll & 0x30000 ? 64 : 64 * ((roll >> 20) & 31),
            (roll >> 34) & 3 ? 0 : arena + ((roll >> 40) & 0xFFF) * 64,
            roll >> 62 ? UINT64_MAX : dice(state),
        };
        memcpy(page + at, object, sizeof object);
        char text[24] = {0};
        strncpy(text + 8, heap_words[(roll >> 3) & 31], 15);
        text[0] = (char)strlen(text + 8);
        memcpy(page + at + 40, text, sizeof text);
    }
}

static inline void heap_pointers(uint8_t *page, uint64_t *state, uint64_t arena)
{
    uint64_t at = arena + (dice(state) & 0xFFFF) * 64;
    for (int word = 0; word < PAGE_WORDS; word++) {
        uint64_t roll = dice(state);
        at += roll & 7 ? 32 : 32 * ((roll >> 8) & 63);
        memcpy(page + word * 8, &at, 8);
    }
}

static inline void heap_numbers(uint8_t *page, uint64_t *state)
{
    uint64_t limit = (uint64_t)1 << (4 + dice(state) % 12);
    for (int word = 0; word < PAGE_WORDS; word++) {
        uint64_t number = dice(state) % limit;
        memcpy(page + word * 8, &number, 8);
    }
}

static inline void heap_text(uint8_t *page, uint64_t *state)
{
    for (int at = 0; at < PAGE_BYTES;) {
        const char *word = heap_words[dice(state) & 31];
        for (; *word && at < PAGE_BYTES; at++)
            page[at] = (uint8_t)*word++;
        if (at < PAGE_BYTES)
            page[at++] = ' ';
    }
}

/* The page of this number in this generation. */
static inline void heap_page(uint8_t *page, uint64_t number, uint64_t generation)
{
    uint64_t state = number * 0xD1342543DE82EF95u + generation;
    uint64_t arena = 0x7F3A40000000u + (dice(&state) & 0xFF) * 0x100000;
    uint64_t kind = dice(&state) % 100;
    if (kind < 55)
        heap_objects(page, &state, arena);
    else if (kind < 67)
        heap_pointers(page, &state, arena);
    else if (kind < 80)
        heap_numbers(page, &state);
    else if (kind < 98)
        heap_text(page, &state);
    else
        for (int word = 0; word < PAGE_WORDS; word++) {
            uint64_t noise = dice(&state);
            memcpy(page + word * 8, &noise, 8);
        }
}

#endif
