/* Steps between mstx marks, each with blocks that are freed and blocks that are not.
 *   steps [--steps 5] [--blocks 8] [--size 65536] [--leaks 1] [--leak-size 1048576] [--first-leak 1]
 *         [--free-later N] [--nested N] [--domain] [--hold-last] [--free-at-exit]
 *         [--exit-allocs 0] [--device 0]
 * --free-later: leaked blocks are freed N steps later, so they are no leaks; the last N steps' stay.
 * --nested: N other ranges inside each step.  --domain: marks go to the domain "steps".
 * --hold-last: the last step does not end, and the device is not reset.
 * --free-at-exit: what is left is freed behind the last step, as Python does when it ends.
 * --exit-allocs: N blocks come and go half-way through those frees, as of a handler that saves something. */
#include "common.h"
#include "mstx/ms_tools_ext.h"

static uint64_t steps, blocks, size, leaks, leak_size, first_leak, free_later, nested;
static bool hold_last;
static mstxDomainHandle_t domain;
static bool in_domain;
static void **leaked;
static uint64_t freed_later;

static mstxRangeId range_start(const char *text)
{
    return in_domain ? mstxDomainRangeStartA(domain, text, NULL) : mstxRangeStartA(text, NULL);
}

static void range_end(mstxRangeId id)
{
    if (in_domain)
        mstxDomainRangeEnd(domain, id);
    else
        mstxRangeEnd(id);
}

static void churn(void)
{
    void **list = calloc(blocks, sizeof *list);
    for (uint64_t i = 0; i < blocks; i++)
        list[i] = device_alloc(size + i * 512);
    for (uint64_t i = blocks; i-- > 0;)
        CHECK(aclrtFree(list[i]));
    free(list);
}

static void nest(uint64_t depth)
{
    if (!depth) {
        churn();
        return;
    }
    mstxRangeId id = range_start("forward");
    nest(depth - 1);
    range_end(id);
}

static void free_leaks_of(uint64_t step)
{
    for (uint64_t i = 0; i < leaks; i++) {
        void **block = &leaked[step * leaks + i];
        if (!*block)
            continue;
        CHECK(aclrtFree(*block));
        *block = NULL;
        freed_later++;
    }
}

static void one_step(uint64_t step)
{
    mstxRangeId id = range_start("step start");
    nest(nested);
    for (uint64_t i = 0; i < leaks && step + 1 >= first_leak; i++)
        leaked[step * leaks + i] = device_alloc(leak_size);
    if (free_later && step >= free_later)
        free_leaks_of(step - free_later);
    if (!hold_last || step + 1 < steps)
        range_end(id);
}

int main(int argc, char **argv)
{
    steps = option(argc, argv, "--steps", 5);
    blocks = option(argc, argv, "--blocks", 8);
    size = option(argc, argv, "--size", 64 * KIB);
    leaks = option(argc, argv, "--leaks", 1);
    leak_size = option(argc, argv, "--leak-size", MIB);
    first_leak = option(argc, argv, "--first-leak", 1);
    free_later = option(argc, argv, "--free-later", 0);
    nested = option(argc, argv, "--nested", 0);
    uint64_t exit_allocs = option(argc, argv, "--exit-allocs", 0);
    in_domain = option_flag(argc, argv, "--domain");
    hold_last = option_flag(argc, argv, "--hold-last");
    leaked = calloc(steps * leaks + 1, sizeof *leaked);
    int32_t device = (int32_t)option(argc, argv, "--device", 0);
    acl_begin(device);
    if (in_domain)
        domain = mstxDomainCreateA("steps");
    for (uint64_t step = 0; step < steps; step++)
        one_step(step);
    uint64_t made = 0;
    for (uint64_t step = 0; step < steps; step++)
        made += step + 1 >= first_leak ? leaks : 0;
    if (option_flag(argc, argv, "--free-at-exit"))
        for (uint64_t step = 0; step < steps; step++) {
            for (uint64_t i = 0; step == steps / 2 && i < exit_allocs; i++)
                CHECK(aclrtFree(device_alloc(size)));
            free_leaks_of(step);
        }
    if (!hold_last)
        acl_end(device);
    report("steps", steps, "allocs", steps * blocks + made, "frees", steps * blocks + freed_later, "leaked",
           made - freed_later, "ranges", steps * (1 + nested), NULL);
    return 0;
}
