/* libopapi.so: second phases of a few operators. As in the real ones, half of them run by the one function, half by the other, and each
 * does something behind that. */
#include "simopapi.h"

extern int32_t common_run(void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream)
    __asm__("_Z19CommonOpExecutorRunPvmP13aclOpExecutorS_");
extern int32_t NnopbaseRunWithWorkspace(void *executor, aclrtStream stream, void *workspace, uint64_t workspace_size);

/* Calls that have returned. */
static volatile uint64_t returned;

#define COMMON(name) \
    SIM_API simopapi_phase_two name; \
    int32_t name(void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream) \
    { \
        int32_t ret = common_run(workspace, workspace_size, executor, stream); \
        returned++; \
        return ret; \
    }
#define GENERATED(name) \
    SIM_API simopapi_phase_two name; \
    int32_t name(void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream) \
    { \
        int32_t ret = NnopbaseRunWithWorkspace(executor, stream, workspace, workspace_size); \
        returned++; \
        return ret; \
    }
COMMON(aclnnAdd)
GENERATED(aclnnSub)
COMMON(aclnnMul)
GENERATED(aclnnDiv)
COMMON(aclnnNeg)
GENERATED(aclnnExp)
COMMON(aclnnAbs)
GENERATED(aclnnCos)
