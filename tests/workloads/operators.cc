/* Calls operators of the look-alike of libtorch, and prints what a tracer of operators has to report: one line for
 * each use of a tensor and each operator. Options: none. */
#include "torch/torch_sim.h"
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

using at::Tensor;
using namespace at::_ops;

namespace {

const char *const TYPES[] = {"torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64",
                             "torch.float16", "torch.float32", "torch.float64"};
constexpr int BYTES_OF[] = {1, 1, 2, 4, 8, 2, 4, 8};

/* "START name", "END name", or "READ name device address bytes type [sizes]". */
struct Operator {
    std::string name;
    explicit Operator(const char *name, std::initializer_list<Tensor> reads) : name(name)
    {
        print("START", "");
        for (const Tensor &tensor : reads)
            use("READ", tensor);
    }
    void wrote(const Tensor &tensor) const { use("WRITE", tensor); }
    void ended() const { print("END", ""); }
    void print(const char *kind, const std::string &rest) const
    {
        std::printf("%ld %s torch._ops.aten.%s%s\n", syscall(SYS_gettid), kind, name.c_str(), rest.c_str());
    }
    void use(const char *kind, const Tensor &tensor) const
    {
        const c10::TensorImpl &impl = *tensor.impl;
        const int64_t *sizes = impl.sizes.dimensions > 5 ? impl.sizes.outside : impl.sizes.in_place;
        std::string list;
        for (uint64_t at = 0; at < impl.sizes.dimensions; at++)
            list += (at ? ", " : "") + std::to_string(sizes[at]);
        int bytes = BYTES_OF[impl.data_type];
        char text[300];
        std::snprintf(text, sizeof text, " %s 0x%016lx %ld %s [%s]",
                      impl.device_type ? std::to_string(impl.device_index).c_str() : "cpu",
                      reinterpret_cast<uint64_t>(impl.storage->data) + impl.storage_offset * bytes,
                      impl.elements * bytes, TYPES[impl.data_type], list.c_str());
        print(kind, text);
    }
};

void work(int8_t device_type, int8_t device)
{
    auto make = [=](std::vector<int64_t> sizes, uint16_t type) {
        return at::make_tensor(std::move(sizes), type, device_type, device);
    };
    Tensor a = make({4, 6}, 6), b = make({4, 6}, 6), scalar = at::make_tensor({}, 7, 0, -1);
    {
        Operator op("add.Tensor", {a, scalar});
        op.wrote(add_Tensor::call(a, scalar, 1.0));
        op.ended();
    }
    {
        /* The operator inside is not reported. */
        Tensor long_one = make({1, 2, 3, 1, 2, 3, 2, 1}, 5);
        Operator op("relu.default", {long_one});
        op.wrote(relu::call(long_one));
        op.ended();
    }
    try {
        Operator op("mm.default", {a, b});
        mm::call(a, b);
        std::abort();
    } catch (const std::runtime_error &) {
    }
    {
        /* A view with an offset. */
        Tensor part = make({2, 3}, 3);
        part.impl->storage_offset = 5;
        Operator op("mul_.Tensor", {part});
        mul__Tensor::call(b, part);
        op.wrote(b);
        op.ended();
    }
    {
        Operator op("max.dim", {a});
        auto [values, indices] = max_dim::call(a, 1, false);
        op.wrote(values);
        op.wrote(indices);
        op.ended();
    }
    {
        Tensor parts[3] = {a, make({4, 6}, 6), b};
        Operator op("cat.default", {parts[0], parts[1], parts[2]});
        c10::IListRef<Tensor> list{{}, 2};
        list.unboxed = {parts, 3};
        op.wrote(cat::call(list, 0));
        op.ended();
    }
    {
        Tensor index = make({2}, 4), undefined(new c10::TensorImpl);
        c10::ListImpl list;
        list.elements = {{undefined.impl, 1}, {nullptr, 0}, {index.impl, 1}};
        Operator op("index.Tensor", {a, index});
        op.wrote(index_Tensor::call(a, {&list}));
        op.ended();
    }
    {
        Operator op("t.default", {});
        t::call(a);
        op.ended();
    }
    {
        Operator op("split.Tensor_copy", {a});
        for (const Tensor &part : split_Tensor_copy::call(a, 2))
            op.wrote(part);
        op.ended();
    }
    {
        /* A changed tensor that is not returned is reported at the beginning. */
        Tensor self[2] = {a, b}, other[2] = {make({4, 6}, 6), make({1}, 0)};
        Operator op("_foreach_add_.List", {});
        op.wrote(self[0]);
        op.wrote(self[1]);
        op.use("READ", other[0]);
        op.use("READ", other[1]);
        _foreach_add__List::call({self, 2}, {other, 2}, 1.0);
        op.ended();
    }
    {
        Tensor bias = make({7}, 2);
        Operator op("many_arguments.default", {a, b, bias});
        op.wrote(many_arguments::call(a, 0.5, {nullptr, 0}, {nullptr, 0}, b, bias, std::nullopt));
        op.ended();
    }
    {
        /* The first result is made by the operator. */
        Tensor mantissa = make({0}, 6), exponent = make({4, 6}, 3);
        Operator op("frexp.Tensor_out", {a});
        frexp_Tensor_out::call(a, mantissa, exponent);
        op.wrote(mantissa);
        op.wrote(exponent);
        op.ended();
    }
    {
        /* `linear` itself is not reported, what it calls is. */
        Tensor weight = make({6, 2}, 6), bias = make({2}, 6);
        Operator mm("mm.default", {a, weight});
        Tensor sum = linear::call(a, weight, bias);
        /* The product in between is only known to the library: the one made before the sum. */
        Tensor product(new c10::TensorImpl(*sum.impl));
        product.impl->storage = new c10::StorageImpl(*sum.impl->storage);
        product.impl->storage->data = static_cast<char *>(sum.impl->storage->data) - (1 << 20);
        mm.wrote(product);
        mm.ended();
        Operator add("add.Tensor", {product, bias});
        add.wrote(sum);
        add.ended();
    }
}

} // namespace

int main()
{
    work(0, -1);
    work(20, 1);
    std::fflush(stdout);
    std::thread other(work, 20, 0);
    other.join();
    std::printf("{\"pid\":%d}\n", getpid());
    return 0;
}
