#include "arena.h"
#include <stddef.h>

void arena_init(struct arena *arena, uint64_t base, uint64_t size, uint64_t page)
{
    *arena = (struct arena){.base = base, .size = size, .page = page};
    range_insert(&arena->vacant, base, size, 0);
}

uint64_t arena_take(struct arena *arena, uint64_t len, uint64_t value)
{
    struct range *fit = range_first_fit(&arena->vacant, len);
    struct range hole;
    if (!fit)
        return 0;
    range_remove(&arena->vacant, fit->start, &hole);
    if (hole.len > len)
        range_insert(&arena->vacant, hole.start + len, hole.len - len, 0);
    range_insert(&arena->live, hole.start, len, value);
    return hole.start;
}

/* Joins the hole with its neighbours, so that what comes next may overlap several old blocks. */
static void add_hole(struct arena *arena, uint64_t start, uint64_t len)
{
    const struct range *below = range_floor(&arena->vacant, start);
    const struct range *above = range_ceil(&arena->vacant, start + len);
    struct range joined;
    if (above && above->start == start + len) {
        range_remove(&arena->vacant, above->start, &joined);
        len += joined.len;
    }
    if (below && below->start + below->len == start) {
        range_remove(&arena->vacant, below->start, &joined);
        start = joined.start;
        len += joined.len;
    }
    range_insert(&arena->vacant, start, len, 0);
}

int arena_give(struct arena *arena, uint64_t start, struct range *old)
{
    if (!range_remove(&arena->live, start, old))
        return 0;
    add_hole(arena, start, old->len);
    return 1;
}
