/* A look-alike of what a tracer of PyTorch's operators relies on: names, calling conventions, layouts of tensors.
 * Offsets are those of libtorch 2.3 to 2.12. */
#ifndef TORCH_SIM_H
#define TORCH_SIM_H
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#define TORCH_EXPORT __attribute__((visibility("default")))

namespace c10 {

struct StorageImpl {
    void *vtable = nullptr;
    uint64_t references = 1;
    void *data = nullptr;
    void *deleter = nullptr;
    void *context = nullptr;
    int8_t device_type = 0;
    int8_t device_index = 0;
    int64_t size_bytes = 0;
    char rest[40] = {};
};
static_assert(offsetof(StorageImpl, data) == 16 && offsetof(StorageImpl, size_bytes) == 48);

/* Up to five dimensions are stored in place; more are behind a pointer, strides after sizes. */
struct SizesAndStrides {
    uint64_t dimensions = 0;
    union {
        int64_t *outside;
        int64_t in_place[10] = {};
    };
};

struct TensorImpl {
    void *vtable = nullptr;
    uint64_t references = 1;
    StorageImpl *storage = nullptr;
    void *autograd_meta = nullptr;
    void *extra_meta = nullptr;
    uint64_t version = 0;
    void *python[2] = {};
    SizesAndStrides sizes;
    int64_t storage_offset = 0;
    int64_t elements = 0;
    uint16_t data_type = 0;
    int8_t device_type = 0;
    int8_t device_index = 0;
    uint8_t has_device = 0;
    uint64_t key_set = 0;
};
static_assert(offsetof(TensorImpl, storage) == 16 && offsetof(TensorImpl, sizes) == 64);
static_assert(offsetof(TensorImpl, storage_offset) == 152 && offsetof(TensorImpl, elements) == 160);
static_assert(offsetof(TensorImpl, data_type) == 168 && offsetof(TensorImpl, device_type) == 170);
static_assert(offsetof(TensorImpl, key_set) == 176 && sizeof(TensorImpl) == 184);

template <typename T> struct ArrayRef {
    const T *data;
    size_t length;
};

struct Scalar {
    Scalar(double number) : number(number) {}
    ~Scalar() {}
    double number;
};

/* An element of a List. */
struct IValue {
    void *payload = nullptr;
    uint32_t tag = 0; /* 0 none, 1 tensor */
};

struct ListImpl {
    void *vtable = nullptr;
    uint64_t references = 1;
    std::vector<IValue> elements;
};

template <typename T> struct List {
    ListImpl *impl;
    ~List() {}
};

template <typename T> struct IListRef {
    union {
        const List<T> *boxed;
        ArrayRef<T> unboxed;
    };
    uint32_t tag; /* 1 boxed, 2 unboxed */
};

} // namespace c10

namespace at {

/* A reference to an implementation; not trivial, so it is returned where the caller wants it. Nothing is ever freed. */
struct Tensor {
    Tensor() {}
    explicit Tensor(c10::TensorImpl *impl) : impl(impl) {}
    Tensor(const Tensor &other) : impl(other.impl) {}
    Tensor &operator=(const Tensor &other)
    {
        impl = other.impl;
        return *this;
    }
    ~Tensor() {}
    c10::TensorImpl *impl = nullptr;
};

/* Makes a tensor; kind 0 is the CPU, 20 the NPU; type as in c10::ScalarType. */
TORCH_EXPORT Tensor make_tensor(std::vector<int64_t> sizes, uint16_t type, int8_t device_type, int8_t device_index);

namespace _ops {

struct TORCH_EXPORT empty_memory_format {
    static Tensor call(c10::ArrayRef<long> size, const Tensor &like);
};
struct TORCH_EXPORT add_Tensor {
    static Tensor call(const Tensor &self, const Tensor &other, const c10::Scalar &alpha);
};
/* Calls `empty` inside. */
struct TORCH_EXPORT relu {
    static Tensor call(const Tensor &self);
};
/* Throws if the inner sizes differ. */
struct TORCH_EXPORT mm {
    static Tensor call(const Tensor &self, const Tensor &mat2);
};
struct TORCH_EXPORT mul__Tensor {
    static Tensor &call(Tensor &self, const Tensor &other);
};
struct TORCH_EXPORT max_dim {
    static std::tuple<Tensor, Tensor> call(const Tensor &self, long dim, bool keepdim);
};
struct TORCH_EXPORT cat {
    static Tensor call(const c10::IListRef<Tensor> &tensors, long dim);
};
struct TORCH_EXPORT index_Tensor {
    static Tensor call(const Tensor &self, const c10::List<std::optional<Tensor>> &indices);
};
struct TORCH_EXPORT t {
    static Tensor call(const Tensor &self);
};
struct TORCH_EXPORT split_Tensor_copy {
    static std::vector<Tensor> call(const Tensor &self, long split_size);
};
struct TORCH_EXPORT _foreach_add__List {
    static void call(c10::ArrayRef<Tensor> self, c10::ArrayRef<Tensor> other, const c10::Scalar &alpha);
};
/* More arguments than registers. */
struct TORCH_EXPORT many_arguments {
    static Tensor call(const Tensor &self, double scale, c10::ArrayRef<long> sizes, c10::ArrayRef<long> strides,
                       const Tensor &other, const std::optional<Tensor> &bias, const std::optional<Tensor> &none);
};
struct TORCH_EXPORT frexp_Tensor_out {
    static std::tuple<Tensor &, Tensor &> call(const Tensor &self, Tensor &mantissa, Tensor &exponent);
};
/* Made up of others. */
struct TORCH_EXPORT linear {
    static Tensor call(const Tensor &input, const Tensor &weight, const std::optional<Tensor> &bias);
};

} // namespace _ops

namespace compositeimplicitautograd {
TORCH_EXPORT Tensor linear(const Tensor &input, const Tensor &weight, const std::optional<Tensor> &bias);
}

} // namespace at
#endif
