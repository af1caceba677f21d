/* Runtime: the part of the interface that the simulation has. */
#ifndef RUNTIME_RT_H
#define RUNTIME_RT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sim_export.h"

typedef int32_t rtError_t;
typedef uint32_t rtMemType_t;
typedef void *rtStream_t;
typedef void *rtBinHandle;
typedef void *rtFuncHandle;
typedef void *rtArgsHandle;
typedef void *rtLaunchArgsHandle;
typedef void *rtDrvMemHandle;
typedef enum { RT_MEMCPY_HOST_TO_HOST, RT_MEMCPY_HOST_TO_DEVICE, RT_MEMCPY_DEVICE_TO_HOST, RT_MEMCPY_DEVICE_TO_DEVICE } rtMemcpyKind_t;
typedef uint32_t rtMemInfoType_t;
typedef uint32_t rtHostRegisterType;

#define RT_ERROR_NONE 0
#define ACL_ERROR_RT_PARAM_INVALID 107000
#define ACL_ERROR_RT_INVALID_DEVICEID 107001
#define ACL_ERROR_RT_CONTEXT_NULL 107002
#define ACL_ERROR_RT_INVALID_HANDLE 107017
#define ACL_ERROR_RT_FEATURE_NOT_SUPPORT 207000
#define ACL_ERROR_RT_MEMORY_ALLOCATION 207001
#define ACL_ERROR_RT_DRV_INTERNAL_ERROR 507899

#define RT_MEMORY_DEFAULT 0x0u
#define RT_MEMORY_HBM 0x2u
#define RT_MEMORY_POLICY_HUGE_PAGE_FIRST 0x400u
#define RT_MEMORY_POLICY_HUGE_PAGE_ONLY 0x800u
#define RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY 0x1000u
#define RT_MEMORY_POLICY_HUGE_PAGE_FIRST_P2P 0x2000u
#define RT_MEMORY_POLICY_HUGE_PAGE_ONLY_P2P 0x4000u
#define RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY_P2P 0x8000u
#define RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY 0x10000u
#define RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY_P2P 0x20000u

#define RT_DEV_BINARY_MAGIC_ELF 0x43554245u

typedef struct {
    uint32_t side;
    uint32_t devid;
    uint32_t module_id;
    uint32_t pg_type;
    uint32_t mem_type;
    uint64_t reserve;
} rtDrvMemProp_t;

typedef struct {
    uint32_t magic;
    uint32_t version;
    const void *data;
    uint64_t length;
} rtDevBinary_t;

typedef struct rtHostInputInfo rtHostInputInfo_t;
typedef struct rtSmDesc rtSmDesc_t;
typedef struct rtTaskCfgInfo rtTaskCfgInfo_t;
typedef struct rtKernelLaunchCfg rtKernelLaunchCfg_t;
typedef struct rtLoadBinaryConfig rtLoadBinaryConfig_t;
typedef struct rtPlaceHolderInfo rtPlaceHolderInfo_t;

typedef struct {
    void *args;
    rtHostInputInfo_t *hostInputInfoPtr;
    uint32_t argsSize;
    uint32_t tilingAddrOffset;
    uint32_t tilingDataOffset;
    uint16_t hostInputInfoNum;
    uint8_t hasTiling;
    uint8_t isNoNeedH2DCopy;
    uint8_t reserved[4];
} rtArgsEx_t;

typedef struct {
    void *args;
    rtHostInputInfo_t *hostInputInfoPtr;
    rtHostInputInfo_t *kernelOffsetInfoPtr;
    uint32_t argsSize;
    uint16_t hostInputInfoNum;
    uint16_t kernelOffsetInfoNum;
    uint32_t soNameAddrOffset;
    uint32_t kernelNameAddrOffset;
    bool isNoNeedH2DCopy;
    uint16_t timeout;
    uint8_t reserved;
} rtAicpuArgsEx_t;

SIM_API rtError_t rtSetDevice(int32_t devId);
SIM_API rtError_t rtSetDeviceEx(int32_t devId);
SIM_API rtError_t rtGetDevice(int32_t *devId);
SIM_API rtError_t rtSetDefaultDeviceId(const int32_t deviceId);
SIM_API rtError_t rtDeviceReset(int32_t devId);

SIM_API rtError_t rtMalloc(void **devPtr, uint64_t size, rtMemType_t type, const uint16_t moduleId);
SIM_API rtError_t rtMallocCached(void **devPtr, uint64_t size, rtMemType_t type, const uint16_t moduleId);
SIM_API rtError_t rtFree(void *devPtr);
SIM_API rtError_t rtMallocHost(void **hostPtr, uint64_t size, const uint16_t moduleId);
SIM_API rtError_t rtFreeHost(void *hostPtr);
SIM_API rtError_t rtMallocPhysical(rtDrvMemHandle *handle, size_t size, rtDrvMemProp_t *prop, uint64_t flags);
SIM_API rtError_t rtFreePhysical(rtDrvMemHandle handle);
SIM_API rtError_t rtMapMem(void *devPtr, size_t size, size_t offset, rtDrvMemHandle handle, uint64_t flags);
SIM_API rtError_t rtUnmapMem(void *devPtr);
SIM_API rtError_t rtReserveMemAddress(void **devPtr, size_t size, size_t alignment, void *devAddr, uint64_t flags);
SIM_API rtError_t rtReleaseMemAddress(void *devPtr);
SIM_API rtError_t rtsHostRegister(void *ptr, uint64_t size, rtHostRegisterType type, void **devPtr);
SIM_API rtError_t rtHostRegisterV2(void *ptr, uint64_t size, uint32_t flag);
SIM_API rtError_t rtsHostUnregister(void *ptr);
SIM_API rtError_t rtMemGetInfoEx(rtMemInfoType_t memInfoType, size_t *freeSize, size_t *totalSize);
SIM_API rtError_t rtMemcpy(void *dst, uint64_t destMax, const void *src, uint64_t cnt, rtMemcpyKind_t kind);
SIM_API rtError_t rtMemcpyAsync(void *dst, uint64_t destMax, const void *src, uint64_t cnt, rtMemcpyKind_t kind, rtStream_t stm);

SIM_API rtError_t rtStreamCreate(rtStream_t *stm, int32_t priority);
SIM_API rtError_t rtStreamDestroy(rtStream_t stm);
SIM_API rtError_t rtDeviceSynchronize(void);
SIM_API rtError_t rtStreamSynchronize(rtStream_t stm);
SIM_API rtError_t rtGetStreamId(rtStream_t stm, int32_t *streamId);
SIM_API rtError_t rtsStreamGetId(rtStream_t stm, int32_t *streamId);

SIM_API rtError_t rtDevBinaryRegister(const rtDevBinary_t *bin, void **hdl);
SIM_API rtError_t rtRegisterAllKernel(const rtDevBinary_t *bin, void **hdl);
SIM_API rtError_t rtFunctionRegister(void *binHandle, const void *stubFunc, const char *stubName, const void *kernelInfoExt, uint32_t funcMode);
SIM_API rtError_t rtsBinaryLoadFromFile(const char *const binPath, const rtLoadBinaryConfig_t *const optionalCfg, rtBinHandle *handle);
SIM_API rtError_t rtsBinaryLoadFromData(const void *const data, const uint64_t length, const rtLoadBinaryConfig_t *const optionalCfg, rtBinHandle *handle);
SIM_API rtError_t rtsFuncGetByName(const rtBinHandle binHandle, const char *kernelName, rtFuncHandle *funcHandle);
SIM_API rtError_t rtBinaryGetFunctionByName(const rtBinHandle binHandle, const char *kernelName, rtFuncHandle *funcHandle);

SIM_API rtError_t rtKernelLaunch(const void *stubFunc, uint32_t numBlocks, void *args, uint32_t argsSize, rtSmDesc_t *smDesc, rtStream_t stm);
SIM_API rtError_t rtKernelLaunchWithFlag(const void *stubFunc, uint32_t numBlocks, rtArgsEx_t *argsInfo, rtSmDesc_t *smDesc, rtStream_t stm, uint32_t flags);
SIM_API rtError_t rtKernelLaunchWithFlagV2(const void *stubFunc, uint32_t numBlocks, rtArgsEx_t *argsInfo, rtSmDesc_t *smDesc, rtStream_t stm, uint32_t flags, const rtTaskCfgInfo_t *cfgInfo);
SIM_API rtError_t rtKernelLaunchWithHandle(void *hdl, const uint64_t tilingKey, uint32_t numBlocks, rtArgsEx_t *argsInfo, rtSmDesc_t *smDesc, rtStream_t stm, const void *kernelInfo);
SIM_API rtError_t rtKernelLaunchWithHandleV2(void *hdl, const uint64_t tilingKey, uint32_t numBlocks, rtArgsEx_t *argsInfo, rtSmDesc_t *smDesc, rtStream_t stm, const rtTaskCfgInfo_t *cfgInfo);
SIM_API rtError_t rtLaunchKernelByFuncHandle(rtFuncHandle funcHandle, uint32_t numBlocks, rtLaunchArgsHandle argsHandle, rtStream_t stm);
SIM_API rtError_t rtLaunchKernelByFuncHandleV2(rtFuncHandle funcHandle, uint32_t numBlocks, rtLaunchArgsHandle argsHandle, rtStream_t stm, const rtTaskCfgInfo_t *cfgInfo);
SIM_API rtError_t rtLaunchKernelByFuncHandleV3(rtFuncHandle funcHandle, uint32_t numBlocks, const rtArgsEx_t *const argsInfo, rtStream_t stm, const rtTaskCfgInfo_t *const cfgInfo);
SIM_API rtError_t rtsLaunchKernelWithConfig(rtFuncHandle funcHandle, uint32_t numBlocks, rtStream_t stm, rtKernelLaunchCfg_t *cfg, rtArgsHandle argsHandle, void *reserve);
SIM_API rtError_t rtsLaunchKernelWithDevArgs(rtFuncHandle funcHandle, uint32_t numBlocks, rtStream_t stm, rtKernelLaunchCfg_t *cfg, const void *args, uint32_t argsSize, void *reserve);
SIM_API rtError_t rtsLaunchKernelWithHostArgs(rtFuncHandle funcHandle, uint32_t numBlocks, rtStream_t stm, rtKernelLaunchCfg_t *cfg, void *hostArgs, uint32_t argsSize, rtPlaceHolderInfo_t *placeHolderArray, uint32_t placeHolderNum);
SIM_API rtError_t rtAicpuKernelLaunchExWithArgs(const uint32_t kernelType, const char *const opName, const uint32_t numBlocks, const rtAicpuArgsEx_t *argsInfo, rtSmDesc_t *const smDesc, const rtStream_t stm, const uint32_t flags);
SIM_API rtError_t rtKernelLaunchFwk(const char *opName, void *args, uint32_t argsSize, uint32_t flags, rtStream_t rtStream);
#endif
