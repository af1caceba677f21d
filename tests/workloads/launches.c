/* Kernels registered in all ways, launched through all calls, on two streams.
 *   launches [--rounds 10]
 * Every round: 6 calls of aclrtLaunchKernel*, 12 of rt*, 2 that fail. */
#include "common.h"
#include "runtime/rt.h"

static char elf[64] = "\177ELF";
static char stub_a, stub_b, stub_unknown;
static aclrtStream streams[2];
static void *old_binary, *all_binary;
static aclrtFuncHandle add, mul, from_data, by_rts, by_rt;

static void register_stubs(void)
{
    rtDevBinary_t binary = {.magic = RT_DEV_BINARY_MAGIC_ELF, .data = elf, .length = sizeof elf};
    CHECK(rtDevBinaryRegister(&binary, &old_binary));
    CHECK(rtFunctionRegister(old_binary, &stub_a, "triton_add_0", "triton_add", 0));
    CHECK(rtFunctionRegister(old_binary, &stub_b, "triton_softmax_1", "triton_softmax", 0));
    CHECK(rtRegisterAllKernel(&binary, &all_binary));
}

static void load_binaries(void)
{
    aclrtBinHandle file, data;
    CHECK(aclrtBinaryLoadFromFile("kernel_meta/add_mul_custom.o", NULL, &file));
    CHECK(aclrtBinaryGetFunction(file, "add_custom", &add));
    CHECK(aclrtBinaryGetFunction(file, "mul_custom", &mul));
    CHECK(aclrtBinaryLoadFromData(elf, sizeof elf, NULL, &data));
    CHECK(aclrtBinaryGetFunction(data, "MatMulV2_0d5e954ccbe46b3b4c4e5bd0c3a3a9f0_high_performance_0", &from_data));
    CHECK(rtsFuncGetByName(data, "rms_norm", &by_rts));
    CHECK(rtBinaryGetFunctionByName(data, "swiglu", &by_rt));
}

static void launch_acl(uint32_t blocks)
{
    void *args[3] = {NULL, NULL, NULL};
    CHECK(aclrtLaunchKernel(add, blocks, args, sizeof args, streams[0]));
    CHECK(aclrtLaunchKernel(mul, blocks, args, sizeof args, streams[1]));
    CHECK(aclrtLaunchKernel(from_data, blocks, args, sizeof args, NULL));
    CHECK(aclrtLaunchKernelV2(add, blocks, args, sizeof args, NULL, streams[1]));
    CHECK(aclrtLaunchKernelWithConfig(mul, blocks, streams[0], NULL, args, NULL));
    CHECK(aclrtLaunchKernelWithHostArgs(add, blocks, streams[0], NULL, args, sizeof args, NULL, 0));
}

static void launch_stubs(uint32_t blocks)
{
    void *args[3] = {NULL, NULL, NULL};
    rtArgsEx_t info = {.args = args, .argsSize = sizeof args};
    CHECK(rtKernelLaunch(&stub_a, blocks, args, sizeof args, NULL, streams[0]));
    CHECK(rtKernelLaunchWithFlag(&stub_b, blocks, &info, NULL, streams[1], 0));
    CHECK(rtKernelLaunchWithFlagV2(&stub_a, blocks, &info, NULL, streams[0], 0, NULL));
    CHECK(rtKernelLaunchWithHandle(all_binary, 7, blocks, &info, NULL, streams[1], NULL));
    CHECK(rtKernelLaunchWithHandleV2(all_binary, 8, blocks, &info, NULL, streams[0], NULL));
}

static void launch_functions(uint32_t blocks)
{
    void *args[3] = {NULL, NULL, NULL};
    rtArgsEx_t info = {.args = args, .argsSize = sizeof args};
    CHECK(rtLaunchKernelByFuncHandle(by_rts, blocks, args, streams[0]));
    CHECK(rtLaunchKernelByFuncHandleV2(by_rts, blocks, args, streams[1], NULL));
    CHECK(rtLaunchKernelByFuncHandleV3(by_rt, blocks, &info, streams[0], NULL));
    CHECK(rtsLaunchKernelWithConfig(by_rt, blocks, streams[1], NULL, args, NULL));
    CHECK(rtsLaunchKernelWithHostArgs(by_rts, blocks, streams[0], NULL, args, sizeof args, NULL, 0));
}

static void launch_aicpu(uint32_t blocks)
{
    void *args[3] = {NULL, NULL, NULL};
    rtAicpuArgsEx_t info = {.args = args, .argsSize = sizeof args};
    CHECK(rtAicpuKernelLaunchExWithArgs(2, "Cast", blocks, &info, NULL, streams[1], 0));
    CHECK(rtKernelLaunchFwk("RandomUniform", args, sizeof args, 0, streams[0]));
}

static void launch_unknown(uint32_t blocks)
{
    void *args[3] = {NULL, NULL, NULL};
    EXPECT(rtKernelLaunch(&stub_unknown, blocks, args, sizeof args, NULL, streams[0]), ACL_ERROR_RT_PARAM_INVALID);
    EXPECT(aclrtLaunchKernel(&stub_unknown, blocks, args, sizeof args, streams[0]), ACL_ERROR_RT_INVALID_HANDLE);
}

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 10);
    int32_t id;
    acl_begin(0);
    for (int i = 0; i < 2; i++) {
        CHECK(aclrtCreateStream(&streams[i]));
        CHECK(aclrtStreamGetId(streams[i], &id));
    }
    register_stubs();
    load_binaries();
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t blocks = 1 + (uint32_t)(i % 48);
        launch_acl(blocks);
        launch_stubs(blocks);
        launch_functions(blocks);
        launch_aicpu(blocks);
        launch_unknown(blocks);
    }
    for (int i = 0; i < 2; i++)
        CHECK(aclrtDestroyStream(streams[i]));
    acl_end(0);
    report("acl", rounds * 6, "rt", rounds * 12, "failed", rounds * 2, NULL);
    return 0;
}
