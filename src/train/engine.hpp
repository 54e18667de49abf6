#pragma once
/// The device side of a run: backend, streams, communicator, state, decoder, all sized and allocated here, before step 1.
#include "train/batch.hpp"
#include "train/device.hpp"

#include "sherd/comm/session.hpp"
#include "sherd/data/packing.hpp"
#include "sherd/model/decoder.hpp"
#include "sherd/sharding/training_state.hpp"
#include "sherd/train/inputs.hpp"

#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// Collective. Capacity of every rank's micro-batches. Throws UsageError (the same on all ranks): a list of another length, a document that
/// fits no rank.
std::vector<RankBudget> make_budgets(const Settings& settings, const Inputs& inputs, int ranks);
/// batch.micro_tokens = auto: tokens, by those of the longest document.
std::int64_t automatic_micro_tokens(std::int64_t longest) noexcept;

struct MemoryQuestion;

struct Engine {
    /// Collective. resumes: from a checkpoint, so that keys that are fixed for it are no advice. Throws AgreedError.
    Engine(const Settings& settings, const Session& session, Communicator& host, const Inputs& inputs, TrainingState::Purpose purpose,
           bool resumes = false);

    /// Lines for the start of a run: ranks, nodes, devices, precision, and memory by class.
    std::string banner(const Settings& settings, const Session& session, const Inputs& inputs) const;

    ChosenDevice device;
    std::unique_ptr<GpuMonitor> monitor;  ///< of this rank's GPU, at the lowest rank of its card; else nullptr
    std::unique_ptr<Communicator> world;
    DType type = DType::f32;
    std::string type_reason;
    ShardPlan plan;
    ShardGroups groups;
    std::vector<RankBudget> budgets;
    std::unique_ptr<TrainingState> state;
    std::unique_ptr<BatchBuffers> buffers;
    std::unique_ptr<Decoder> decoder;
    DeviceMemory sums;  ///< doubles: loss, then squares by unit
    // after everything that their work uses: they are destroyed first, and that waits for the work
    std::unique_ptr<Stream> compute, communication;
    std::unique_ptr<Stream> copy;       ///< GPUs alone: a CPU's copies would only take a core from compute
    std::vector<std::string> devices;   ///< by rank
    std::vector<StateClass> memory;     ///< planned, of this rank
    std::vector<double> memory_totals;  ///< planned, by rank
    double largest_plan = 0;            ///< bytes in use on the fullest device, as planned: by all ranks that share it
    Backend& backend() const noexcept { return *device.backend; }
    /// The stream of copies from the host that compute need not wait for in its order.
    Stream& copies() const noexcept { return copy ? *copy : *compute; }
    double* loss_sum() const noexcept { return sums.as<double>(); }
    double* squares() const noexcept { return sums.as<double>() + 1; }
    /// Runs work of this rank's device. Where memory ends in it, the error also says who holds how much here, and which keys would free it.
    template <class Work>
    auto with_memory_advice(const Settings& settings, const Inputs& inputs, Work work) const {
        try {
            return work();
        } catch (const OutOfMemoryError& error) {
            advise(settings, inputs, error);
        }
    }

  private:
    std::string traffic_lines() const;
    void choose_type(const Settings& settings, Communicator& host);
    void choose_plan(const Settings& settings, const Session& session);
    ShardOptions options_of(const Settings& settings) const;
    MemoryQuestion question(const Settings& settings, const Inputs& inputs, int rank) const;
    void plan_memory(const Settings& settings, const MemoryQuestion& all, Communicator& host);
    void check_memory(const Settings& settings, const MemoryQuestion& all, std::uint64_t needed) const;
    [[noreturn]] void advise(const Settings& settings, const Inputs& inputs, const OutOfMemoryError& error) const;
    std::string memory_lines() const;

    TrainingState::Purpose purpose_;
    bool resumes_;
    bool bf16_everywhere_ = false;  ///< in hardware
};

/// "sherd 0.1.0 - 4 rank(s) on 2 node(s), Open MPI v4.1.4": said at once, since reading and checking large weights takes a while.
std::string first_line(const Session& session);

}  // namespace sherd
