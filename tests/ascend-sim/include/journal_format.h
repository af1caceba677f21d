/* The journal's record; see README.md, "Journal". */
#ifndef JOURNAL_FORMAT_H
#define JOURNAL_FORMAT_H
#include <stdint.h>

#define JOURNAL_COMMITTED 1u
#define JOURNAL_TEXT_MAX 4096u
#define JOURNAL_TEXT_NULL UINT64_MAX
#define JOURNAL_RET_UNKNOWN INT64_MIN

struct journal_entry {
    uint64_t time_ns;
    uint32_t tid;
    uint16_t func;
    uint16_t flags;
    int64_t ret;
    uint64_t args[4];
    uint64_t out;
};
#ifndef __cplusplus
_Static_assert(sizeof(struct journal_entry) == 64, "the journal's slots are 64 bytes");
#endif

static inline unsigned journal_text_slots(uint16_t flags)
{
    return flags >> 8;
}
#endif
