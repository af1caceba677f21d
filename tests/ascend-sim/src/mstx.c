/* libms_tools_ext.so: thin dispatchers; without a tool they do nothing.
 *
 * Also what a user of the headers alone has of its own: then it is included with MSTX_API as some kind of static. In both
 * forms the first call of a process looks for a tool and enters its function once more. */
#define _GNU_SOURCE
#include "journal.h"
#include "mstx/ms_tools_ext.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define TABLE_SIZE 6

/* What a tool fills in: by module, then by function number from 1. */
static mstxFuncPointer hooks[4][TABLE_SIZE];
static mstxFuncPointer *tables[4][TABLE_SIZE];
static const unsigned table_sizes[4] = {0, 5, 6, 5};

static int get_table(mstxFuncModule module, mstxFuncTable *out, unsigned int *size)
{
    if (module < MSTX_API_MODULE_CORE || module > MSTX_API_MODULE_CORE_MEM || !out)
        return MSTX_FAIL;
    *out = tables[module];
    if (size)
        *size = table_sizes[module];
    return MSTX_SUCCESS;
}

static void load_tool(void)
{
    const char *path = getenv("MSTX_INJECTION_PATH");
    void *tool = path ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : RTLD_DEFAULT;
    if (path && !tool)
        return;
    mstxInitInjectionFunc init = (mstxInitInjectionFunc)dlsym(tool, "InitInjectionMstx");
    for (int module = 0; module < 4; module++)
        for (int i = 0; i < TABLE_SIZE; i++)
            tables[module][i] = &hooks[module][i];
    if (init)
        init(get_table);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;

static void prepare(void)
{
    load_tool();
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
}

/* The detour of the first call, by a function of its own as in the real library. */
#define FIRST(result, name, params, args) \
    static __attribute__((noinline)) result name##_init params \
    { \
        pthread_once(&once, prepare); \
        return name args; \
    }
FIRST(void, mstxMarkA, (const char *message, aclrtStream stream), (message, stream))
FIRST(mstxRangeId, mstxRangeStartA, (const char *message, aclrtStream stream), (message, stream))
FIRST(void, mstxRangeEnd, (mstxRangeId id), (id))
FIRST(int, mstxGetToolId, (uint64_t *id), (id))
FIRST(mstxDomainHandle_t, mstxDomainCreateA, (const char *name), (name))
FIRST(void, mstxDomainDestroy, (mstxDomainHandle_t domain), (domain))
FIRST(void, mstxDomainMarkA, (mstxDomainHandle_t domain, const char *message, aclrtStream stream),
      (domain, message, stream))
FIRST(mstxRangeId, mstxDomainRangeStartA, (mstxDomainHandle_t domain, const char *message, aclrtStream stream),
      (domain, message, stream))
FIRST(void, mstxDomainRangeEnd, (mstxDomainHandle_t domain, mstxRangeId id), (domain, id))
FIRST(mstxMemHeapHandle_t, mstxMemHeapRegister, (mstxDomainHandle_t domain, const mstxMemHeapDesc_t *desc), (domain, desc))
FIRST(void, mstxMemHeapUnregister, (mstxDomainHandle_t domain, mstxMemHeapHandle_t heap), (domain, heap))
FIRST(void, mstxMemRegionsRegister, (mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *desc), (domain, desc))
FIRST(void, mstxMemRegionsUnregister, (mstxDomainHandle_t domain, const mstxMemRegionsUnregisterBatch_t *desc),
      (domain, desc))

/* Not yet: the detour, which comes back to the function. */
#define DETOUR(call) \
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) \
    return call

#define HOOK(module, number, type) ((type)hooks[MSTX_API_MODULE_##module][number])

void mstxMarkA(const char *message, aclrtStream stream)
{
    DETOUR(mstxMarkA_init(message, stream));
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxMarkA, message, U(message), U(stream));
    void (*tool)(const char *, aclrtStream) = HOOK(CORE, 1, void (*)(const char *, aclrtStream));
    if (tool)
        tool(message, stream);
    JOURNAL_SETTLE(place, 0, 0);
}

mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream)
{
    DETOUR(mstxRangeStartA_init(message, stream));
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxRangeStartA, message, U(message), U(stream));
    mstxRangeId (*tool)(const char *, aclrtStream) = HOOK(CORE, 2, mstxRangeId(*)(const char *, aclrtStream));
    mstxRangeId id = tool ? tool(message, stream) : 0;
    JOURNAL_SETTLE(place, 0, id);
    return id;
}

void mstxRangeEnd(mstxRangeId id)
{
    DETOUR(mstxRangeEnd_init(id));
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxRangeEnd, id);
    void (*tool)(mstxRangeId) = HOOK(CORE, 3, void (*)(mstxRangeId));
    if (tool)
        tool(id);
    JOURNAL_SETTLE(place, 0, 0);
}

int mstxGetToolId(uint64_t *id)
{
    DETOUR(mstxGetToolId_init(id));
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxGetToolId, U(id));
    int (*tool)(uint64_t *) = HOOK(CORE, 4, int (*)(uint64_t *));
    int ret = tool ? tool(id) : 0;
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

mstxDomainHandle_t mstxDomainCreateA(const char *name)
{
    DETOUR(mstxDomainCreateA_init(name));
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxDomainCreateA, name, U(name));
    mstxDomainHandle_t (*tool)(const char *) = HOOK(CORE_DOMAIN, 1, mstxDomainHandle_t(*)(const char *));
    mstxDomainHandle_t domain = tool ? tool(name) : NULL;
    JOURNAL_SETTLE(place, 0, U(domain));
    return domain;
}

void mstxDomainDestroy(mstxDomainHandle_t domain)
{
    DETOUR(mstxDomainDestroy_init(domain));
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxDomainDestroy, U(domain));
    void (*tool)(mstxDomainHandle_t) = HOOK(CORE_DOMAIN, 2, void (*)(mstxDomainHandle_t));
    if (tool)
        tool(domain);
    JOURNAL_SETTLE(place, 0, 0);
}

void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream)
{
    DETOUR(mstxDomainMarkA_init(domain, message, stream));
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxDomainMarkA, message, U(domain), U(message), U(stream));
    void (*tool)(mstxDomainHandle_t, const char *, aclrtStream) =
        HOOK(CORE_DOMAIN, 3, void (*)(mstxDomainHandle_t, const char *, aclrtStream));
    if (tool)
        tool(domain, message, stream);
    JOURNAL_SETTLE(place, 0, 0);
}

mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message, aclrtStream stream)
{
    DETOUR(mstxDomainRangeStartA_init(domain, message, stream));
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxDomainRangeStartA, message, U(domain), U(message), U(stream));
    mstxRangeId (*tool)(mstxDomainHandle_t, const char *, aclrtStream) =
        HOOK(CORE_DOMAIN, 4, mstxRangeId(*)(mstxDomainHandle_t, const char *, aclrtStream));
    mstxRangeId id = tool ? tool(domain, message, stream) : 0;
    JOURNAL_SETTLE(place, 0, id);
    return id;
}

void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id)
{
    DETOUR(mstxDomainRangeEnd_init(domain, id));
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxDomainRangeEnd, U(domain), id);
    void (*tool)(mstxDomainHandle_t, mstxRangeId) =
        HOOK(CORE_DOMAIN, 5, void (*)(mstxDomainHandle_t, mstxRangeId));
    if (tool)
        tool(domain, id);
    JOURNAL_SETTLE(place, 0, 0);
}

mstxMemHeapHandle_t mstxMemHeapRegister(mstxDomainHandle_t domain, const mstxMemHeapDesc_t *desc)
{
    DETOUR(mstxMemHeapRegister_init(domain, desc));
    const mstxMemVirtualRangeDesc_t *range = desc ? desc->typeSpecificDesc : NULL;
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxMemHeapRegister, U(domain), range ? range->deviceId : 0,
                                   range ? U(range->ptr) : 0, range ? range->size : 0);
    mstxMemHeapHandle_t (*tool)(mstxDomainHandle_t, const mstxMemHeapDesc_t *) =
        HOOK(CORE_MEM, 1, mstxMemHeapHandle_t(*)(mstxDomainHandle_t, const mstxMemHeapDesc_t *));
    mstxMemHeapHandle_t heap = tool ? tool(domain, desc) : NULL;
    JOURNAL_SETTLE(place, 0, U(heap));
    return heap;
}

void mstxMemHeapUnregister(mstxDomainHandle_t domain, mstxMemHeapHandle_t heap)
{
    DETOUR(mstxMemHeapUnregister_init(domain, heap));
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxMemHeapUnregister, U(domain), U(heap));
    void (*tool)(mstxDomainHandle_t, mstxMemHeapHandle_t) =
        HOOK(CORE_MEM, 2, void (*)(mstxDomainHandle_t, mstxMemHeapHandle_t));
    if (tool)
        tool(domain, heap);
    JOURNAL_SETTLE(place, 0, 0);
}

void mstxMemRegionsRegister(mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *desc)
{
    DETOUR(mstxMemRegionsRegister_init(domain, desc));
    const mstxMemVirtualRangeDesc_t *first = desc && desc->regionCount ? desc->regionDescArray : NULL;
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxMemRegionsRegister, U(domain), desc ? desc->regionCount : 0,
                                   first ? U(first->ptr) : 0, first ? first->size : 0);
    void (*tool)(mstxDomainHandle_t, const mstxMemRegionsRegisterBatch_t *) =
        HOOK(CORE_MEM, 3, void (*)(mstxDomainHandle_t, const mstxMemRegionsRegisterBatch_t *));
    if (tool)
        tool(domain, desc);
    JOURNAL_SETTLE(place, 0, 0);
    for (size_t i = 0; JOURNALING && first && i < desc->regionCount; i++)
        journal_add(JF_mstx_region, 0, ARGS(U(domain), first[i].deviceId, U(first[i].ptr), first[i].size), 0);
}

void mstxMemRegionsUnregister(mstxDomainHandle_t domain, const mstxMemRegionsUnregisterBatch_t *desc)
{
    DETOUR(mstxMemRegionsUnregister_init(domain, desc));
    const mstxMemRegionRef_t *first = desc && desc->refCount ? desc->refArray : NULL;
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxMemRegionsUnregister, U(domain), desc ? desc->refCount : 0,
                                   first ? first->refType : 0, first ? U(first->pointer) : 0);
    for (size_t i = 0; JOURNALING && first && i < desc->refCount; i++)
        journal_add(JF_mstx_region_end, 0, ARGS(U(domain), first[i].refType, U(first[i].pointer)), 0);
    void (*tool)(mstxDomainHandle_t, const mstxMemRegionsUnregisterBatch_t *) =
        HOOK(CORE_MEM, 4, void (*)(mstxDomainHandle_t, const mstxMemRegionsUnregisterBatch_t *));
    if (tool)
        tool(domain, desc);
    JOURNAL_SETTLE(place, 0, 0);
}
