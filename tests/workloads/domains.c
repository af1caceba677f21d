/* Domains of one thread that are used in turn: marks and ranges with the names of their domains as texts.
 *   domains [--rounds 10] */
#include "common.h"
#include "mstx/ms_tools_ext.h"

static const char *const names[] = {"first", "second", "third"};
#define DOMAINS (sizeof names / sizeof names[0])

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 10);
    mstxDomainHandle_t domains[DOMAINS];
    for (size_t i = 0; i < DOMAINS; i++)
        domains[i] = mstxDomainCreateA(names[i]);
    acl_begin(0);
    for (uint64_t round = 0; round < rounds; round++) {
        mstxRangeId ids[DOMAINS];
        for (size_t i = 0; i < DOMAINS; i++) {
            mstxDomainMarkA(domains[i], names[i], NULL);
            ids[i] = mstxDomainRangeStartA(domains[i], names[i], NULL);
        }
        /* Not nested: only an id says which one ends. */
        for (size_t i = 0; i < DOMAINS; i++)
            mstxDomainRangeEnd(domains[i], ids[i]);
    }
    acl_end(0);
    for (size_t i = 0; i < DOMAINS; i++)
        mstxDomainDestroy(domains[i]);
    report("marks", rounds * DOMAINS, "ranges", rounds * DOMAINS, NULL);
    return 0;
}
