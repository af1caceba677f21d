/* Entry points of the simulated operators of CANN's library for C programs. */
#ifndef SIMOPAPI_H
#define SIMOPAPI_H
#include <stdint.h>
#include "acl/acl_rt.h"
#include "sim_export.h"

typedef struct aclOpExecutor aclOpExecutor;
/* The second phase of an operator. */
typedef int32_t simopapi_phase_two(void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream);

/* Stands for the first phases: the executor of an operator that launches these, for one call. */
typedef aclOpExecutor *simopapi_executor_func(void (*kernels)(void *), void *argument);
SIM_API simopapi_executor_func simopapi_executor;
#endif
