/* Address space of one kind of memory: first fit, in whole pages. The caller holds the lock. */
#ifndef ARENA_H
#define ARENA_H
#include "rangemap.h"
#include <stdint.h>

struct arena {
    uint64_t base, size, page;
    struct range_map vacant, live;
};

void arena_init(struct arena *arena, uint64_t base, uint64_t size, uint64_t page);
/* 0 if the address space is full. `len` is in whole pages. */
uint64_t arena_take(struct arena *arena, uint64_t len, uint64_t value);
/* 0 if nothing starts at `start`. */
int arena_give(struct arena *arena, uint64_t start, struct range *old);

static inline int arena_has(const struct arena *arena, uint64_t addr)
{
    return addr - arena->base < arena->size;
}
static inline uint64_t round_up(uint64_t n, uint64_t page)
{
    return (n + page - 1) & ~(page - 1);
}
#endif
