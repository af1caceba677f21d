/* libnnopbase.so: what runs operators of CANN's library, under the names that those import. */
#include "simopapi.h"
#include <stdlib.h>

struct aclOpExecutor {
    void (*kernels)(void *);
    void *argument;
};

aclOpExecutor *simopapi_executor(void (*kernels)(void *), void *argument)
{
    aclOpExecutor *executor = malloc(sizeof *executor);
    if (executor)
        *executor = (aclOpExecutor){kernels, argument};
    return executor;
}

static int32_t run(aclOpExecutor *executor)
{
    if (!executor)
        return 161001; /* ACLNN_ERR_PARAM_NULLPTR */
    executor->kernels(executor->argument);
    free(executor);
    return 0;
}

/* C++'s name of it: CommonOpExecutorRun(void *, unsigned long, aclOpExecutor *, void *) */
SIM_API int32_t common_run(void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream)
    __asm__("_Z19CommonOpExecutorRunPvmP13aclOpExecutorS_");
SIM_API int32_t NnopbaseRunWithWorkspace(void *executor, aclrtStream stream, void *workspace, uint64_t workspace_size);

int32_t common_run(void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream)
{
    (void)workspace, (void)workspace_size, (void)stream;
    return run(executor);
}

int32_t NnopbaseRunWithWorkspace(void *executor, aclrtStream stream, void *workspace, uint64_t workspace_size)
{
    (void)workspace, (void)workspace_size, (void)stream;
    return run(executor);
}
