/* ACL: the part of the interface that the simulation has. */
#ifndef ACL_ACL_RT_H
#define ACL_ACL_RT_H
#include <stddef.h>
#include <stdint.h>
#include "sim_export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int aclError;
typedef void *aclrtStream;
typedef void *aclrtBinHandle;
typedef void *aclrtFuncHandle;
typedef void *aclrtArgsHandle;
typedef void *aclrtDrvMemHandle;

#define ACL_SUCCESS 0
#define ACL_ERROR_INVALID_PARAM 100000
#define ACL_ERROR_REPEAT_INITIALIZE 100002
#define ACL_ERROR_BAD_ALLOC 200000

typedef enum {
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEM_MALLOC_HUGE_ONLY,
    ACL_MEM_MALLOC_NORMAL_ONLY,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P,
    ACL_MEM_MALLOC_HUGE_ONLY_P2P,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
    ACL_MEM_MALLOC_HUGE1G_ONLY,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
} aclrtMemMallocPolicy;

typedef enum {
    ACL_DDR_MEM,
    ACL_HBM_MEM,
    ACL_DDR_MEM_HUGE,
    ACL_DDR_MEM_NORMAL,
    ACL_HBM_MEM_HUGE,
    ACL_HBM_MEM_NORMAL,
    ACL_HBM_MEM_HUGE1G = 10,
} aclrtMemAttr;

typedef enum { ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE } aclrtMemLocationType;
typedef enum { ACL_MEM_ALLOCATION_TYPE_PINNED } aclrtMemAllocationType;
typedef enum { ACL_MEM_HANDLE_TYPE_NONE } aclrtMemHandleType;
typedef enum { ACL_HOST_REGISTER_MAPPED } aclrtHostRegisterType;
#define ACL_HOST_REG_PINNED 0x10000000u
typedef enum { ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_DEVICE } aclrtMemcpyKind;

typedef struct {
    uint32_t id;
    aclrtMemLocationType type;
} aclrtMemLocation;

typedef struct {
    aclrtMemHandleType handleType;
    aclrtMemAllocationType allocationType;
    aclrtMemAttr memAttr;
    aclrtMemLocation location;
    uint64_t reserve;
} aclrtPhysicalMemProp;

typedef struct aclrtBinaryLoadOptions aclrtBinaryLoadOptions;
typedef struct aclrtLaunchKernelCfg aclrtLaunchKernelCfg;
typedef struct aclrtPlaceHolderInfo aclrtPlaceHolderInfo;

SIM_API aclError aclInit(const char *configPath);
SIM_API aclError aclFinalize(void);
SIM_API aclError aclrtSetDevice(int32_t deviceId);
SIM_API aclError aclrtGetDevice(int32_t *deviceId);
SIM_API aclError aclrtResetDevice(int32_t deviceId);
SIM_API aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
SIM_API aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
SIM_API aclError aclrtMallocCached(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
SIM_API aclError aclrtFree(void *devPtr);
SIM_API aclError aclrtMallocHost(void **hostPtr, size_t size);
SIM_API aclError aclrtFreeHost(void *hostPtr);
SIM_API aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *prop, uint64_t flags);
SIM_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle);
SIM_API aclError aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags);
SIM_API aclError aclrtUnmapMem(void *virPtr);
SIM_API aclError aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment, void *expectPtr, uint64_t flags);
SIM_API aclError aclrtReleaseMemAddress(void *virPtr);
SIM_API aclError aclrtHostRegister(void *ptr, uint64_t size, aclrtHostRegisterType type, void **devPtr);
SIM_API aclError aclrtHostRegisterV2(void *ptr, uint64_t size, uint32_t flag);
SIM_API aclError aclrtHostUnregister(void *ptr);
SIM_API aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
SIM_API aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind);
SIM_API aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind, aclrtStream stream);
SIM_API aclError aclrtCreateStream(aclrtStream *stream);
SIM_API aclError aclrtDestroyStream(aclrtStream stream);
SIM_API aclError aclrtSynchronizeDevice(void);
SIM_API aclError aclrtSynchronizeStream(aclrtStream stream);
SIM_API aclError aclrtStreamGetId(aclrtStream stream, int32_t *streamId);
SIM_API aclError aclrtBinaryLoadFromFile(const char *binPath, aclrtBinaryLoadOptions *options, aclrtBinHandle *binHandle);
SIM_API aclError aclrtBinaryLoadFromData(const void *data, size_t length, const aclrtBinaryLoadOptions *options, aclrtBinHandle *binHandle);
SIM_API aclError aclrtBinaryGetFunction(const aclrtBinHandle binHandle, const char *kernelName, aclrtFuncHandle *funcHandle);
SIM_API aclError aclrtLaunchKernel(aclrtFuncHandle funcHandle, uint32_t numBlocks, const void *argsData, size_t argsSize, aclrtStream stream);
SIM_API aclError aclrtLaunchKernelV2(aclrtFuncHandle funcHandle, uint32_t numBlocks, const void *argsData, size_t argsSize, aclrtLaunchKernelCfg *cfg, aclrtStream stream);
SIM_API aclError aclrtLaunchKernelWithConfig(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream, aclrtLaunchKernelCfg *cfg, aclrtArgsHandle argsHandle, void *reserve);
SIM_API aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream, aclrtLaunchKernelCfg *cfg, void *hostArgs, size_t argsSize, aclrtPlaceHolderInfo *placeHolderArray, size_t placeHolderNum);
#ifdef __cplusplus
}
#endif
#endif
