#include "rangemap.h"
#include <stdlib.h>

#define NODES_AT_ONCE 256

static uint32_t random_priority(void)
{
    static __thread uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
}

static struct range *node_new(struct range_map *map)
{
    if (!map->spare) {
        struct range *block = malloc(NODES_AT_ONCE * sizeof *block);
        if (!block)
            abort();
        for (int i = 0; i < NODES_AT_ONCE; i++) {
            block[i].right = map->spare;
            map->spare = &block[i];
        }
    }
    struct range *node = map->spare;
    map->spare = node->right;
    return node;
}

static uint64_t longest(const struct range *node)
{
    return node ? node->longest : 0;
}

static void update(struct range *node)
{
    uint64_t max = node->len;
    if (longest(node->left) > max)
        max = longest(node->left);
    if (longest(node->right) > max)
        max = longest(node->right);
    node->longest = max;
}

/* Everything below `start` goes to *low, the rest to *high. */
static void split(struct range *node, uint64_t start, struct range **low, struct range **high)
{
    if (!node) {
        *low = *high = NULL;
        return;
    }
    if (node->start < start) {
        split(node->right, start, &node->right, high);
        *low = node;
    } else {
        split(node->left, start, low, &node->left);
        *high = node;
    }
    update(node);
}

static struct range *merge(struct range *low, struct range *high)
{
    if (!low || !high)
        return low ? low : high;
    if (low->priority > high->priority) {
        low->right = merge(low->right, high);
        update(low);
        return low;
    }
    high->left = merge(low, high->left);
    update(high);
    return high;
}

static struct range *insert(struct range *root, struct range *node)
{
    if (!root || node->priority > root->priority) {
        split(root, node->start, &node->left, &node->right);
        update(node);
        return node;
    }
    if (node->start < root->start)
        root->left = insert(root->left, node);
    else
        root->right = insert(root->right, node);
    update(root);
    return root;
}

void range_insert(struct range_map *map, uint64_t start, uint64_t len, uint64_t value)
{
    struct range *node = node_new(map);
    *node = (struct range){.start = start, .len = len, .value = value, .priority = random_priority()};
    map->root = insert(map->root, node);
}

static struct range *cut(struct range *root, uint64_t start, struct range **out)
{
    if (!root)
        return NULL;
    if (start == root->start) {
        *out = root;
        return merge(root->left, root->right);
    }
    if (start < root->start)
        root->left = cut(root->left, start, out);
    else
        root->right = cut(root->right, start, out);
    update(root);
    return root;
}

int range_remove(struct range_map *map, uint64_t start, struct range *old)
{
    struct range *node = NULL;
    map->root = cut(map->root, start, &node);
    if (!node)
        return 0;
    if (old)
        *old = *node;
    node->right = map->spare;
    map->spare = node;
    return 1;
}

struct range *range_floor(const struct range_map *map, uint64_t addr)
{
    struct range *best = NULL;
    for (struct range *node = map->root; node;) {
        if (node->start <= addr) {
            best = node;
            node = node->right;
        } else {
            node = node->left;
        }
    }
    return best;
}

struct range *range_ceil(const struct range_map *map, uint64_t addr)
{
    struct range *best = NULL;
    for (struct range *node = map->root; node;) {
        if (node->start >= addr) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return best;
}

struct range *range_find(const struct range_map *map, uint64_t start)
{
    struct range *node = range_floor(map, start);
    return node && node->start == start ? node : NULL;
}

struct range *range_first_fit(const struct range_map *map, uint64_t len)
{
    struct range *node = map->root;
    while (node && node->longest >= len) {
        if (longest(node->left) >= len)
            node = node->left;
        else if (node->len >= len)
            return node;
        else
            node = node->right;
    }
    return NULL;
}
