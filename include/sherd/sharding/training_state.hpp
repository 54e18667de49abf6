#pragma once
/// Weights, gradients and optimizer state of this rank, and their movement between ranks.
///
/// In this version every rank holds a replica of everything (`no_shard`). Ownership is there all the same: each unit has an interval table
/// over the ranks, by which gradients are summed, norms are taken without counting twice, and checkpoints are written in shares.
#include "sherd/backend/backend.hpp"
#include "sherd/comm/communicator.hpp"
#include "sherd/model/unit_store.hpp"
#include "sherd/sharding/flat_layout.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// A class of state for the table of memory.
struct StateClass {
    std::string name;
    DType dtype;
    std::uint64_t bytes;  ///< of this rank
};

/// States that a checkpoint holds, fp32 each.
enum class StateKind { master, exp_avg, exp_avg_sq };

class TrainingState final : public UnitStore {
  public:
    enum class Purpose { training, evaluation };

    /// Allocates everything. `communication` may be the stream of host-staged or device collectives. Throws DeviceError.
    TrainingState(const FlatLayout& layout, Backend& backend, Communicator& communicator, Stream& compute, Stream& communication,
                  DType compute_type, Purpose purpose);

    /// What a state of that kind would take, before it is made.
    static std::vector<StateClass> classes(const FlatLayout& layout, DType compute_type, Purpose purpose);

    const FlatLayout& layout() const noexcept { return layout_; }

    // UnitStore
    void gather(int unit) override;
    void get(int unit) override;
    void release(int unit) override;
    Tensor weight(int unit, int parameter) override;
    Tensor gradient(int unit, int parameter) override;
    void accumulate(int unit) override;

    /// Zeroes the gradients: before the first micro-step of an optimizer step.
    void begin_step();
    /// From the last micro-step on, accumulate() sums over ranks.
    void begin_micro_step(bool last);
    /// Makes the compute stream wait for all sums of gradients.
    void finish_gradients();
    /// squares[unit] (device, fp64) = sum of squares of the interval of that unit's gradient that this rank owns.
    void sum_squares(double* squares);
    /// One AdamW step on every unit; weight decay on parameters of two or more dimensions only.
    void update(const AdamWStep& step);

    /// Interval of a unit that this rank owns.
    Interval owned(int unit) const;
    /// Sets elements [begin, begin + count) of a parameter from host memory; blocks. After the last one call weights_loaded().
    void load(ParameterPlace place, std::int64_t begin, std::int64_t count, const float* values);
    void load(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, const float* values);
    /// Derives the compute weights from the masters where they differ in type; blocks.
    void weights_loaded();
    /// Reads elements of a state to host memory; blocks.
    void read(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, float* values);
    /// Reads elements of the summed gradient; blocks. For tests.
    void read_gradient(ParameterPlace place, std::int64_t begin, std::int64_t count, float* values);

  private:
    float* flat(StateKind kind, int unit) const;
    Tensor tensor(void* base, DType type, int unit, int parameter) const;

    const FlatLayout& layout_;
    Backend& backend_;
    Communicator& communicator_;
    Stream &compute_, &communication_;
    DType type_;
    std::vector<IntervalTable> owners_;  ///< by unit
    DeviceMemory master_, exp_avg_, exp_avg_sq_, gradients_, low_weights_, staging_;
    std::unique_ptr<Event> gradients_ready_, sums_ready_;
    bool last_micro_step_ = false;
};

}  // namespace sherd
