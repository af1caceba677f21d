/* libascendcl.so: the umbrella that frameworks link. Every call goes on into libacl_rt.so, found at the first one.
 * Unjournaled calls are tail calls, so that a return probe here fires from a jump's target. */
#include "acl/acl_rt.h"
#include "journal.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
#define GIVES(name, params, ...) aclError(*name) params;
#define NAMES(name, params, ...) aclError(*name) params;
#define TAKES(name, params, ...) aclError(*name) params;
#include "acl_calls.h"
#undef GIVES
#undef NAMES
#undef TAKES
} target;

static void *symbol(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "ascend-sim: %s\n", dlerror());
        abort();
    }
    return address;
}

static void resolve_all(void)
{
    void *library = dlopen("libacl_rt.so", RTLD_NOW | RTLD_LOCAL);
#define RESOLVE(name, ...) *(void **)&target.name = symbol(library, #name);
#define GIVES RESOLVE
#define NAMES RESOLVE
#define TAKES RESOLVE
#include "acl_calls.h"
#undef GIVES
#undef NAMES
#undef TAKES
}

static pthread_once_t resolved = PTHREAD_ONCE_INIT;

#define GIVES(name, params, args, out, ...) \
    aclError name params \
    { \
        pthread_once(&resolved, resolve_all); \
        if (!JOURNALING) \
            return target.name args; \
        aclError ret = target.name args; \
        JOURNAL_RETURN(JF_ascendcl_##name, ret, out, __VA_ARGS__); \
        return ret; \
    }
#define NAMES(name, params, args, out, text, ...) \
    aclError name params \
    { \
        pthread_once(&resolved, resolve_all); \
        if (!JOURNALING) \
            return target.name args; \
        aclError ret = target.name args; \
        JOURNAL_RETURN_TEXT(JF_ascendcl_##name, ret, out, text, __VA_ARGS__); \
        return ret; \
    }
#define TAKES(name, params, args, ...) \
    aclError name params \
    { \
        pthread_once(&resolved, resolve_all); \
        if (!JOURNALING) \
            return target.name args; \
        uint64_t place = JOURNAL_ENTER(JF_ascendcl_##name, __VA_ARGS__); \
        aclError ret = target.name args; \
        JOURNAL_SETTLE(place, ret, 0); \
        return ret; \
    }
#include "acl_calls.h"
