/* libatb.so, for one of the two C++ ABIs: the object that runs an operation, with its fields where the real ones are. */
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>
#include "atb/simatb.h"
#include "journal.h"

namespace atb {

struct RunnerVariantPack {
    uint64_t tensors[1723];
    uint8_t *workspace;
    uint64_t workspaceSize;
    uint8_t *intermediate;
    uint64_t intermediateSize;
    void *context;
};
static_assert(offsetof(RunnerVariantPack, workspace) == 13784, "as in the real one");
static_assert(offsetof(RunnerVariantPack, intermediateSize) == 13808, "as in the real one");

class SIM_API Runner {
public:
    explicit Runner(const std::string &name) : name_("Runner of " + name) { SetRunnerInfo(name, {}); }
    virtual ~Runner() = default;
    __attribute__((noinline)) int Execute(RunnerVariantPack &pack);
    __attribute__((noinline)) std::string GetOperationName() const;
    __attribute__((noinline)) void SetRunnerInfo(const std::string &name, const std::vector<int64_t> &ids);

    Runner *inner = nullptr;
    bool throws = false;

private:
    uint64_t state_[3] = {};
    std::string tensorDir_;
    void *first_ = nullptr;
    void *operation_ = nullptr;
    std::string logPrefix_;
    std::vector<int64_t> ids_;
    std::string name_;
    std::string operationName_;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
    static void layout()
    {
        static_assert(offsetof(Runner, tensorDir_) == 48, "as in the real one");
        static_assert(offsetof(Runner, operationName_) == (_GLIBCXX_USE_CXX11_ABI ? 184 : 112), "as in the real one");
    }
#pragma GCC diagnostic pop
};

std::string Runner::GetOperationName() const
{
    return operationName_;
}

void Runner::SetRunnerInfo(const std::string &name, const std::vector<int64_t> &ids)
{
    operationName_ = name;
    ids_ = ids;
}

static void note(uint16_t func, const RunnerVariantPack &pack, const std::string &name)
{
    const uint64_t args[4] = {U(pack.workspace), pack.workspaceSize, pack.intermediateSize, 0};
    if (JOURNALING)
        journal_add_text(func, 0, args, 0, name.c_str());
}

int Runner::Execute(RunnerVariantPack &pack)
{
    note(JF_atb_Execute, pack, operationName_);
    if (throws)
        throw std::runtime_error(operationName_);
    if (inner) {
        RunnerVariantPack nested = {};
        nested.workspace = pack.workspace;
        nested.workspaceSize = pack.workspaceSize / 2;
        int ret = inner->Execute(nested);
        if (ret)
            return ret;
    }
    note(JF_atb_Execute_end, pack, operationName_);
    return 0;
}

}

int simatb_run(const char *name, const char *inner, void *workspace, uint64_t workspace_size, uint64_t intermediate_size,
               int throws)
{
    atb::Runner outer_runner{name}, inner_runner{inner ? inner : ""};
    outer_runner.inner = inner ? &inner_runner : nullptr;
    inner_runner.throws = throws != 0;
    atb::RunnerVariantPack pack = {};
    memset(pack.tensors, 0xa5, sizeof pack.tensors);
    pack.workspace = static_cast<uint8_t *>(workspace);
    pack.workspaceSize = workspace_size;
    pack.intermediateSize = intermediate_size;
    try {
        return outer_runner.Execute(pack);
    } catch (const std::runtime_error &) {
        return 1;
    }
}
