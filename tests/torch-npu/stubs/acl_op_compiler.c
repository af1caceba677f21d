/* libacl_op_compiler.so: compile options, and the older way to call operators, which launches a kernel and computes
 * nothing. */
#include "operator.h"
#include <string.h>

static int64_t options[64];

int aclrtGetSysParamOpt(int option, int64_t *value)
{
    *value = options[option & 63];
    return 0;
}

int aclrtSetSysParamOpt(int option, int64_t value)
{
    options[option & 63] = value;
    return 0;
}

int aclrtCtxGetSysParamOpt(int option, int64_t *value)
{
    return aclrtGetSysParamOpt(option, value);
}

int aclrtCtxSetSysParamOpt(int option, int64_t value)
{
    return aclrtSetSysParamOpt(option, value);
}

int aclSetCompileopt(int option, const char *value)
{
    return 0;
}

/* The one option that torch_npu reads back is the JIT's switch: off, as on a 910B, which means aclnn operators. */
static const char JIT[] = "disable";

size_t aclGetCompileoptSize(int option)
{
    return sizeof JIT;
}

int aclGetCompileopt(int option, char *value, size_t room)
{
    if (room < sizeof JIT)
        return 100000;
    memcpy(value, JIT, sizeof JIT);
    return 0;
}

void *aclCreateGraphDumpOpt(void)
{
    return options;
}

void *aclopCreateAttr(void)
{
    return options;
}

int aclopCompileAndExecute(const char *op, int inputs, void *input_types, void *input, int outputs, void *output_types,
                           void *output, void *attributes, int engine, int compile, const char *path, void *stream)
{
    return stub_launch(op, stream);
}

int aclopCompileAndExecuteV2(const char *op, int inputs, void *input_types, void *input, int outputs,
                             void *output_types, void *output, void *attributes, int engine, int compile,
                             const char *path, void *stream)
{
    return stub_launch(op, stream);
}
