/* libruntime.so: binaries, functions and launches. Nothing runs but what `device.c` does; handles and stubs must be known
 * ones. */
#include "device.h"
#include "journal.h"
#include "rangemap.h"
#include "runtime/rt.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct binary {
    uint32_t magic;
};
struct function {
    rtBinHandle binary;
};

/* Handles are heap pointers and live as long as the process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range_map binaries, functions, stubs;

static void lock_kernels(void)
{
    pthread_mutex_lock(&lock);
}

static void unlock_kernels(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void kernel_start(void)
{
    pthread_atfork(lock_kernels, unlock_kernels, unlock_kernels);
}

static int known(const struct range_map *map, const void *key)
{
    lock_kernels();
    int found = range_find(map, U(key)) != NULL;
    unlock_kernels();
    return found;
}

static void remember(struct range_map *map, const void *key)
{
    lock_kernels();
    if (!range_find(map, U(key)))
        range_insert(map, U(key), 1, 0);
    unlock_kernels();
}

/* ---- binaries and functions ---- */

static rtError_t binary_new(uint32_t magic, void **out)
{
    struct binary *binary = out ? malloc(sizeof *binary) : NULL;
    if (!binary)
        return ACL_ERROR_RT_PARAM_INVALID;
    binary->magic = magic;
    remember(&binaries, binary);
    *out = binary;
    return RT_ERROR_NONE;
}

static rtError_t binary_register(const rtDevBinary_t *bin, void **out)
{
    return bin && bin->data && bin->length ? binary_new(bin->magic, out) : ACL_ERROR_RT_PARAM_INVALID;
}

rtError_t rtDevBinaryRegister(const rtDevBinary_t *bin, void **hdl)
{
    rtError_t ret = binary_register(bin, hdl);
    JOURNAL_RETURN(JF_runtime_rtDevBinaryRegister, ret, *hdl, bin ? bin->magic : 0, bin ? U(bin->data) : 0,
                   bin ? bin->length : 0);
    return ret;
}

rtError_t rtRegisterAllKernel(const rtDevBinary_t *bin, void **hdl)
{
    rtError_t ret = binary_register(bin, hdl);
    JOURNAL_RETURN(JF_runtime_rtRegisterAllKernel, ret, *hdl, bin ? bin->magic : 0, bin ? U(bin->data) : 0,
                   bin ? bin->length : 0);
    return ret;
}

rtError_t rtFunctionRegister(void *binHandle, const void *stubFunc, const char *stubName, const void *kernelInfoExt,
                             uint32_t funcMode)
{
    rtError_t ret = known(&binaries, binHandle) && stubFunc && stubName ? RT_ERROR_NONE : ACL_ERROR_RT_PARAM_INVALID;
    if (!ret)
        remember(&stubs, stubFunc);
    (void)kernelInfoExt;
    JOURNAL_RETURN_TEXT(JF_runtime_rtFunctionRegister, ret, stubFunc, stubName, U(binHandle), U(stubFunc), funcMode);
    return ret;
}

rtError_t rtsBinaryLoadFromFile(const char *const binPath, const rtLoadBinaryConfig_t *const optionalCfg,
                                rtBinHandle *handle)
{
    rtError_t ret = binPath ? binary_new(0, handle) : ACL_ERROR_RT_PARAM_INVALID;
    JOURNAL_RETURN_TEXT(JF_runtime_rtsBinaryLoadFromFile, ret, *handle, binPath, U(binPath), U(optionalCfg));
    return ret;
}

rtError_t rtsBinaryLoadFromData(const void *const data, const uint64_t length,
                                const rtLoadBinaryConfig_t *const optionalCfg, rtBinHandle *handle)
{
    rtError_t ret = data && length ? binary_new(0, handle) : ACL_ERROR_RT_PARAM_INVALID;
    JOURNAL_RETURN(JF_runtime_rtsBinaryLoadFromData, ret, *handle, U(data), length, U(optionalCfg));
    return ret;
}

static rtError_t function_by_name(rtBinHandle binary, const char *name, rtFuncHandle *out)
{
    if (!known(&binaries, binary) || !name || !out)
        return ACL_ERROR_RT_PARAM_INVALID;
    struct function *function = malloc(sizeof *function);
    if (!function)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    function->binary = binary;
    remember(&functions, function);
    *out = function;
    return RT_ERROR_NONE;
}

rtError_t rtsFuncGetByName(const rtBinHandle binHandle, const char *kernelName, rtFuncHandle *funcHandle)
{
    rtError_t ret = function_by_name(binHandle, kernelName, funcHandle);
    JOURNAL_RETURN_TEXT(JF_runtime_rtsFuncGetByName, ret, *funcHandle, kernelName, U(binHandle), U(kernelName));
    return ret;
}

rtError_t rtBinaryGetFunctionByName(const rtBinHandle binHandle, const char *kernelName, rtFuncHandle *funcHandle)
{
    rtError_t ret = function_by_name(binHandle, kernelName, funcHandle);
    JOURNAL_RETURN_TEXT(JF_runtime_rtBinaryGetFunctionByName, ret, *funcHandle, kernelName, U(binHandle),
                        U(kernelName));
    return ret;
}

/* ---- launches ---- */

static rtError_t check(const struct range_map *map, const void *key, rtError_t otherwise)
{
    return key && known(map, key) ? RT_ERROR_NONE : otherwise;
}

static rtError_t check_stub(const void *stub)
{
    return check(&stubs, stub, ACL_ERROR_RT_PARAM_INVALID);
}

static rtError_t check_binary(const void *handle)
{
    return check(&binaries, handle, ACL_ERROR_RT_PARAM_INVALID);
}

static rtError_t check_function(const void *handle)
{
    return check(&functions, handle, ACL_ERROR_RT_INVALID_HANDLE);
}

rtError_t rtKernelLaunch(const void *stubFunc, uint32_t numBlocks, void *args, uint32_t argsSize, rtSmDesc_t *smDesc,
                         rtStream_t stm)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtKernelLaunch, U(stubFunc), numBlocks, U(stm), U(args));
    (void)smDesc;
    rtError_t ret = check_stub(stubFunc);
    if (!ret)
        device_launch(args, argsSize);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtKernelLaunchWithFlag(const void *stubFunc, uint32_t numBlocks, rtArgsEx_t *argsInfo, rtSmDesc_t *smDesc,
                                 rtStream_t stm, uint32_t flags)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtKernelLaunchWithFlag, U(stubFunc), numBlocks, U(stm), U(argsInfo));
    (void)smDesc, (void)flags;
    rtError_t ret = check_stub(stubFunc);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtKernelLaunchWithFlagV2(const void *stubFunc, uint32_t numBlocks, rtArgsEx_t *argsInfo, rtSmDesc_t *smDesc,
                                   rtStream_t stm, uint32_t flags, const rtTaskCfgInfo_t *cfgInfo)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtKernelLaunchWithFlagV2, U(stubFunc), numBlocks, U(stm), U(argsInfo));
    (void)smDesc, (void)flags, (void)cfgInfo;
    rtError_t ret = check_stub(stubFunc);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtKernelLaunchWithHandle(void *hdl, const uint64_t tilingKey, uint32_t numBlocks, rtArgsEx_t *argsInfo,
                                   rtSmDesc_t *smDesc, rtStream_t stm, const void *kernelInfo)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtKernelLaunchWithHandle, U(hdl), numBlocks, U(stm), tilingKey);
    (void)argsInfo, (void)smDesc, (void)kernelInfo;
    rtError_t ret = check_binary(hdl);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtKernelLaunchWithHandleV2(void *hdl, const uint64_t tilingKey, uint32_t numBlocks, rtArgsEx_t *argsInfo,
                                     rtSmDesc_t *smDesc, rtStream_t stm, const rtTaskCfgInfo_t *cfgInfo)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtKernelLaunchWithHandleV2, U(hdl), numBlocks, U(stm), tilingKey);
    (void)argsInfo, (void)smDesc, (void)cfgInfo;
    rtError_t ret = check_binary(hdl);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtLaunchKernelByFuncHandle(rtFuncHandle funcHandle, uint32_t numBlocks, rtLaunchArgsHandle argsHandle,
                                     rtStream_t stm)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtLaunchKernelByFuncHandle, U(funcHandle), numBlocks, U(stm),
                                   U(argsHandle));
    rtError_t ret = check_function(funcHandle);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtLaunchKernelByFuncHandleV2(rtFuncHandle funcHandle, uint32_t numBlocks, rtLaunchArgsHandle argsHandle,
                                       rtStream_t stm, const rtTaskCfgInfo_t *cfgInfo)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtLaunchKernelByFuncHandleV2, U(funcHandle), numBlocks, U(stm),
                                   U(argsHandle));
    (void)cfgInfo;
    rtError_t ret = check_function(funcHandle);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtLaunchKernelByFuncHandleV3(rtFuncHandle funcHandle, uint32_t numBlocks, const rtArgsEx_t *const argsInfo,
                                       rtStream_t stm, const rtTaskCfgInfo_t *const cfgInfo)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtLaunchKernelByFuncHandleV3, U(funcHandle), numBlocks, U(stm),
                                   U(argsInfo));
    (void)cfgInfo;
    rtError_t ret = check_function(funcHandle);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtsLaunchKernelWithConfig(rtFuncHandle funcHandle, uint32_t numBlocks, rtStream_t stm,
                                    rtKernelLaunchCfg_t *cfg, rtArgsHandle argsHandle, void *reserve)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtsLaunchKernelWithConfig, U(funcHandle), numBlocks, U(stm),
                                   U(argsHandle));
    (void)cfg, (void)reserve;
    rtError_t ret = check_function(funcHandle);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtsLaunchKernelWithDevArgs(rtFuncHandle funcHandle, uint32_t numBlocks, rtStream_t stm,
                                     rtKernelLaunchCfg_t *cfg, const void *args, uint32_t argsSize, void *reserve)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtsLaunchKernelWithDevArgs, U(funcHandle), numBlocks, U(stm), U(args));
    (void)cfg, (void)argsSize, (void)reserve;
    rtError_t ret = check_function(funcHandle);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtsLaunchKernelWithHostArgs(rtFuncHandle funcHandle, uint32_t numBlocks, rtStream_t stm,
                                      rtKernelLaunchCfg_t *cfg, void *hostArgs, uint32_t argsSize,
                                      rtPlaceHolderInfo_t *placeHolderArray, uint32_t placeHolderNum)
{
    uint64_t place = JOURNAL_ENTER(JF_runtime_rtsLaunchKernelWithHostArgs, U(funcHandle), numBlocks, U(stm),
                                   U(hostArgs));
    (void)cfg, (void)argsSize, (void)placeHolderArray, (void)placeHolderNum;
    rtError_t ret = check_function(funcHandle);
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtAicpuKernelLaunchExWithArgs(const uint32_t kernelType, const char *const opName, const uint32_t numBlocks,
                                        const rtAicpuArgsEx_t *argsInfo, rtSmDesc_t *const smDesc, const rtStream_t stm,
                                        const uint32_t flags)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_runtime_rtAicpuKernelLaunchExWithArgs, opName, kernelType, numBlocks,
                                        U(stm));
    (void)smDesc, (void)flags;
    rtError_t ret = argsInfo ? RT_ERROR_NONE : ACL_ERROR_RT_PARAM_INVALID;
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}

rtError_t rtKernelLaunchFwk(const char *opName, void *args, uint32_t argsSize, uint32_t flags, rtStream_t rtStream)
{
    uint64_t place = JOURNAL_ENTER_TEXT(JF_runtime_rtKernelLaunchFwk, opName, U(args), flags, U(rtStream));
    rtError_t ret = args && argsSize ? RT_ERROR_NONE : ACL_ERROR_RT_PARAM_INVALID;
    JOURNAL_SETTLE(place, ret, 0);
    return ret;
}
