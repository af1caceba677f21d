/* libtorch_cpu.so, as far as a tracer of operators looks at it: see include/torch/torch_sim.h. */
#include "torch/torch_sim.h"

namespace at {

namespace {

/* What operators are registered with. Some texts are stored as the tails of others. */
const char *const volatile SCHEMAS[] = {
    "empty.memory_format(int[] size, Tensor like) -> Tensor",
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    "relu(Tensor self) -> Tensor",
    "mm(Tensor self, Tensor mat2) -> Tensor",
    "mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
    "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    "cat(Tensor[] tensors, int dim=0) -> Tensor",
    "_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
    "t(Tensor(a) self) -> Tensor(a)",
    "split.Tensor_copy(Tensor self, int split_size) -> Tensor[]",
    "_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()",
    "many_arguments(Tensor self, float scale, int[] sizes, int[] strides, Tensor other, Tensor? bias=None, "
    "Tensor? none=None) -> Tensor",
    "frexp.Tensor_out(Tensor self, *, Tensor(a!) mantissa, Tensor(b!) exponent) -> (Tensor(a!) mantissa, "
    "Tensor(b!) exponent)",
    "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
};

/* Stands for finding the kernel; every operator asks for it with its tensors' keys. */
__attribute__((noinline)) uint64_t dispatch(uint64_t keys)
{
    static uint64_t sum;
    asm volatile("" : "+r"(keys));
    return __atomic_add_fetch(&sum, keys + (SCHEMAS[0] != nullptr), __ATOMIC_RELAXED);
}

constexpr uint64_t BYTES_OF[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1};

/* Memory of tensors on a device is never touched: addresses are enough. */
uint64_t next_address = 0x120000000000;

std::vector<int64_t> sizes_of(const Tensor &tensor)
{
    const c10::SizesAndStrides &sizes = tensor.impl->sizes;
    const int64_t *from = sizes.dimensions > 5 ? sizes.outside : sizes.in_place;
    return {from, from + sizes.dimensions};
}

Tensor like(const Tensor &other)
{
    return make_tensor(sizes_of(other), other.impl->data_type, other.impl->device_type, other.impl->device_index);
}

} // namespace

Tensor make_tensor(std::vector<int64_t> sizes, uint16_t type, int8_t device_type, int8_t device_index)
{
    auto *impl = new c10::TensorImpl;
    impl->elements = 1;
    impl->sizes.dimensions = sizes.size();
    int64_t *to = impl->sizes.in_place;
    if (sizes.size() > 5)
        to = impl->sizes.outside = new int64_t[2 * sizes.size()]();
    for (size_t at = 0; at < sizes.size(); at++) {
        to[at] = sizes[at];
        impl->elements *= sizes[at];
    }
    impl->data_type = type;
    impl->device_type = device_type;
    impl->device_index = device_index;
    impl->has_device = 1;
    impl->key_set = 1;
    impl->storage = new c10::StorageImpl;
    impl->storage->size_bytes = impl->elements * BYTES_OF[type];
    impl->storage->data = reinterpret_cast<void *>(__atomic_fetch_add(&next_address, 1 << 20, __ATOMIC_RELAXED));
    return Tensor(impl);
}

namespace _ops {

Tensor empty_memory_format::call(c10::ArrayRef<long>, const Tensor &other)
{
    dispatch(other.impl->key_set);
    return like(other);
}

Tensor add_Tensor::call(const Tensor &self, const Tensor &other, const c10::Scalar &)
{
    dispatch(self.impl->key_set | other.impl->key_set);
    return like(self);
}

Tensor relu::call(const Tensor &self)
{
    dispatch(self.impl->key_set);
    Tensor made = empty_memory_format::call({nullptr, 0}, self);
    dispatch(made.impl->key_set);
    return made;
}

Tensor mm::call(const Tensor &self, const Tensor &mat2)
{
    dispatch(self.impl->key_set | mat2.impl->key_set);
    int64_t inner = sizes_of(self)[1];
    if (inner != sizes_of(mat2)[0])
        throw std::runtime_error("sizes do not fit");
    return make_tensor({sizes_of(self)[0], sizes_of(mat2)[1]}, self.impl->data_type, self.impl->device_type,
                       self.impl->device_index);
}

Tensor &mul__Tensor::call(Tensor &self, const Tensor &other)
{
    dispatch(self.impl->key_set | other.impl->key_set);
    return self;
}

std::tuple<Tensor, Tensor> max_dim::call(const Tensor &self, long dim, bool)
{
    dispatch(self.impl->key_set);
    std::vector<int64_t> sizes = sizes_of(self);
    sizes.erase(sizes.begin() + dim);
    const c10::TensorImpl &impl = *self.impl;
    Tensor values = make_tensor(sizes, impl.data_type, impl.device_type, impl.device_index);
    return {values, make_tensor(sizes, 4, impl.device_type, impl.device_index)};
}

Tensor cat::call(const c10::IListRef<Tensor> &tensors, long)
{
    const Tensor &first = tensors.unboxed.data[0];
    dispatch(first.impl->key_set);
    std::vector<int64_t> sizes = sizes_of(first);
    sizes[0] *= tensors.unboxed.length;
    return make_tensor(sizes, first.impl->data_type, first.impl->device_type, first.impl->device_index);
}

Tensor index_Tensor::call(const Tensor &self, const c10::List<std::optional<Tensor>> &)
{
    dispatch(self.impl->key_set);
    return like(self);
}

Tensor t::call(const Tensor &self)
{
    dispatch(self.impl->key_set);
    return like(self);
}

std::vector<Tensor> split_Tensor_copy::call(const Tensor &self, long split_size)
{
    dispatch(self.impl->key_set);
    std::vector<int64_t> sizes = sizes_of(self);
    std::vector<Tensor> parts;
    for (long parts_left = sizes[0] / split_size; parts_left > 0; parts_left--) {
        sizes[0] = split_size;
        parts.push_back(make_tensor(sizes, self.impl->data_type, self.impl->device_type, self.impl->device_index));
    }
    return parts;
}

void _foreach_add__List::call(c10::ArrayRef<Tensor> self, c10::ArrayRef<Tensor>, const c10::Scalar &)
{
    dispatch(self.data[0].impl->key_set);
    /* Real ones end themselves, not in what they call. */
    asm volatile("");
}

Tensor many_arguments::call(const Tensor &self, double, c10::ArrayRef<long>, c10::ArrayRef<long>, const Tensor &other,
                            const std::optional<Tensor> &, const std::optional<Tensor> &)
{
    dispatch(self.impl->key_set | other.impl->key_set);
    return like(other);
}

std::tuple<Tensor &, Tensor &> frexp_Tensor_out::call(const Tensor &self, Tensor &mantissa, Tensor &exponent)
{
    dispatch(self.impl->key_set | mantissa.impl->key_set);
    mantissa = like(self);
    return {mantissa, exponent};
}

Tensor linear::call(const Tensor &input, const Tensor &weight, const std::optional<Tensor> &bias)
{
    dispatch(input.impl->key_set);
    return compositeimplicitautograd::linear(input, weight, bias);
}

} // namespace _ops

Tensor compositeimplicitautograd::linear(const Tensor &input, const Tensor &weight, const std::optional<Tensor> &bias)
{
    Tensor product = _ops::mm::call(input, weight);
    return bias ? _ops::add_Tensor::call(product, *bias, 1.0) : product;
}

} // namespace at
