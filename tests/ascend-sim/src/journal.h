/* What the simulated libraries call to write the ground truth; one copy of the state per library. */
#ifndef JOURNAL_H
#define JOURNAL_H
#include <stdbool.h>
#include <stdint.h>
#include "journal_format.h"
#include "journal_funcs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Set before main when ASCEND_SIM_JOURNAL is; the only thing that an unjournaled call looks at. */
extern bool journal_on;
#define JOURNALING __builtin_expect(journal_on, 0)

#define U(x) ((uint64_t)(uintptr_t)(x))
#define ARGS(...) ((const uint64_t[4]){__VA_ARGS__})

/* Appends a committed record with the time of now; returns its place for journal_settle. */
uint64_t journal_add(uint16_t func, int64_t ret, const uint64_t args[4], uint64_t out);
/* The same with a text after it; its length becomes args[3]; a null text is JOURNAL_TEXT_NULL long. */
uint64_t journal_add_text(uint16_t func, int64_t ret, const uint64_t args[4], uint64_t out, const char *text);
/* The same with bytes that are no text. */
uint64_t journal_add_bytes(uint16_t func, int64_t ret, const uint64_t args[4], uint64_t out, const void *bytes,
                           uint64_t length);
/* Completes a record made at entry. */
void journal_settle(uint64_t place, int64_t ret, uint64_t out);

#ifdef __cplusplus
}
#endif

/* For calls that give something out: one record just before the return. */
#define JOURNAL_RETURN(func, ret, out, ...) \
    do { \
        if (JOURNALING) \
            journal_add(func, ret, ARGS(__VA_ARGS__), (ret) ? 0 : U(out)); \
    } while (0)
#define JOURNAL_RETURN_TEXT(func, ret, out, text, ...) \
    do { \
        if (JOURNALING) \
            journal_add_text(func, ret, ARGS(__VA_ARGS__), (ret) ? 0 : U(out), text); \
    } while (0)

/* For calls that take something back, and for launches and marks: a record at entry, settled before the return. */
#define JOURNAL_ENTER(func, ...) (JOURNALING ? journal_add(func, JOURNAL_RET_UNKNOWN, ARGS(__VA_ARGS__), 0) : 0)
#define JOURNAL_ENTER_TEXT(func, text, ...) \
    (JOURNALING ? journal_add_text(func, JOURNAL_RET_UNKNOWN, ARGS(__VA_ARGS__), 0, text) : 0)
#define JOURNAL_SETTLE(place, ret, out) \
    do { \
        if (JOURNALING) \
            journal_settle(place, ret, out); \
    } while (0)
#endif
