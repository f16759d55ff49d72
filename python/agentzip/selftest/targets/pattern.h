/*
 * Page content that can be checked without a second copy.
 *
 * Every page of a test target is a pure function of (seed, index, generation), so any process that
 * knows the three numbers can say whether a page is right, alone and in any order.  The kinds of
 * content follow what real heaps hold, because each takes another way through the encoder: zero,
 * one word repeated, text, pointers, sparse, and random bytes that do not compress.
 */
#ifndef AGENTZIP_PATTERN_H
#define AGENTZIP_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8 };

/* One step of splitmix64: a full-period generator whose state is a plain counter. */
static inline uint64_t pattern_next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline void pattern_text(char *page, uint64_t state)
{
    static const char words[16][9] = {
        "def ",    "return ", "self.",   "import ", "value",   "result", " = ",    "None\n",
        "for ",    " in ",    "range(",  "):\n",    "    ",    "\"id\"", ": 42, ", "error ",
    };
    size_t at = 0;
    while (at < PAGE_BYTES) {
        uint64_t dice = pattern_next(&state);
        for (int k = 0; k < 16 && at < PAGE_BYTES; k++, dice >>= 4) {
            const char *word = words[dice & 15];
            size_t length = strlen(word);
            if (length > PAGE_BYTES - at)
                length = PAGE_BYTES - at;
            memcpy(page + at, word, length);
            at += length;
        }
    }
}

/* Pointer, reference count, pointer, small number: what an interpreter's heap looks like. */
static inline void pattern_pointers(uint64_t *page, uint64_t state)
{
    uint64_t base = 0x00007f0000000000u | (pattern_next(&state) & 0xfffff00000u);
    for (int i = 0; i < PAGE_WORDS; i += 4) {
        uint64_t dice = pattern_next(&state);
        page[i] = base + (dice & 0xffff0u);
        page[i + 1] = 1 + ((dice >> 20) & 3);
        page[i + 2] = base + ((dice >> 24) & 0xff0u);
        page[i + 3] = (dice >> 40) & 0xffu;
    }
}

static inline void pattern_fill(void *target, uint64_t seed, uint64_t index, uint32_t generation)
{
    uint64_t *page = target;
    uint64_t state = seed * 0xd6e8feb86659fd93u + index * 0xa0761d6478bd642fu + generation;
    uint64_t dice = pattern_next(&state);
    switch (dice & 7) {
    case 0:
        memset(page, 0, PAGE_BYTES);
        break;
    case 1:
        for (int i = 0; i < PAGE_WORDS; i++)
            page[i] = dice;
        break;
    case 2:
    case 3:
        pattern_text((char *)page, state);
        break;
    case 4:
    case 5:
        pattern_pointers(page, state);
        break;
    case 6:
        memset(page, 0, PAGE_BYTES);
        for (int i = 0; i < 12; i++)
            page[pattern_next(&state) % PAGE_WORDS] = pattern_next(&state);
        page[0] = dice;
        break;
    default:
        for (int i = 0; i < PAGE_WORDS; i++)
            page[i] = pattern_next(&state);
    }
}

static inline bool pattern_matches(const void *page, uint64_t seed, uint64_t index,
                                   uint32_t generation)
{
    uint64_t expected[PAGE_WORDS];
    pattern_fill(expected, seed, index, generation);
    return memcmp(page, expected, PAGE_BYTES) == 0;
}

static inline bool page_is_zero(const void *page)
{
    const uint64_t *words = page;
    uint64_t any = 0;
    for (int i = 0; i < PAGE_WORDS; i++)
        any |= words[i];
    return any == 0;
}

#endif
