#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include "sherd/runtime/error.hpp"

#include <dnnl.hpp>

#include <compare>
#include <cstring>
#include <map>
#include <omp.h>
#include <unordered_map>

namespace sherd::cpu {

namespace {

using dnnl::memory;

/// A matrix of a product: its memory, and how rows and columns of the product walk through it.
struct Operand {
    void* data;
    DType dtype;
    std::int64_t rows, columns, row_stride, column_stride;
};

Operand plain(const Tensor& t) {
    return {t.data, t.dtype, t.rows, t.columns, t.columns, 1};
}
Operand transposed(const Tensor& t) {
    return {t.data, t.dtype, t.columns, t.rows, 1, t.columns};
}

constexpr Operand no_bias{nullptr, DType::f32, 0, 0, 0, 0};

memory::desc description(const Operand& m) {
    const auto type = m.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    return {memory::dims{m.rows, m.columns}, type, memory::dims{m.row_stride, m.column_stride}};
}

/// What a compiled product depends on.
struct Key {
    std::int64_t m, n, k;
    DType to, left, right;
    bool left_transposed, right_transposed, accumulate, biased;
    int threads;
    auto operator<=>(const Key&) const = default;
};

/// Compiled products of one thread, and their scratch: compiling takes half a millisecond, finding one again 2 us.
class Products {
  public:
    /// to = left right, or += with accumulate; plus the bias, one row, where it has data.
    void multiply(const Operand& to, const Operand& left, const Operand& right, const Operand& bias, bool accumulate) {
        try {
            const Compiled& compiled = find(to, left, right, bias, accumulate);
            void* const scratch = scratch_.bytes(compiled.scratchpad.get_size());
            std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, memory(compiled.left, engine_, left.data)},
                                                      {DNNL_ARG_WEIGHTS, memory(compiled.right, engine_, right.data)},
                                                      {DNNL_ARG_DST, memory(compiled.to, engine_, to.data)},
                                                      {DNNL_ARG_SCRATCHPAD, memory(compiled.scratchpad, engine_, scratch)}};
            if (bias.data != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory(compiled.bias, engine_, bias.data));
            compiled.primitive.execute(stream_, arguments);
            stream_.wait();
        } catch (const dnnl::error& error) {
            throw DeviceError("oneDNN cannot multiply [{}, {}] {} by [{}, {}] {} into {}: {} (status {})", left.rows, left.columns,
                              name_of(left.dtype), right.rows, right.columns, name_of(right.dtype), name_of(to.dtype), error.what(),
                              static_cast<int>(error.status));
        }
    }

    Scratch& converted(int operand) { return converted_[operand]; }

  private:
    struct Compiled {
        dnnl::matmul primitive;
        memory::desc to, left, right, bias, scratchpad;
    };

    const Compiled& find(const Operand& to, const Operand& left, const Operand& right, const Operand& bias, bool accumulate) {
        const bool biased = bias.data != nullptr;
        const Key key{to.rows,    to.columns,  left.columns,         to.dtype,
                      left.dtype, right.dtype, left.row_stride == 1, right.row_stride == 1,
                      accumulate, biased,      omp_get_max_threads()};
        if (const auto found = compiled_.find(key); found != compiled_.end()) return found->second;
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        if (accumulate) {
            dnnl::post_ops sum;
            sum.append_sum(1.0f);
            attributes.set_post_ops(sum);
        }
        const auto to_desc = description(to), left_desc = description(left), right_desc = description(right);
        const auto bias_desc = biased ? description(bias) : memory::desc();
        const dnnl::matmul::primitive_desc made({left_desc, right_desc, bias_desc, to_desc}, attributes, engine_);
        return compiled_.emplace(key, Compiled{dnnl::matmul(made), to_desc, left_desc, right_desc, bias_desc, made.scratchpad_desc()})
            .first->second;
    }

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    std::map<Key, Compiled> compiled_;
    Scratch scratch_;
    Scratch converted_[4];
};

Products& products_of_this_thread() {
    thread_local Products products;
    return products;
}

/// The operand in fp32, in scratch memory number `index` where it was bf16.
Operand widened(Products& products, const Operand& operand, int index, bool with_values) {
    if (operand.dtype == DType::f32) return operand;
    const std::int64_t elements = operand.rows * operand.columns;
    Operand wide = operand;
    wide.data = products.converted(index).floats(elements);
    wide.dtype = DType::f32;
    if (with_values) cast({wide.data, DType::f32, 1, elements}, {operand.data, operand.dtype, 1, elements});
    return wide;
}

void multiply(const Operand& to, const Operand& left, const Operand& right, const Operand& bias, bool accumulate, Bf16Products how) {
    if (to.rows == 0 || to.columns == 0) return;
    Products& products = products_of_this_thread();
    if (how == Bf16Products::native) return products.multiply(to, left, right, bias, accumulate);
    const Operand wide = widened(products, to, 0, accumulate);
    products.multiply(wide, widened(products, left, 1, true), widened(products, right, 2, true), widened(products, bias, 3, true),
                      accumulate);
    const std::int64_t elements = to.rows * to.columns;
    if (wide.data != to.data) cast({to.data, to.dtype, 1, elements}, {wide.data, DType::f32, 1, elements});
}

}  // namespace

void linear_forward(Tensor y, Tensor x, Tensor w, Tensor bias, Bf16Products products) {
    multiply(plain(y), plain(x), transposed(w), bias.data == nullptr ? no_bias : plain(bias), false, products);
}

void linear_backward_input(Tensor dx, Tensor dy, Tensor w, bool accumulate, Bf16Products products) {
    multiply(plain(dx), plain(dy), plain(w), no_bias, accumulate, products);
}

void linear_backward_weight(Tensor dw, Tensor dy, Tensor x, bool accumulate, Bf16Products products) {
    if (dy.rows > 0) return multiply(plain(dw), transposed(dy), plain(x), no_bias, accumulate, products);
    if (!accumulate) std::memset(dw.data, 0, dw.bytes());
}

}  // namespace sherd::cpu
