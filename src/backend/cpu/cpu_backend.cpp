#include "backend/cpu/idle_threads.hpp"
#include "backend/cpu/kernels.hpp"
#include "backend/cpu/machine.hpp"
#include "backend/cpu/stream.hpp"
#include "backend/shape_checks.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <cstring>

namespace sherd {

namespace {

using namespace cpu;
using shapes::expect;
using shapes::expect_attention;
using shapes::expect_bias;
using shapes::expect_product;
using shapes::expect_same;
using shapes::text;

CpuStream& cpu_stream(Stream& stream) {
    return static_cast<CpuStream&>(stream);
}

/// Copies that need no thread and streams of collectives leave the cores to the compute stream.
bool is_side_stream(const std::string& name) {
    return name == "communication" || name == "copy";
}

class CpuBackend final : public Backend {
  public:
    CpuBackend(int threads, StreamOrder order, AllocationLog* log)
        : threads_(std::max(1, threads)),
          order_(order),
          log_(log),
          products_(has_avx512_bf16() ? Bf16Products::native : Bf16Products::converted) {
        let_idle_threads_sleep(threads_);
    }

    std::string description() const override {
        const char* const extra = products_ == Bf16Products::native ? "avx512_bf16" : has_avx512() ? "avx512" : "avx2";
        return fmt::format("cpu: {}, {} thread{}, {}", cpu_name(), threads_, threads_ == 1 ? "" : "s", extra);
    }
    bool has_native(DType compute) const override {
        return compute == DType::f32 || (compute == DType::bf16 && products_ == Bf16Products::native);
    }
    bool can_compute(DType compute) const override { return compute == DType::f32 || compute == DType::bf16; }
    std::uint64_t peak_memory_bytes() const override { return peak_resident_memory(); }
    std::uint64_t available_memory_bytes() const override { return available_memory(); }
    bool host_reads_memory() const noexcept override { return true; }

    void reserve(std::size_t, const std::string&) override {}
    void* allocate(std::size_t bytes, const std::string& purpose) override {
        if (log_ != nullptr) {
            log_->bytes[purpose] += bytes;
            ++log_->count;
        }
        return allocate_memory(bytes, purpose);
    }
    void release(void* data, std::size_t) noexcept override { release_memory(data); }
    void* allocate_host(std::size_t bytes, const std::string& purpose) override { return allocate_memory(bytes, purpose); }
    void release_host(void* data, std::size_t) noexcept override { release_memory(data); }

    std::size_t stream_bytes(const std::string&) const override { return 0; }
    std::unique_ptr<Stream> make_stream(const std::string& name) override {
        return std::make_unique<CpuStream>(name, is_side_stream(name) ? 1 : threads_, order_);
    }
    std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
    void record(Event& event, Stream& stream) override { static_cast<CpuEvent&>(event).record(cpu_stream(stream)); }
    void wait(Stream& stream, Event& event) override {
        const auto position = static_cast<CpuEvent&>(event).position();
        if (position.progress == nullptr) return;
        put(stream, [position] { position.progress->wait_for(position.count); });
    }
    void synchronize(Stream& stream) override { cpu_stream(stream).synchronize(); }
    void host_task(Stream& stream, std::function<void()> task) override { put(stream, std::move(task)); }

    void copy_to_device(Stream& stream, void* device, const void* host, std::size_t bytes) override { copy(stream, device, host, bytes); }
    void copy_to_host(Stream& stream, void* host, const void* device, std::size_t bytes) override { copy(stream, host, device, bytes); }
    void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
        if (bytes > 0) put(stream, [=] { std::memcpy(to, from, bytes); });
    }
    void zero(Stream& stream, void* data, std::size_t bytes) override {
        if (bytes > 0) put(stream, [=] { std::memset(data, 0, bytes); });
    }

    void cast(Stream& stream, Tensor to, Tensor from) override {
        expect(to.elements() == from.elements(), "cast", text(to) + " from " + text(from));
        put(stream, [=] { cpu::cast(to, from); });
    }
    void add(Stream& stream, Tensor y, Tensor x, bool accumulate) override {
        expect(y.elements() == x.elements(), "add", text(x) + " to " + text(y));
        put(stream, [=] { cpu::add(y, x, accumulate); });
    }
    void sum(Stream& stream, double* out, const float* x, std::int64_t n) override {
        put(stream, [=] { *out += cpu::sum(x, n); });
    }
    void sum_squares(Stream& stream, double* out, const float* x, std::int64_t n) override {
        put(stream, [=] { *out += cpu::sum_squares(x, n); });
    }

    void linear_forward(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor bias) override {
        expect_product("linear_forward", y, x, w);
        expect_bias("linear_forward", y, bias);
        put(stream, [=, this] { cpu::linear_forward(y, x, w, bias, products_); });
    }
    void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, bool accumulate) override {
        expect_product("linear_backward_input", dy, dx, w);
        put(stream, [=, this] { cpu::linear_backward_input(dx, dy, w, accumulate, products_); });
    }
    void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, bool accumulate) override {
        expect_product("linear_backward_weight", dy, x, dw);
        put(stream, [=, this] { cpu::linear_backward_weight(dw, dy, x, accumulate, products_); });
    }

    void bias_backward(Stream& stream, float* dbias, Tensor dy) override {
        put(stream, [=] { cpu::bias_backward(dbias, dy); });
    }

    void embedding_forward(Stream& stream, Tensor y, Tensor table, const std::int32_t* ids) override {
        expect(y.columns == table.columns && y.dtype == table.dtype, "embedding_forward", text(y) + " from " + text(table));
        put(stream, [=] { cpu::embedding_forward(y, table, ids); });
    }
    void embedding_backward(Stream& stream, Tensor dtable, Tensor dy, const std::int32_t* ids) override {
        expect(dy.columns == dtable.columns && dtable.dtype == DType::f32, "embedding_backward", text(dtable) + " from " + text(dy));
        put(stream, [=] { cpu::embedding_backward(dtable, dy, ids); });
    }

    void rms_norm_forward(Stream& stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) override {
        expect_same("rms_norm_forward", y, x);
        expect(w.elements() == x.columns && w.dtype == x.dtype, "rms_norm_forward", text(x) + " with weights " + text(w));
        if (delta.data != nullptr) {
            expect_same("rms_norm_forward", delta, x);
            expect_same("rms_norm_forward", sum, x);
        }
        put(stream, [=] { cpu::rms_norm_forward(y, rstd, sum, x, delta, w, epsilon); });
    }
    void rms_norm_again(Stream& stream, Tensor y, Tensor x, const float* rstd, Tensor w) override {
        expect_same("rms_norm_again", y, x);
        put(stream, [=] { cpu::rms_norm_again(y, x, rstd, w); });
    }
    void rms_norm_backward(Stream& stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch,
                           bool accumulate) override {
        expect_same("rms_norm_backward", dx, x);
        expect_same("rms_norm_backward", dy, x);
        put(stream, [=] { cpu::rms_norm_backward(dx, dw, dy, x, rstd, w, scratch, accumulate); });
    }
    std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) const override { return cpu::rms_norm_scratch(rows, columns); }

    void rope(Stream& stream, Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions,
              bool inverse) override {
        expect(heads > 0 && x.columns % (2 * heads) == 0, "rope", fmt::format("{} with {} heads", text(x), heads));
        put(stream, [=] { cpu::rope(x, heads, cosine, sine, positions, inverse); });
    }

    void attention_forward(Stream& stream, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents,
                           const AttentionShape& shape) override {
        expect_attention("attention_forward", q, k, v, shape);
        expect_same("attention_forward", out, q);
        put(stream, [=] { cpu::attention_forward(out, lse, q, k, v, documents, shape); });
    }
    void attention_backward(Stream& stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k,
                            Tensor v, const Documents& documents, const AttentionShape& shape, Tensor scratch) override {
        expect_attention("attention_backward", q, k, v, shape);
        for (const auto& like_q : {dq, dout, out}) expect_same("attention_backward", like_q, q);
        for (const auto& like_k : {dk, dv}) expect_same("attention_backward", like_k, k);
        put(stream, [=] { cpu::attention_backward(dq, dk, dv, dout, out, lse, q, k, v, documents, shape, scratch.as<float>()); });
    }
    std::int64_t attention_scratch(std::int64_t rows, std::int64_t, const AttentionShape& shape, DType) const override {
        return cpu::attention_scratch(rows, shape);
    }
    std::int64_t own_attention_scratch(std::int64_t rows, const AttentionShape& shape) const override {
        return cpu::attention_scratch(rows, shape);
    }

    void swiglu_forward(Stream& stream, Tensor out, Tensor gate, Tensor up) override {
        expect_same("swiglu_forward", out, gate);
        expect_same("swiglu_forward", up, gate);
        put(stream, [=] { cpu::swiglu_forward(out, gate, up); });
    }
    void swiglu_backward(Stream& stream, Tensor gate, Tensor up, Tensor dout) override {
        expect_same("swiglu_backward", up, gate);
        expect_same("swiglu_backward", dout, gate);
        put(stream, [=] { cpu::swiglu_backward(gate, up, dout); });
    }

    void cross_entropy(Stream& stream, float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale) override {
        expect(logits.dtype == DType::f32, "cross_entropy", "logits " + text(logits) + ", fp32 expected");
        if (gradient.data != nullptr) {
            const bool fits = gradient.rows == logits.rows && gradient.columns == logits.columns;
            expect(fits, "cross_entropy", text(gradient) + " against " + text(logits));
        }
        put(stream, [=] { cpu::cross_entropy(loss, gradient, logits, targets, scale); });
    }

    void adamw(Stream& stream, const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
               Tensor weights, std::int64_t n) override {
        expect(weights.data == nullptr || weights.elements() == n, "adamw", fmt::format("{} elements, weights {}", n, text(weights)));
        put(stream, [=] { cpu::adamw(step, master, exp_avg, exp_avg_sq, gradient, weights, n); });
    }

  private:
    static void put(Stream& stream, CpuStream::Operation operation) { cpu_stream(stream).enqueue(std::move(operation)); }

    const int threads_;
    const StreamOrder order_;
    AllocationLog* const log_;
    const Bf16Products products_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, StreamOrder order, AllocationLog* log) {
    return std::make_unique<CpuBackend>(threads, order, log);
}

}  // namespace sherd
