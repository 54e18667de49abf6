// Operations of a GPU: shapes are checked here, the work is a kernel's (kernels.hpp) or a product's.
#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/shape_checks.hpp"

#include <algorithm>

namespace sherd::cuda {

using shapes::expect;
using shapes::expect_attention;
using shapes::expect_bias;
using shapes::expect_product;
using shapes::expect_same;
using shapes::text;

void CudaBackend::cast(Stream& stream, Tensor to, Tensor from) {
    expect(to.elements() == from.elements(), "cast", text(to) + " from " + text(from));
    cuda::cast(enter(stream, "cast").get(), to, from);
}
void CudaBackend::add(Stream& stream, Tensor y, Tensor x, bool accumulate) {
    expect(y.elements() == x.elements(), "add", text(x) + " to " + text(y));
    cuda::add(enter(stream, "add").get(), y, x, accumulate);
}
void CudaBackend::sum(Stream& stream, double* out, const float* x, std::int64_t n) {
    CudaStream& s = enter(stream, "sum");
    cuda::sum(s.get(), out, x, n, static_cast<double*>(scratch_of(s, reduce_scratch * sizeof(double))));
}
void CudaBackend::sum_squares(Stream& stream, double* out, const float* x, std::int64_t n) {
    CudaStream& s = enter(stream, "sum_squares");
    cuda::sum_squares(s.get(), out, x, n, static_cast<double*>(scratch_of(s, reduce_scratch * sizeof(double))));
}

void CudaBackend::linear_forward(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor bias) {
    expect_product("linear_forward", y, x, w);
    expect_bias("linear_forward", y, bias);
    products_->forward(enter(stream, "linear_forward"), y, x, w, bias);
}
void CudaBackend::linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, bool accumulate) {
    expect_product("linear_backward_input", dy, dx, w);
    products_->backward_input(enter(stream, "linear_backward_input"), dx, dy, w, accumulate);
}
void CudaBackend::linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    expect_product("linear_backward_weight", dy, x, dw);
    if (dy.rows > 0) return products_->backward_weight(enter(stream, "linear_backward_weight"), dw, dy, x, accumulate);
    if (!accumulate) zero(stream, dw.data, dw.bytes());
}

void CudaBackend::bias_backward(Stream& stream, float* dbias, Tensor dy) {
    CudaStream& s = enter(stream, "bias_backward");
    const auto bytes = static_cast<std::uint64_t>(bias_scratch(dy.rows, dy.columns)) * sizeof(float);
    cuda::bias_backward(s.get(), dbias, dy, static_cast<float*>(scratch_of(s, bytes)));
}

void CudaBackend::embedding_forward(Stream& stream, Tensor y, Tensor table, const std::int32_t* ids) {
    expect(y.columns == table.columns && y.dtype == table.dtype, "embedding_forward", text(y) + " from " + text(table));
    cuda::embedding_forward(enter(stream, "embedding_forward").get(), y, table, ids);
}
void CudaBackend::embedding_backward(Stream& stream, Tensor dtable, Tensor dy, const std::int32_t* ids) {
    expect(dy.columns == dtable.columns && dtable.dtype == DType::f32, "embedding_backward", text(dtable) + " from " + text(dy));
    CudaStream& s = enter(stream, "embedding_backward");
    const auto bytes = static_cast<std::uint64_t>(embedding_scratch(dy.rows)) * sizeof(std::int32_t);
    cuda::embedding_backward(s.get(), dtable, dy, ids, static_cast<std::int32_t*>(scratch_of(s, bytes)));
}

void CudaBackend::rms_norm_forward(Stream& stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) {
    expect_same("rms_norm_forward", y, x);
    expect(w.elements() == x.columns && w.dtype == x.dtype, "rms_norm_forward", text(x) + " with weights " + text(w));
    if (delta.data != nullptr) {
        expect_same("rms_norm_forward", delta, x);
        expect_same("rms_norm_forward", sum, x);
    }
    cuda::rms_norm_forward(enter(stream, "rms_norm_forward").get(), y, rstd, sum, x, delta, w, epsilon);
}
void CudaBackend::rms_norm_again(Stream& stream, Tensor y, Tensor x, const float* rstd, Tensor w) {
    expect_same("rms_norm_again", y, x);
    cuda::rms_norm_again(enter(stream, "rms_norm_again").get(), y, x, rstd, w);
}
void CudaBackend::rms_norm_backward(Stream& stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch,
                                    bool accumulate) {
    expect_same("rms_norm_backward", dx, x);
    expect_same("rms_norm_backward", dy, x);
    cuda::rms_norm_backward(enter(stream, "rms_norm_backward").get(), dx, dw, dy, x, rstd, w, scratch, accumulate);
}
std::int64_t CudaBackend::rms_norm_scratch(std::int64_t rows, std::int64_t columns) const {
    use();
    return cuda::rms_norm_scratch(rows, columns);
}

void CudaBackend::rope(Stream& stream, Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions,
                       bool inverse) {
    expect(heads > 0 && x.columns % (2 * heads) == 0, "rope", fmt::format("{} with {} heads", text(x), heads));
    cuda::rope(enter(stream, "rope").get(), x, heads, cosine, sine, positions, inverse);
}

void CudaBackend::attention_forward(Stream& stream, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents,
                                    const AttentionShape& shape) {
    expect_attention("attention_forward", q, k, v, shape);
    expect_same("attention_forward", out, q);
    CudaStream& s = enter(stream, "attention_forward");
    if (attention_ && attention_->forward(s, out, lse, q, k, v, documents, shape)) return;
    cuda::attention_forward(s.get(), out, lse, q, k, v, documents, shape);
}
void CudaBackend::attention_backward(Stream& stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q,
                                     Tensor k, Tensor v, const Documents& documents, const AttentionShape& shape, Tensor scratch) {
    expect_attention("attention_backward", q, k, v, shape);
    for (const Tensor& like_q : {dq, dout, out}) expect_same("attention_backward", like_q, q);
    for (const Tensor& like_k : {dk, dv}) expect_same("attention_backward", like_k, k);
    expect(scratch.dtype == DType::f32 && scratch.elements() >= cuda::attention_scratch(q.rows, shape), "attention_backward",
           "scratch " + text(scratch) + " for " + text(q));
    CudaStream& s = enter(stream, "attention_backward");
    if (attention_ && attention_->backward(s, dq, dk, dv, dout, out, lse, q, k, v, documents, shape, scratch)) return;
    cuda::attention_backward(s.get(), dq, dk, dv, dout, out, lse, q, k, v, documents, shape, scratch.as<float>());
}
std::int64_t CudaBackend::attention_scratch(std::int64_t rows, std::int64_t longest, const AttentionShape& shape, DType compute) const {
    const std::int64_t own = own_attention_scratch(rows, shape);
    if (!attention_) return own;
    use();
    return std::max(own, attention_->scratch(rows, longest, shape, compute));
}
std::int64_t CudaBackend::own_attention_scratch(std::int64_t rows, const AttentionShape& shape) const {
    return cuda::attention_scratch(rows, shape);
}

void CudaBackend::swiglu_forward(Stream& stream, Tensor out, Tensor gate, Tensor up) {
    expect_same("swiglu_forward", out, gate);
    expect_same("swiglu_forward", up, gate);
    cuda::swiglu_forward(enter(stream, "swiglu_forward").get(), out, gate, up);
}
void CudaBackend::swiglu_backward(Stream& stream, Tensor gate, Tensor up, Tensor dout) {
    expect_same("swiglu_backward", up, gate);
    expect_same("swiglu_backward", dout, gate);
    cuda::swiglu_backward(enter(stream, "swiglu_backward").get(), gate, up, dout);
}

void CudaBackend::cross_entropy(Stream& stream, float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale) {
    expect(logits.dtype == DType::f32, "cross_entropy", "logits " + text(logits) + ", fp32 expected");
    if (gradient.data != nullptr) {
        const bool fits = gradient.rows == logits.rows && gradient.columns == logits.columns;
        expect(fits, "cross_entropy", text(gradient) + " against " + text(logits));
    }
    cuda::cross_entropy(enter(stream, "cross_entropy").get(), loss, gradient, logits, targets, scale);
}

void CudaBackend::adamw(Stream& stream, const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
                        Tensor weights, std::int64_t n) {
    expect(weights.data == nullptr || weights.elements() == n, "adamw", fmt::format("{} elements, weights {}", n, text(weights)));
    cuda::adamw(enter(stream, "adamw").get(), step, master, exp_avg, exp_avg_sq, gradient, weights, n);
}

}  // namespace sherd::cuda
