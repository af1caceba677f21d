/* libms_tools_ext.so: thin dispatchers; without a tool they do nothing. */
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

static mstxFuncPointer hook(mstxFuncModule module, int number)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_tool);
    return hooks[module][number];
}

#define HOOK(module, number, type) ((type)hook(MSTX_API_MODULE_##module, number))

void mstxMarkA(const char *message, aclrtStream stream)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxMarkA, message, U(message), U(stream));
    void (*tool)(const char *, aclrtStream) = HOOK(CORE, 1, void (*)(const char *, aclrtStream));
    if (tool)
        tool(message, stream);
    JOURNAL_SETTLE(place, 0, 0);
}

mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxRangeStartA, message, U(message), U(stream));
    mstxRangeId (*tool)(const char *, aclrtStream) = HOOK(CORE, 2, mstxRangeId(*)(const char *, aclrtStream));
    mstxRangeId id = tool ? tool(message, stream) : 0;
    JOURNAL_SETTLE(place, 0, id);
    return id;
}

void mstxRangeEnd(mstxRangeId id)
{
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxRangeEnd, id);
    void (*tool)(mstxRangeId) = HOOK(CORE, 3, void (*)(mstxRangeId));
    if (tool)
        tool(id);
    JOURNAL_SETTLE(place, 0, 0);
}

int mstxGetToolId(uint64_t *id)
{
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxGetToolId, U(id));
    int (*tool)(uint64_t *) = HOOK(CORE, 4, int (*)(uint64_t *));
    int ret = tool ? tool(id) : 0;
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

mstxDomainHandle_t mstxDomainCreateA(const char *name)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxDomainCreateA, name, U(name));
    mstxDomainHandle_t (*tool)(const char *) = HOOK(CORE_DOMAIN, 1, mstxDomainHandle_t(*)(const char *));
    mstxDomainHandle_t domain = tool ? tool(name) : NULL;
    JOURNAL_SETTLE(place, 0, U(domain));
    return domain;
}

void mstxDomainDestroy(mstxDomainHandle_t domain)
{
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxDomainDestroy, U(domain));
    void (*tool)(mstxDomainHandle_t) = HOOK(CORE_DOMAIN, 2, void (*)(mstxDomainHandle_t));
    if (tool)
        tool(domain);
    JOURNAL_SETTLE(place, 0, 0);
}

void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxDomainMarkA, message, U(domain), U(message), U(stream));
    void (*tool)(mstxDomainHandle_t, const char *, aclrtStream) =
        HOOK(CORE_DOMAIN, 3, void (*)(mstxDomainHandle_t, const char *, aclrtStream));
    if (tool)
        tool(domain, message, stream);
    JOURNAL_SETTLE(place, 0, 0);
}

mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message, aclrtStream stream)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_mstx_mstxDomainRangeStartA, message, U(domain), U(message), U(stream));
    mstxRangeId (*tool)(mstxDomainHandle_t, const char *, aclrtStream) =
        HOOK(CORE_DOMAIN, 4, mstxRangeId(*)(mstxDomainHandle_t, const char *, aclrtStream));
    mstxRangeId id = tool ? tool(domain, message, stream) : 0;
    JOURNAL_SETTLE(place, 0, id);
    return id;
}

void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id)
{
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxDomainRangeEnd, U(domain), id);
    void (*tool)(mstxDomainHandle_t, mstxRangeId) =
        HOOK(CORE_DOMAIN, 5, void (*)(mstxDomainHandle_t, mstxRangeId));
    if (tool)
        tool(domain, id);
    JOURNAL_SETTLE(place, 0, 0);
}

mstxMemHeapHandle_t mstxMemHeapRegister(mstxDomainHandle_t domain, const mstxMemHeapDesc_t *desc)
{
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
    uint64_t place = JOURNAL_ENTER(JF_mstx_mstxMemHeapUnregister, U(domain), U(heap));
    void (*tool)(mstxDomainHandle_t, mstxMemHeapHandle_t) =
        HOOK(CORE_MEM, 2, void (*)(mstxDomainHandle_t, mstxMemHeapHandle_t));
    if (tool)
        tool(domain, heap);
    JOURNAL_SETTLE(place, 0, 0);
}

void mstxMemRegionsRegister(mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *desc)
{
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
