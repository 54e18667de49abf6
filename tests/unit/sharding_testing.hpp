#pragma once
/// Sharding without other ranks: a communicator that counts what would be sent, and one rank's decoder on it, whose memory is counted too.
#include "train/batch.hpp"

#include "sherd/comm/communicator.hpp"
#include "sherd/model/decoder.hpp"
#include "sherd/sharding/training_state.hpp"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sherd::tests {

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
    c.windows.assign(static_cast<std::size_t>(layers), 0);
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
          compute_(backend_->make_stream("compute")),
          communication_(backend_->make_stream("communication")),
          world_(rank, run.groups.nodes, &counted),
          state(layout_, *backend_, world_, *compute_, *communication_, run.type, TrainingState::Purpose::training, run.plan, run.groups,
                run.options),
          state_bytes(allocated.bytes),
          buffers_(*backend_, *compute_, *compute_, 16),
          decoder_(run.model, *backend_, *compute_, state, run.type, DecoderLimits{16, 8, true}),
          sums_(*backend_, 64 * sizeof(double), "sums") {}

    void step(int micro_steps) {
        const Document document{0, {1, 2, 3, 4, 5}, {0, 1, 1, 1, 1}};
        const HostBatch batch = pack({document});
        state.begin_step();
        for (int m = 0; m < micro_steps; ++m) {
            state.begin_micro_step(m + 1 == micro_steps);
            decoder_.train(buffers_.upload(batch), 0.25f, sums_.as<double>());
        }
        state.finish_gradients();
        state.sum_squares(sums_.as<double>() + 1);
        state.update({1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0});
        backend_->synchronize(*communication_);
        backend_->synchronize(*compute_);
    }

    Traffic counted{};
    AllocationLog allocated;

  private:
    std::unique_ptr<Backend> backend_ = make_cpu_backend(1, StreamOrder::as_enqueued, &allocated);
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
