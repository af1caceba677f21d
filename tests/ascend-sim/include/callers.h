/* The return addresses of the callers, as the compiler's own unwinder finds them; the first one lies in the function that asks. */
#ifndef CALLERS_H
#define CALLERS_H

#ifdef __GLIBC__

#include <execinfo.h>

static inline __attribute__((always_inline)) int callers(void **frames, int most)
{
    return backtrace(frames, most);
}

#else /* musl has none. */

#include <stdint.h>
#include <unwind.h>

struct callers {
    void **frames;
    int count, most;
};

static _Unwind_Reason_Code callers_add(struct _Unwind_Context *context, void *to)
{
    struct callers *callers = (struct callers *)to;
    if (callers->count == callers->most)
        return _URC_END_OF_STACK;
    callers->frames[callers->count++] = (void *)(uintptr_t)_Unwind_GetIP(context);
    return _URC_NO_REASON;
}

static inline __attribute__((always_inline)) int callers(void **frames, int most)
{
    struct callers found = {frames, 0, most};
    _Unwind_Backtrace(callers_add, &found);
    return found.count;
}

#endif
#endif
