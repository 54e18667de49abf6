// One micro-batch through the decoder. Forward: x += attention(norm(x)); x += mlp(norm(x)); each addition is fused into the norm that
// follows it. Backward: the same in reverse; norms and SwiGLU products are computed again from what is saved, which halves what a block
// keeps.
#include "sherd/model/decoder.hpp"

#include "model/decoder_internal.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cmath>

namespace sherd {

template <class Head>
void Decoder::forward(const DeviceBatch& batch, Head head_work) {
    if (batch.rows > limits_.rows || batch.documents.longest > limits_.positions)
        throw UsageError("a micro-batch of {} rows (longest document {}) exceeds the decoder's {} rows and {} positions", batch.rows,
                         batch.documents.longest, limits_.rows, limits_.positions);
    const int last = static_cast<int>(config_.layers) - 1;
    store_.gather(0);
    store_.get(0);
    store_.gather(block_unit(0));
    if (batch.rows > 0)
        backend_.embedding_forward(stream_, view(buffers_.layers[0].input, batch.rows, config_.hidden), store_.weight(0, 0), batch.ids);
    store_.release(0);
    for (int i = 0; i <= last; ++i) {
        store_.get(block_unit(i));
        store_.gather(i < last ? block_unit(i + 1) : head_unit());
        if (batch.rows > 0) block_forward(i, batch);
        store_.release(block_unit(i));
    }
    store_.get(head_unit());
    if (batch.rows > 0) {
        head_norm(batch);
        head_work();
    }
}

void Decoder::block_forward(int index, const DeviceBatch& batch) {
    const auto& c = config_;
    const Layer& l = buffers_.layers[static_cast<std::size_t>(index)];
    const std::int64_t n = batch.rows;
    const int unit = block_unit(index);
    const auto w = [&](int parameter) { return store_.weight(unit, parameter); };
    const auto epsilon = static_cast<float>(c.norm_epsilon);
    const Tensor input = view(l.input, n, c.hidden), middle = view(l.middle, n, c.hidden), normed = view(buffers_.normed, n, c.hidden);
    const Tensor delta = view(buffers_.delta, n, c.hidden), q = view(l.query, n, c.query_width()), k = view(l.key, n, c.kv_width());
    const Tensor v = view(l.value, n, c.kv_width()), attention = view(l.attention, n, c.query_width());
    const Tensor raw_q = c.head_norm ? view(l.raw_query, n, c.query_width()) : q,
                 raw_k = c.head_norm ? view(l.raw_key, n, c.kv_width()) : k;
    const Tensor gated = view(l.gate, n, c.intermediate), upped = view(l.up, n, c.intermediate),
                 act = view(buffers_.wide, n, c.intermediate);

    if (index == 0) {
        backend_.rms_norm_forward(stream_, normed, l.rstd1, input, input, {}, w(at_.norm1), epsilon);
    } else {
        const Tensor before = view(buffers_.layers[static_cast<std::size_t>(index) - 1].middle, n, c.hidden);
        backend_.rms_norm_forward(stream_, normed, l.rstd1, input, before, delta, w(at_.norm1), epsilon);
    }
    linear(unit, raw_q, normed, at_.query, at_.query_bias);
    linear(unit, raw_k, normed, at_.key, at_.key_bias);
    linear(unit, v, normed, at_.value, at_.value_bias);
    rotate(unit, raw_q, q, c.heads, at_.query_norm, l.query_rstd, batch);
    rotate(unit, raw_k, k, c.kv_heads, at_.key_norm, l.key_rstd, batch);
    backend_.attention_forward(stream_, attention, l.lse, q, k, v, batch.documents, shape_of(config_, index));
    linear(unit, delta, attention, at_.output, at_.output_bias);

    backend_.rms_norm_forward(stream_, normed, l.rstd2, middle, input, delta, w(at_.norm2), epsilon);
    linear(unit, gated, normed, at_.gate, at_.gate_bias);
    linear(unit, upped, normed, at_.up, at_.up_bias);
    backend_.swiglu_forward(stream_, act, gated, upped);
    linear(unit, delta, act, at_.down, at_.down_bias);
}

void Decoder::linear(int unit, Tensor y, Tensor x, int weight, int bias) {
    backend_.linear_forward(stream_, y, x, store_.weight(unit, weight), bias >= 0 ? store_.weight(unit, bias) : Tensor{});
}

void Decoder::linear_gradient(int unit, Tensor dy, Tensor x, int weight, int bias) {
    const GradientTarget target = store_.gradient_target(unit, weight);
    backend_.linear_backward_weight(stream_, target.tensor, dy, x, target.accumulate);
    if (bias >= 0) backend_.bias_backward(stream_, store_.gradient(unit, bias).as<float>(), dy);
}

namespace {
/// The same memory with one row per head.
Tensor by_heads(Tensor x, std::int64_t heads) {
    return {x.data, x.dtype, x.rows * heads, x.columns / heads};
}
}  // namespace

void Decoder::rotate(int unit, Tensor raw, Tensor x, std::int64_t heads, int norm, float* rstd, const DeviceBatch& batch) {
    if (norm >= 0)
        backend_.rms_norm_forward(stream_, by_heads(x, heads), rstd, by_heads(raw, heads), by_heads(raw, heads), {},
                                  store_.weight(unit, norm), static_cast<float>(config_.norm_epsilon));
    backend_.rope(stream_, x, heads, buffers_.cosine, buffers_.sine, batch.positions, false);
}

Tensor Decoder::rotate_backward(int unit, Tensor dx, Tensor d_raw, Tensor raw, std::int64_t heads, int norm, const float* rstd,
                                const DeviceBatch& batch) {
    backend_.rope(stream_, dx, heads, buffers_.cosine, buffers_.sine, batch.positions, true);
    if (norm < 0) return dx;
    backend_.rms_norm_backward(stream_, by_heads(d_raw, heads), store_.gradient(unit, norm).as<float>(), by_heads(dx, heads),
                               by_heads(raw, heads), rstd, store_.weight(unit, norm), buffers_.scratch, false);
    return d_raw;
}

AttentionShape Decoder::shape_of(const ModelConfig& config, int layer) {
    return {config.heads, config.kv_heads, config.head_dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
            config.windows[static_cast<std::size_t>(layer)]};
}

void Decoder::head_norm(const DeviceBatch& batch) {
    const Tensor before = view(buffers_.layers.back().middle, batch.rows, config_.hidden);
    backend_.rms_norm_forward(stream_, view(buffers_.normed, batch.rows, config_.hidden), buffers_.final_rstd,
                              view(buffers_.final_sum, batch.rows, config_.hidden), before,
                              view(buffers_.delta, batch.rows, config_.hidden), store_.weight(head_unit(), norm_index()),
                              static_cast<float>(config_.norm_epsilon));
}

void Decoder::head_loss(const DeviceBatch& batch, float scale, double* loss_sum, bool with_gradient) {
    const Tensor matrix = store_.weight(head_unit(), matrix_index());
    const Tensor normed = view(buffers_.normed, batch.rows, config_.hidden), d_normed = view(buffers_.d_normed, batch.rows, config_.hidden);
    const std::int64_t chunk = logits_chunk_rows(config_.vocabulary, backend_);
    for (std::int64_t first = 0; first < batch.rows; first += chunk) {
        const std::int64_t count = std::min(chunk, batch.rows - first);
        const Tensor logits{buffers_.logits, DType::f32, count, config_.vocabulary};
        const Tensor gradient = with_gradient ? view(buffers_.logits_gradient, count, config_.vocabulary) : Tensor{};
        const Tensor x = normed.slice(first, count);
        backend_.linear_forward(stream_, logits, x, matrix, {});
        backend_.cross_entropy(stream_, buffers_.losses + first, gradient, logits, batch.targets + first, scale);
        if (!with_gradient) continue;
        backend_.linear_backward_input(stream_, d_normed.slice(first, count), gradient, matrix, false);
        const GradientTarget target = store_.gradient_target(head_unit(), matrix_index());
        backend_.linear_backward_weight(stream_, target.tensor, gradient, x, target.accumulate);
    }
    backend_.sum(stream_, loss_sum, buffers_.losses, batch.rows);
    if (!with_gradient) return;
    const Tensor residual = view(buffers_.residual_gradient, batch.rows, config_.hidden);
    backend_.rms_norm_backward(stream_, residual, store_.gradient(head_unit(), norm_index()).as<float>(), d_normed,
                               view(buffers_.final_sum, batch.rows, config_.hidden), buffers_.final_rstd,
                               store_.weight(head_unit(), norm_index()), buffers_.scratch, false);
}

void Decoder::train(const DeviceBatch& batch, float scale, double* loss_sum) {
    forward(batch, [&] { head_loss(batch, scale, loss_sum, true); });
    backward(batch);
}

void Decoder::evaluate(const DeviceBatch& batch, double* loss_sum) {
    forward(batch, [&] { head_loss(batch, 0, loss_sum, false); });
    store_.release(head_unit());
}

void Decoder::logits(const DeviceBatch& batch, float* out) {
    forward(batch, [&] {
        backend_.linear_forward(stream_, {out, DType::f32, batch.rows, config_.vocabulary},
                                view(buffers_.normed, batch.rows, config_.hidden), store_.weight(head_unit(), matrix_index()), {});
    });
    store_.release(head_unit());
}

/// From the residual gradient that the head left, down to the embedding.
void Decoder::backward(const DeviceBatch& batch) {
    const int last = static_cast<int>(config_.layers) - 1;
    store_.gather(block_unit(last));
    store_.release(head_unit());
    if (!config_.tied) store_.accumulate(head_unit());
    for (int i = last; i >= 0; --i) {
        store_.get(block_unit(i));
        if (i > 0) store_.gather(block_unit(i - 1));
        if (batch.rows > 0) {
            mlp_backward(i, batch);
            attention_backward(i, batch);
        }
        store_.release(block_unit(i));
        store_.accumulate(block_unit(i));
    }
    if (batch.rows > 0)
        backend_.embedding_backward(stream_, store_.gradient(0, 0), view(buffers_.residual_gradient, batch.rows, config_.hidden),
                                    batch.ids);
    store_.accumulate(0);  // a tied outer unit too: the head's part was added long before
}

void Decoder::mlp_backward(int index, const DeviceBatch& batch) {
    const Layer& l = buffers_.layers[static_cast<std::size_t>(index)];
    const std::int64_t n = batch.rows;
    const int unit = block_unit(index);
    const Tensor residual = view(buffers_.residual_gradient, n, config_.hidden), middle = view(l.middle, n, config_.hidden);
    const Tensor normed = view(buffers_.normed, n, config_.hidden), d_normed = view(buffers_.d_normed, n, config_.hidden);
    const Tensor gated = view(l.gate, n, config_.intermediate), upped = view(l.up, n, config_.intermediate);
    const Tensor act = view(buffers_.wide, n, config_.intermediate);

    backend_.linear_backward_input(stream_, act, residual, store_.weight(unit, at_.down), false);
    backend_.swiglu_backward(stream_, gated, upped, act);
    linear_gradient(unit, residual, act, at_.down, at_.down_bias);
    backend_.rms_norm_again(stream_, normed, middle, l.rstd2, store_.weight(unit, at_.norm2));
    linear_gradient(unit, gated, normed, at_.gate, at_.gate_bias);
    linear_gradient(unit, upped, normed, at_.up, at_.up_bias);
    backend_.linear_backward_input(stream_, d_normed, gated, store_.weight(unit, at_.gate), false);
    backend_.linear_backward_input(stream_, d_normed, upped, store_.weight(unit, at_.up), true);
    backend_.rms_norm_backward(stream_, residual, store_.gradient(unit, at_.norm2).as<float>(), d_normed, middle, l.rstd2,
                               store_.weight(unit, at_.norm2), buffers_.scratch, true);
}

void Decoder::attention_backward(int index, const DeviceBatch& batch) {
    const auto& c = config_;
    const Layer& l = buffers_.layers[static_cast<std::size_t>(index)];
    const std::int64_t n = batch.rows;
    const int unit = block_unit(index);
    const Tensor residual = view(buffers_.residual_gradient, n, c.hidden), input = view(l.input, n, c.hidden);
    const Tensor normed = view(buffers_.normed, n, c.hidden), d_normed = view(buffers_.d_normed, n, c.hidden);
    const Tensor attention = view(l.attention, n, c.query_width()), d_attention = view(buffers_.wide, n, c.query_width());
    const Tensor dq = view(buffers_.d_query, n, c.query_width()), dk = view(buffers_.d_key, n, c.kv_width());
    const Tensor dv = view(buffers_.d_value, n, c.kv_width());

    const Tensor raw_q = c.head_norm ? view(l.raw_query, n, c.query_width()) : Tensor{},
                 raw_k = c.head_norm ? view(l.raw_key, n, c.kv_width()) : Tensor{};

    backend_.linear_backward_input(stream_, d_attention, residual, store_.weight(unit, at_.output), false);
    linear_gradient(unit, residual, attention, at_.output, at_.output_bias);
    backend_.attention_backward(stream_, dq, dk, dv, d_attention, attention, l.lse, view(l.query, n, c.query_width()),
                                view(l.key, n, c.kv_width()), view(l.value, n, c.kv_width()), batch.documents, shape_of(config_, index),
                                {buffers_.scratch, DType::f32, 1, buffers_.scratch_floats});
    // the attention's gradient is used up: its memory holds that of the raw queries
    const Tensor d_raw_q = rotate_backward(unit, dq, d_attention, raw_q, c.heads, at_.query_norm, l.query_rstd, batch);
    const Tensor d_raw_k =
        rotate_backward(unit, dk, view(buffers_.d_raw_key, n, c.kv_width()), raw_k, c.kv_heads, at_.key_norm, l.key_rstd, batch);
    backend_.rms_norm_again(stream_, normed, input, l.rstd1, store_.weight(unit, at_.norm1));
    linear_gradient(unit, d_raw_q, normed, at_.query, at_.query_bias);
    linear_gradient(unit, d_raw_k, normed, at_.key, at_.key_bias);
    linear_gradient(unit, dv, normed, at_.value, at_.value_bias);
    backend_.linear_backward_input(stream_, d_normed, d_raw_q, store_.weight(unit, at_.query), false);
    backend_.linear_backward_input(stream_, d_normed, d_raw_k, store_.weight(unit, at_.key), true);
    backend_.linear_backward_input(stream_, d_normed, dv, store_.weight(unit, at_.value), true);
    backend_.rms_norm_backward(stream_, residual, store_.gradient(unit, at_.norm1).as<float>(), d_normed, input, l.rstd1,
                               store_.weight(unit, at_.norm1), buffers_.scratch, true);
}

}  // namespace sherd
