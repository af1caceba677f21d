/* mstx: the functions that libms_tools_ext.so exports, and the injection interface of tools. */
#ifndef MSTX_MS_TOOLS_EXT_H
#define MSTX_MS_TOOLS_EXT_H
#include <stddef.h>
#include <stdint.h>
#include "sim_export.h"

/* Programs with copies of their own say otherwise. */
#ifndef MSTX_API
#define MSTX_API SIM_API
#endif

typedef void *aclrtStream;
typedef uint64_t mstxRangeId;
typedef struct mstxDomainRegistration_st *mstxDomainHandle_t;
typedef struct mstxMemHeap_st *mstxMemHeapHandle_t;
typedef struct mstxMemRegion_st *mstxMemRegionHandle_t;

typedef struct {
    uint32_t deviceId;
    const void *ptr;
    uint64_t size;
} mstxMemVirtualRangeDesc_t;

typedef struct {
    uint32_t usage;
    uint32_t type;
    const void *typeSpecificDesc;
} mstxMemHeapDesc_t;

typedef struct {
    mstxMemHeapHandle_t heap;
    uint32_t regionType;
    size_t regionCount;
    const void *regionDescArray;
    mstxMemRegionHandle_t *regionHandleArrayOut;
} mstxMemRegionsRegisterBatch_t;

enum { MSTX_MEM_REGION_REF_TYPE_POINTER, MSTX_MEM_REGION_REF_TYPE_HANDLE };
typedef struct {
    uint32_t refType;
    union {
        const void *pointer;
        mstxMemRegionHandle_t handle;
    };
} mstxMemRegionRef_t;

typedef struct {
    size_t refCount;
    const mstxMemRegionRef_t *refArray;
} mstxMemRegionsUnregisterBatch_t;

typedef enum { MSTX_API_MODULE_CORE = 1, MSTX_API_MODULE_CORE_DOMAIN = 2, MSTX_API_MODULE_CORE_MEM = 3 } mstxFuncModule;
typedef void (*mstxFuncPointer)(void);
typedef mstxFuncPointer **mstxFuncTable;
typedef int (*mstxGetModuleFuncTableFunc)(mstxFuncModule module, mstxFuncTable *outTable, unsigned int *outSize);
typedef int (*mstxInitInjectionFunc)(mstxGetModuleFuncTableFunc getFuncTable);
#define MSTX_SUCCESS 0
#define MSTX_FAIL 1

MSTX_API void mstxMarkA(const char *message, aclrtStream stream);
MSTX_API mstxRangeId mstxRangeStartA(const char *message, aclrtStream stream);
MSTX_API void mstxRangeEnd(mstxRangeId id);
MSTX_API int mstxGetToolId(uint64_t *id);
MSTX_API mstxDomainHandle_t mstxDomainCreateA(const char *name);
MSTX_API void mstxDomainDestroy(mstxDomainHandle_t domain);
MSTX_API void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, aclrtStream stream);
MSTX_API mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message, aclrtStream stream);
MSTX_API void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId id);
MSTX_API mstxMemHeapHandle_t mstxMemHeapRegister(mstxDomainHandle_t domain, const mstxMemHeapDesc_t *desc);
MSTX_API void mstxMemHeapUnregister(mstxDomainHandle_t domain, mstxMemHeapHandle_t heap);
MSTX_API void mstxMemRegionsRegister(mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *desc);
MSTX_API void mstxMemRegionsUnregister(mstxDomainHandle_t domain, const mstxMemRegionsUnregisterBatch_t *desc);
#endif
