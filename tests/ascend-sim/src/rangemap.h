/* An ordered set of address ranges: a treap by start, each node knowing the longest range below it. */
#ifndef RANGEMAP_H
#define RANGEMAP_H
#include <stdint.h>

struct range {
    uint64_t start;
    uint64_t len;
    uint64_t value; /* the owner's */
    uint64_t longest;
    uint32_t priority;
    struct range *left, *right;
};

struct range_map {
    struct range *root;
    struct range *spare; /* nodes to use again */
};

void range_insert(struct range_map *map, uint64_t start, uint64_t len, uint64_t value);
/* Takes out the range that starts at `start`; 0 if there is none. `old` may be null. */
int range_remove(struct range_map *map, uint64_t start, struct range *old);
/* The range with the highest start at or below `addr`, the lowest at or above it; null if there is none. */
struct range *range_floor(const struct range_map *map, uint64_t addr);
struct range *range_ceil(const struct range_map *map, uint64_t addr);
struct range *range_find(const struct range_map *map, uint64_t start);
/* The lowest range with at least `len`. */
struct range *range_first_fit(const struct range_map *map, uint64_t len);
#endif
