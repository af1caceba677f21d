/* libatb.so, for one of the two C++ ABIs: operations and the objects that run them, with fields where the real ones are. */
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>
#include "atb/simatb.h"
#include "journal.h"

namespace atb {

struct Dims {
    int64_t dims[8];
    uint64_t dimNum;
};

struct Tensor {
    int32_t dtype;
    int32_t format;
    Dims shape;
    void *deviceData;
    void *hostData;
    uint64_t dataSize;
};
static_assert(sizeof(Tensor) == 104, "as in the real one");

/* Up to 64 elements lie inside, more behind a pointer. */
template <class T> struct SVector {
    static constexpr size_t INSIDE = 64;
    size_t capacity = INSIDE;
    size_t size = 0;
    T storage[INSIDE + 1];
    T *heap = nullptr;

    SVector() { memset(static_cast<void *>(storage), 0xa5, sizeof storage); }
    SVector(const SVector &other) : SVector() { *this = other; }
    ~SVector() { free(heap); }
    SVector &operator=(const SVector &other)
    {
        for (size = 0; size < other.size;)
            push_back(other.heap ? other.heap[size] : other.storage[size]);
        return *this;
    }
    void push_back(const T &value)
    {
        if (size == INSIDE && !heap) {
            heap = static_cast<T *>(malloc(256 * sizeof(T)));
            memcpy(static_cast<void *>(heap), storage, INSIDE * sizeof(T));
        }
        (heap ? heap : storage)[size++] = value;
    }
};

struct VariantPack {
    SVector<Tensor> inTensors, outTensors;
};
static_assert(offsetof(VariantPack, outTensors) == 6784, "as in the real one");

struct RunnerVariantPack {
    SVector<Tensor> inTensors, outTensors;
    SVector<bool> canFree, needMalloc;
    uint8_t *hostTiling = nullptr, *tiling = nullptr;
    uint64_t tilingSize = 0;
    uint8_t *workspace = nullptr;
    uint64_t workspaceSize = 0;
    uint8_t *intermediate = nullptr;
    uint64_t intermediateSize = 0;
    void *context = nullptr;
};
static_assert(offsetof(RunnerVariantPack, outTensors) == 6784, "as in the real one");
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
    const simatb_request *launches = nullptr;

private:
    uint64_t state_[2] = {};
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

/* What a tensor may be of, as number and as name. */
struct Kind {
    int32_t dtype, format;
    const char *dtypeName, *formatName;
    uint64_t elementSize;
};
static const Kind KINDS[] = {
    {1, 2, "ACL_FLOAT16", "ACL_FORMAT_ND", 2},         {27, 29, "ACL_BF16", "ACL_FORMAT_FRACTAL_NZ", 2},
    {3, -1, "ACL_INT32", "ACL_FORMAT_UNDEFINED", 4},   {0, 0, "ACL_FLOAT", "ACL_FORMAT_NCHW", 4},
    {12, 35, "ACL_BOOL", "ACL_FORMAT_NC", 1},          {5, 99, "N/A", "N/A", 1}, /* numbers without a name */
};
static const size_t KIND_COUNT = sizeof KINDS / sizeof *KINDS;

/* Tensor `number`, at `data`; each seventh is in host memory. */
static Tensor tensor(size_t number, uint8_t *data)
{
    const Kind &kind = KINDS[number % KIND_COUNT];
    Tensor made;
    memset(&made, 0xa5, sizeof made);
    made.dtype = kind.dtype;
    made.format = kind.format;
    made.shape.dimNum = number % 9;
    made.dataSize = kind.elementSize;
    for (uint64_t i = 0; i < made.shape.dimNum; i++) {
        made.shape.dims[i] = static_cast<int64_t>(i == 0 ? number + 1 : i % 3 + 1);
        made.dataSize *= static_cast<uint64_t>(made.shape.dims[i]);
    }
    bool host = number % 7 == 6;
    made.deviceData = host ? nullptr : data;
    made.hostData = host ? data : nullptr;
    return made;
}

/* One record for each tensor: its text is what it is used for, type, format and sizes. */
static void note(const SVector<Tensor> &tensors, const char *use)
{
    for (size_t i = 0; i < tensors.size; i++) {
        const Tensor &one = tensors.heap ? tensors.heap[i] : tensors.storage[i];
        std::string text = use;
        for (const Kind &kind : KINDS)
            if (kind.dtype == one.dtype)
                text += std::string(" ") + kind.dtypeName + " " + kind.formatName + " [";
        for (uint64_t at = 0; at < one.shape.dimNum; at++)
            text += std::to_string(one.shape.dims[at]) + ",";
        const uint64_t args[4] = {U(one.deviceData), one.dataSize, 0, 0};
        journal_add_text(JF_atb_tensor, 0, args, 0, (text + "]").c_str());
    }
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
    if (JOURNALING) {
        note(pack.inTensors, "UNKNOWN");
        note(pack.outTensors, "WRITE");
    }
    if (throws)
        throw std::runtime_error(operationName_);
    if (launches && launches->kernels)
        launches->kernels(launches->argument);
    if (inner) {
        RunnerVariantPack nested = {};
        nested.workspace = pack.workspace;
        nested.workspaceSize = pack.workspaceSize / 2;
        /* What operations hand on to each other lies behind the workspace. */
        nested.inTensors.push_back(tensor(0, pack.intermediate));
        nested.inTensors.push_back(tensor(1, pack.intermediate + 64));
        nested.outTensors.push_back(tensor(2, pack.intermediate + pack.intermediateSize));
        int ret = inner->Execute(nested);
        if (ret)
            return ret;
    }
    note(JF_atb_Execute_end, pack, operationName_);
    return 0;
}

struct Context {};

static void note(uint16_t func, const uint8_t *workspace, uint64_t size)
{
    const uint64_t args[4] = {U(workspace), size, 0, 0};
    if (JOURNALING)
        journal_add(func, 0, args, 0);
}

class SIM_API OperationBase {
public:
    OperationBase(Runner &runner, const simatb_request &request) : runner_(runner), request_(request) {}
    virtual ~OperationBase() = default;
    __attribute__((noinline)) int Execute(const VariantPack &pack, uint8_t *workspace, uint64_t workspaceSize,
                                          Context *context);

private:
    Runner &runner_;
    const simatb_request &request_;
};

int OperationBase::Execute(const VariantPack &pack, uint8_t *workspace, uint64_t workspaceSize, Context *context)
{
    note(JF_atb_Operation, workspace, workspaceSize);
    RunnerVariantPack inside;
    inside.inTensors = pack.inTensors;
    inside.outTensors = pack.outTensors;
    inside.workspace = workspace;
    inside.workspaceSize = workspaceSize - request_.intermediate_size;
    inside.intermediate = workspace + inside.workspaceSize;
    inside.intermediateSize = request_.intermediate_size;
    inside.context = context;
    int ret = 1;
    try {
        ret = runner_.Execute(inside);
    } catch (const std::runtime_error &) {
        if (request_.escapes)
            throw;
    }
    note(JF_atb_Operation_end, workspace, workspaceSize);
    return ret;
}

}

int simatb_run(const struct simatb_request *request)
{
    atb::Runner outer_runner{request->name}, inner_runner{request->inner ? request->inner : ""};
    outer_runner.inner = request->inner ? &inner_runner : nullptr;
    inner_runner.throws = request->throws;
    outer_runner.launches = request;
    atb::VariantPack pack;
    uint8_t *data = static_cast<uint8_t *>(request->data);
    for (uint32_t i = 0; i < request->inputs; i++)
        pack.inTensors.push_back(atb::tensor(i, data + 4096 * i));
    for (uint32_t i = 0; i < request->outputs; i++) {
        atb::Tensor made = atb::tensor(i + 1, data + 4096 * (request->inputs + i));
        if (request->output_size) {
            made.shape.dims[0] *= static_cast<int64_t>(request->output_size / made.dataSize);
            made.dataSize = request->output_size;
        }
        pack.outTensors.push_back(made);
    }
    atb::Context context;
    try {
        return atb::OperationBase(outer_runner, *request)
            .Execute(pack, static_cast<uint8_t *>(request->workspace),
                     request->workspace_size + request->intermediate_size, &context);
    } catch (const std::runtime_error &) {
        return 1;
    }
}
