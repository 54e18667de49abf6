#pragma once
/// The operations of a training step of a Llama, each with its shapes, its work and how often a step has it: what bench_step measures.
/// They follow src/model/decoder.cpp.
#include "model/decoder_internal.hpp"
#include "tools/model_shapes.hpp"

#include "sherd/backend/backend.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sherd::tools {

struct TensorShape {
    std::int64_t rows, columns;
    DType type;
    std::size_t bytes() const noexcept { return static_cast<std::size_t>(rows * columns) * size_of(type); }
};

using Tensors = std::vector<Tensor>;

struct Operation {
    std::string name;
    double calls;  ///< in a micro-step; in a step where `in_step`
    double flops;  ///< of products, a call; 0 where memory is the limit
    double bytes;  ///< that a call must move: each input read once, each output written once
    std::vector<TensorShape> tensors;
    std::function<void(Backend&, Stream&, const Tensors&)> run;
    bool in_step = false;  ///< once a step, not once a micro-step
};

/// A micro-batch of `rows` tokens in documents of `length`. Pointers are device memory.
struct MicroBatch {
    std::int64_t rows, length;
    DType compute;
    const std::int32_t *ids, *targets, *positions;
    Documents documents;
    const float *cosine, *sine;  ///< [length, head_dim / 2]
};

/// Collects the operations of one shape of model and batch.
class StepOperations {
  public:
    StepOperations(const ModelShape& shape, const MicroBatch& batch, const Backend& backend)
        : s_(shape), b_(batch), backend_(backend), layers_(static_cast<double>(shape.layers)) {
        norms();
        products("query, output", s_.hidden, s_.hidden, 2);
        products("key, value", s_.hidden, s_.kv_size(), 2);
        products("gate, up", s_.hidden, s_.intermediate, 2);
        products("down", s_.intermediate, s_.hidden, 1);
        attention();
        pointwise();
        embedding();
        head();
        state();
    }
    std::vector<Operation> take() { return std::move(all_); }

  private:
    TensorShape activation(std::int64_t columns) const { return {b_.rows, columns, b_.compute}; }
    double element() const { return static_cast<double>(size_of(b_.compute)); }
    double wide(std::int64_t columns) const { return static_cast<double>(b_.rows * columns) * element(); }

    void norms() {
        const std::int64_t h = s_.hidden, scratch = backend_.rms_norm_scratch(b_.rows, h);
        const std::vector<TensorShape> with_delta{activation(h), {1, b_.rows, DType::f32}, activation(h), activation(h),
                                                  activation(h), {1, h, b_.compute}};
        all_.push_back({"rms_norm_forward", 2 * layers_ + 1, 0, 4 * wide(h), with_delta, [](Backend& b, Stream& s, const Tensors& t) {
                            b.rms_norm_forward(s, t[0], t[1].as<float>(), t[2], t[3], t[4], t[5], 1e-6f);
                        }});
        all_.push_back({"rms_norm_again",
                        2 * layers_,
                        0,
                        2 * wide(h),
                        {activation(h), activation(h), {1, b_.rows, DType::f32}, {1, h, b_.compute}},
                        [](Backend& b, Stream& s, const Tensors& t) { b.rms_norm_again(s, t[0], t[1], t[2].as<float>(), t[3]); }});
        const std::vector<TensorShape> gradients{activation(h),           {1, h, DType::f32},       activation(h),
                                                 activation(h),           {1, b_.rows, DType::f32}, {1, h, b_.compute},
                                                 {1, scratch, DType::f32}};
        for (const bool last : {false, true}) {  // which has no gradient of a residual to add to
            all_.push_back({last ? "rms_norm_backward head" : "rms_norm_backward", last ? 1 : 2 * layers_, 0, (last ? 3 : 4) * wide(h),
                            gradients, [last](Backend& b, Stream& s, const Tensors& t) {
                                b.rms_norm_backward(s, t[0], t[1].as<float>(), t[2], t[3], t[4].as<float>(), t[5], t[6].as<float>(), !last);
                            }});
        }
    }

    /// `count` matrices of a block, [out, in]: forward, gradient of the input, gradient of the weights.
    void products(const std::string& name, std::int64_t in, std::int64_t out, double count) {
        const std::vector<TensorShape> tensors{activation(out), activation(in), {out, in, b_.compute}};
        const double flops = 2.0 * static_cast<double>(b_.rows * in * out), weights = static_cast<double>(in * out);
        const double moved = wide(in) + wide(out);
        all_.push_back({"linear_forward " + name, count * layers_, flops, moved + weights * element(), tensors,
                        [](Backend& b, Stream& s, const Tensors& t) { b.linear_forward(s, t[0], t[1], t[2], {}); }});
        all_.push_back({"linear_backward_input " + name, count * layers_, flops, moved + weights * element(), tensors,
                        [](Backend& b, Stream& s, const Tensors& t) { b.linear_backward_input(s, t[1], t[0], t[2], false); }});
        all_.push_back({"linear_backward_weight " + name,
                        count * layers_,
                        flops,
                        moved + 4 * weights,
                        {activation(out), activation(in), {out, in, DType::f32}},
                        [](Backend& b, Stream& s, const Tensors& t) { b.linear_backward_weight(s, t[2], t[0], t[1], false); }});
    }

    /// Two products of the scores that causality leaves (half of each document's square) forward, five backward.
    void attention() {
        const std::int64_t q = s_.hidden, kv = s_.kv_size();
        const AttentionShape shape{s_.heads, s_.kv_heads, s_.head_dim(), 0.125f};
        const double scores = static_cast<double>(b_.rows) * static_cast<double>(b_.length + 1) / 2 * static_cast<double>(s_.hidden);
        const Documents documents = b_.documents;
        const std::int64_t scratch = backend_.attention_scratch(b_.rows, documents.longest, shape, b_.compute);
        std::vector<TensorShape> tensors{activation(q), {s_.heads, b_.rows, DType::f32}, activation(q), activation(kv), activation(kv)};
        all_.push_back(
            {"attention_forward", layers_, 4 * scores, 2 * wide(q) + 2 * wide(kv), tensors, [=](Backend& b, Stream& s, const Tensors& t) {
                 b.attention_forward(s, t[0], t[1].as<float>(), t[2], t[3], t[4], documents, shape);
             }});
        for (const TensorShape& more : {activation(q), activation(q), activation(kv), activation(kv), TensorShape{1, scratch, DType::f32}})
            tensors.push_back(more);
        all_.push_back(
            {"attention_backward", layers_, 10 * scores, 4 * wide(q) + 4 * wide(kv), tensors, [=](Backend& b, Stream& s, const Tensors& t) {
                 b.attention_backward(s, t[6], t[7], t[8], t[5], t[0], t[1].as<float>(), t[2], t[3], t[4], documents, shape, t[9]);
             }});
    }

    void pointwise() {
        const std::int64_t wide_columns = s_.intermediate;
        const std::vector<TensorShape> three{activation(wide_columns), activation(wide_columns), activation(wide_columns)};
        all_.push_back({"swiglu_forward", layers_, 0, 3 * wide(wide_columns), three,
                        [](Backend& b, Stream& s, const Tensors& t) { b.swiglu_forward(s, t[0], t[1], t[2]); }});
        all_.push_back({"swiglu_backward", layers_, 0, 6 * wide(wide_columns), three,
                        [](Backend& b, Stream& s, const Tensors& t) { b.swiglu_backward(s, t[0], t[1], t[2]); }});
        const MicroBatch batch = b_;
        for (const auto& [name, heads] : {std::pair{"rope query", s_.heads}, {"rope key", s_.kv_heads}})
            all_.push_back({name,
                            2 * layers_,
                            0,
                            2 * wide(heads * s_.head_dim()),
                            {activation(heads * s_.head_dim())},
                            [batch, n = heads](Backend& b, Stream& s, const Tensors& t) {
                                b.rope(s, t[0], n, batch.cosine, batch.sine, batch.positions, false);
                            }});
    }

    void embedding() {
        const std::int64_t h = s_.hidden;
        const std::int32_t* ids = b_.ids;
        all_.push_back({"embedding_forward",
                        1,
                        0,
                        2 * wide(h),
                        {activation(h), {s_.vocabulary, h, b_.compute}},
                        [ids](Backend& b, Stream& s, const Tensors& t) { b.embedding_forward(s, t[0], t[1], ids); }});
        all_.push_back({"embedding_backward",
                        1,
                        0,
                        wide(h) + 8.0 * static_cast<double>(b_.rows * h),
                        {activation(h), {s_.vocabulary, h, DType::f32}},
                        [ids](Backend& b, Stream& s, const Tensors& t) { b.embedding_backward(s, t[1], t[0], ids); }});
    }

    /// In chunks of rows, as the decoder takes them; a last, smaller chunk counts as its part of a whole one.
    void head() {
        const std::int64_t v = s_.vocabulary, h = s_.hidden, rows = std::min(b_.rows, logits_chunk_rows(v, backend_));
        const double chunks = static_cast<double>(b_.rows) / static_cast<double>(rows), weights = static_cast<double>(v * h);
        const double flops = 2.0 * static_cast<double>(rows) * weights, logits = static_cast<double>(rows * v);
        const double x = static_cast<double>(rows * h) * element();
        const TensorShape input{rows, h, b_.compute}, matrix{v, h, b_.compute}, gradient{rows, v, b_.compute};
        all_.push_back({"linear_forward head",
                        chunks,
                        flops,
                        x + weights * element() + 4 * logits,
                        {{rows, v, DType::f32}, input, matrix},
                        [](Backend& b, Stream& s, const Tensors& t) { b.linear_forward(s, t[0], t[1], t[2], {}); }});
        const std::int32_t* targets = b_.targets;
        all_.push_back(
            {"cross_entropy",
             chunks,
             0,
             (4 + element()) * logits,
             {{1, rows, DType::f32}, gradient, {rows, v, DType::f32}},
             [targets](Backend& b, Stream& s, const Tensors& t) { b.cross_entropy(s, t[0].as<float>(), t[1], t[2], targets, 1.0f); }});
        all_.push_back({"linear_backward_input head",
                        chunks,
                        flops,
                        x + (weights + logits) * element(),
                        {input, gradient, matrix},
                        [](Backend& b, Stream& s, const Tensors& t) { b.linear_backward_input(s, t[0], t[1], t[2], false); }});
        all_.push_back({"linear_backward_weight head",
                        chunks,
                        flops,
                        x + logits * element() + 8 * weights,
                        {{v, h, DType::f32}, gradient, input},
                        [](Backend& b, Stream& s, const Tensors& t) { b.linear_backward_weight(s, t[0], t[1], t[2], true); }});
    }

    /// On all parameters, once a step; measured on a block's at a time, of which there are as many as parameters need.
    void state() {
        const std::int64_t n = s_.block_parameters();
        const double calls = static_cast<double>(s_.parameters()) / static_cast<double>(n), elements = static_cast<double>(n);
        const TensorShape floats{1, n, DType::f32};
        all_.push_back({"adamw",
                        calls,
                        0,
                        (28 + element()) * elements,
                        {floats, floats, floats, floats, {1, n, b_.compute}},
                        [n](Backend& b, Stream& s, const Tensors& t) {
                            const AdamWStep step{1e-4, 0.9, 0.95, 1e-8, 0.1, 0.5, 0.5, 1.0};
                            b.adamw(s, step, t[0].as<float>(), t[1].as<float>(), t[2].as<float>(), t[3].as<float>(), t[4], n);
                        },
                        true});
        all_.push_back({"sum_squares",
                        calls,
                        0,
                        4 * elements,
                        {floats, {1, 2, DType::f32}},
                        [n](Backend& b, Stream& s, const Tensors& t) { b.sum_squares(s, t[1].as<double>(), t[0].as<float>(), n); },
                        true});
        all_.push_back({"zero gradients",
                        calls,
                        0,
                        4 * elements,
                        {floats},
                        [](Backend& b, Stream& s, const Tensors& t) { b.zero(s, t[0].data, t[0].bytes()); },
                        true});
    }

    ModelShape s_;
    MicroBatch b_;
    const Backend& backend_;
    double layers_;
    std::vector<Operation> all_;
};

}  // namespace sherd::tools
