/* Marks and ranges with hostile texts, on two threads.
 *   marks [--rounds 1]
 * In each round each thread makes MARKS marks, as many nested ranges, and the same in a domain. */
#include "common.h"
#include "mstx/ms_tools_ext.h"

#define LONG_TEXT MIB

static uint64_t rounds;
static char *long_text;

static const char *const texts[] = {
    "plain",
    "",
    "with \"double\" and 'single' quotes",
    "comma, semicolon; pipe| tab\tend",
    "line one\nline two\r\nline three",
    "control \001\002\033[31m\177 end",
    "=cmd|' /C calc'!A0",
    "+1", "-1", "@SUM(A1)",
    "{\"json\": [1, 2, \"x\\\\\"]}",
    "unicode \xe6\x98\x87\xe8\x85\xbe \xf0\x9f\x98\x80",
    "invalid \xff\xfe\xc3( utf-8 \xe2\x82",
    "percent %s %n %d",
    "back\\slash \\n \\u0000",
    "memscope-aten-b: name=aten::add",
    "step start",
};
#define TEXTS (sizeof texts / sizeof texts[0])
#define MARKS (TEXTS + 2) /* and null, and the long one */

static const char *text_of(uint64_t i)
{
    return i < TEXTS ? texts[i] : i == TEXTS ? NULL : long_text;
}

static void marks(mstxDomainHandle_t domain, bool in_domain)
{
    for (uint64_t i = 0; i < MARKS; i++) {
        if (in_domain)
            mstxDomainMarkA(domain, text_of(i), NULL);
        else
            mstxMarkA(text_of(i), NULL);
    }
}

static void ranges(mstxDomainHandle_t domain, bool in_domain)
{
    mstxRangeId ids[MARKS];
    for (uint64_t i = 0; i < MARKS; i++)
        ids[i] = in_domain ? mstxDomainRangeStartA(domain, text_of(i), NULL) : mstxRangeStartA(text_of(i), NULL);
    for (uint64_t i = MARKS; i-- > 0;) {
        if (in_domain)
            mstxDomainRangeEnd(domain, ids[i]);
        else
            mstxRangeEnd(ids[i]);
    }
}

static void *work(void *name)
{
    mstxDomainHandle_t domain = mstxDomainCreateA(name);
    for (uint64_t i = 0; i < rounds; i++) {
        marks(NULL, false);
        ranges(NULL, false);
        marks(domain, true);
        ranges(domain, true);
    }
    mstxDomainDestroy(domain);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    rounds = option(argc, argv, "--rounds", 1);
    long_text = malloc(LONG_TEXT + 1);
    memset(long_text, 'x', LONG_TEXT);
    long_text[LONG_TEXT] = 0;
    CHECK(pthread_create(&threads[0], NULL, work, "one"));
    CHECK(pthread_create(&threads[1], NULL, work, "two, \"quoted\""));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL));
    report("marks", rounds * 4 * MARKS, "ranges", rounds * 4 * MARKS, NULL);
    return 0;
}
