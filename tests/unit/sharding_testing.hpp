#pragma once
/// Sharding without other ranks: a device that counts what is allocated, a communicator that counts what would be sent, and one rank's
/// decoder on both.
#include "train/batch.hpp"

#include "sherd/comm/communicator.hpp"
#include "sherd/model/decoder.hpp"
#include "sherd/sharding/training_state.hpp"

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sherd::tests {

/// Forwards everything to a CPU; remembers bytes by purpose and how often memory was asked for.
class CountingBackend final : public Backend {
  public:
    std::map<std::string, std::uint64_t> bytes;
    int allocations = 0;

    void* allocate(std::size_t n, const std::string& purpose) override {
        ++allocations;
        bytes[purpose] += n;
        return cpu_->allocate(n, purpose);
    }
    void release(void* data, std::size_t n) noexcept override { cpu_->release(data, n); }

    std::string description() const override { return cpu_->description(); }
    bool has_native(DType type) const override { return cpu_->has_native(type); }
    std::uint64_t peak_memory_bytes() const override { return cpu_->peak_memory_bytes(); }
    std::unique_ptr<Stream> make_stream(const std::string& name) override { return cpu_->make_stream(name); }
    std::unique_ptr<Event> make_event() override { return cpu_->make_event(); }
    void record(Event& e, Stream& s) override { cpu_->record(e, s); }
    void wait(Stream& s, Event& e) override { cpu_->wait(s, e); }
    void synchronize(Stream& s) override { cpu_->synchronize(s); }
    void host_task(Stream& s, std::function<void()> task) override { cpu_->host_task(s, std::move(task)); }
    void copy_to_device(Stream& s, void* d, const void* h, std::size_t n) override { cpu_->copy_to_device(s, d, h, n); }
    void copy_to_host(Stream& s, void* h, const void* d, std::size_t n) override { cpu_->copy_to_host(s, h, d, n); }
    void copy(Stream& s, void* to, const void* from, std::size_t n) override { cpu_->copy(s, to, from, n); }
    void zero(Stream& s, void* d, std::size_t n) override { cpu_->zero(s, d, n); }
    void cast(Stream& s, Tensor to, Tensor from) override { cpu_->cast(s, to, from); }
    void add(Stream& s, float* y, const float* x, std::int64_t n) override { cpu_->add(s, y, x, n); }
    void sum(Stream& s, double* out, const float* x, std::int64_t n) override { cpu_->sum(s, out, x, n); }
    void sum_squares(Stream& s, double* out, const float* x, std::int64_t n) override { cpu_->sum_squares(s, out, x, n); }
    void linear_forward(Stream& s, Tensor y, Tensor x, Tensor w) override { cpu_->linear_forward(s, y, x, w); }
    void linear_backward_input(Stream& s, Tensor dx, Tensor dy, Tensor w, bool more) override {
        cpu_->linear_backward_input(s, dx, dy, w, more);
    }
    void linear_backward_weight(Stream& s, Tensor dw, Tensor dy, Tensor x) override { cpu_->linear_backward_weight(s, dw, dy, x); }
    void embedding_forward(Stream& s, Tensor y, Tensor t, const std::int32_t* ids) override { cpu_->embedding_forward(s, y, t, ids); }
    void embedding_backward(Stream& s, Tensor dt, Tensor dy, const std::int32_t* ids) override { cpu_->embedding_backward(s, dt, dy, ids); }
    void rms_norm_forward(Stream& s, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float e) override {
        cpu_->rms_norm_forward(s, y, rstd, sum, x, delta, w, e);
    }
    void rms_norm_again(Stream& s, Tensor y, Tensor x, const float* rstd, Tensor w) override { cpu_->rms_norm_again(s, y, x, rstd, w); }
    void rms_norm_backward(Stream& s, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch) override {
        cpu_->rms_norm_backward(s, dx, dw, dy, x, rstd, w, scratch);
    }
    std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) const override { return cpu_->rms_norm_scratch(rows, columns); }
    void rope(Stream& s, Tensor x, std::int64_t heads, const float* c, const float* si, const std::int32_t* p, bool inverse) override {
        cpu_->rope(s, x, heads, c, si, p, inverse);
    }
    void attention_forward(Stream& s, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& d,
                           const AttentionShape& shape) override {
        cpu_->attention_forward(s, out, lse, q, k, v, d, shape);
    }
    void attention_backward(Stream& s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k,
                            Tensor v, const Documents& d, const AttentionShape& shape, float* scratch) override {
        cpu_->attention_backward(s, dq, dk, dv, dout, out, lse, q, k, v, d, shape, scratch);
    }
    std::int64_t attention_scratch(std::int64_t rows, const AttentionShape& shape, DType type) const override {
        return cpu_->attention_scratch(rows, shape, type);
    }
    void swiglu_forward(Stream& s, Tensor out, Tensor gate, Tensor up) override { cpu_->swiglu_forward(s, out, gate, up); }
    void swiglu_backward(Stream& s, Tensor gate, Tensor up, Tensor dout) override { cpu_->swiglu_backward(s, gate, up, dout); }
    void cross_entropy(Stream& s, float* loss, Tensor g, Tensor logits, const std::int32_t* targets, float scale) override {
        cpu_->cross_entropy(s, loss, g, logits, targets, scale);
    }
    void adamw(Stream& s, const AdamWStep& step, float* m, float* a, float* b, const float* g, Tensor w, std::int64_t n) override {
        cpu_->adamw(s, step, m, a, b, g, w, n);
    }

  private:
    std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
};

/// One rank of many that are not there: counts what it would send, moves nothing. nodes: by rank of this communicator.
class DryCommunicator final : public Communicator {
  public:
    DryCommunicator(int rank, std::vector<int> nodes, Traffic* counted) : rank_(rank), nodes_(std::move(nodes)), counted_(counted) {}
    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return static_cast<int>(nodes_.size()); }
    void redistribute(Stream&, const Redistribution& movement, CollectiveTag tag) override {
        const auto [all, between] = sent_bytes(movement, rank_, nodes_);
        counted_->bytes[static_cast<std::size_t>(tag.phase)] += all;
        counted_->between_nodes[static_cast<std::size_t>(tag.phase)] += between;
    }
    std::vector<std::string> exchange(std::string_view mine) override { return std::vector<std::string>(nodes_.size(), std::string(mine)); }
    std::unique_ptr<Communicator> split(int color) override {
        std::vector<int> part;
        int rank = 0;
        for (std::size_t r = 0; r < nodes_.size(); ++r) {
            if (nodes_[r] != color) continue;
            if (static_cast<int>(r) < rank_) ++rank;
            part.push_back(color);
        }
        return std::make_unique<DryCommunicator>(rank, std::move(part), counted_);
    }
    std::uint64_t staging_bytes() const noexcept override { return 0; }
    Traffic traffic() const noexcept override { return *counted_; }

  private:
    int rank_;
    std::vector<int> nodes_;
    Traffic* counted_;
};

inline ModelConfig small_model(bool tied, std::int64_t layers) {
    ModelConfig c;
    c.architecture = "LlamaForCausalLM";
    c.vocabulary = 67;
    c.hidden = 24;
    c.intermediate = 36;
    c.layers = layers;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 6;
    c.max_positions = 64;
    c.tied = tied;
    return c;
}

struct DryRun {
    ModelConfig model = small_model(false, 3);
    ShardPlan plan;
    ShardGroups groups;
    ShardOptions options{};
    DType type = DType::f32;
};

/// One rank's state and decoder, whose steps count.
class DryRank {
  public:
    DryRank(const DryRun& run, int rank)
        : layout_(parameter_units(run.model)),
          compute_(backend.make_stream("compute")),
          communication_(backend.make_stream("communication")),
          world_(rank, run.groups.nodes, &counted),
          state(layout_, backend, world_, *compute_, *communication_, run.type, TrainingState::Purpose::training, run.plan, run.groups,
                run.options),
          state_bytes(backend.bytes),
          buffers_(backend, 16),
          decoder_(run.model, backend, *compute_, state, run.type, DecoderLimits{16, 8, true}),
          sums_(backend, 64 * sizeof(double), "sums") {}

    void step(int micro_steps) {
        const Document document{0, {1, 2, 3, 4, 5}, {0, 1, 1, 1, 1}};
        const HostBatch batch = pack({document});
        state.begin_step();
        for (int m = 0; m < micro_steps; ++m) {
            state.begin_micro_step(m + 1 == micro_steps);
            decoder_.train(buffers_.upload(*compute_, batch), 0.25f, sums_.as<double>());
        }
        state.finish_gradients();
        state.sum_squares(sums_.as<double>() + 1);
        state.update({1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0});
        backend.synchronize(*communication_);
        backend.synchronize(*compute_);
    }

    Traffic counted{};
    CountingBackend backend;

  private:
    FlatLayout layout_;
    std::unique_ptr<Stream> compute_, communication_;
    DryCommunicator world_;

  public:
    TrainingState state;
    std::map<std::string, std::uint64_t> state_bytes;  ///< what the state alone asked for, by purpose

  private:
    BatchBuffers buffers_;
    Decoder decoder_;
    DeviceMemory sums_;
};

inline std::vector<ShardPlan> sensible_plans() {
    using enum Placement;
    std::vector<ShardPlan> all;
    for (const Placement p : {replica, node, world})
        for (const Placement g : {replica, node, world})
            for (const Placement o : {replica, node, world})
                if (p <= g && g <= o) all.push_back({p, g, o});
    return all;
}

}  // namespace sherd::tests
