#pragma once
/// Weights, gradients and optimizer state of this rank, held and moved as the shard plan says.
#include "sherd/model/unit_store.hpp"
#include "sherd/sharding/gradient_units.hpp"
#include "sherd/sharding/optimizer_state.hpp"
#include "sherd/sharding/shard_context.hpp"
#include "sherd/sharding/weight_units.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// A class of state for the table of memory.
struct StateClass {
    std::string name;
    DType dtype;
    std::uint64_t bytes;  ///< of this rank
};

class TrainingState final : public UnitStore {
  public:
    enum class Purpose { training, evaluation };

    /// Collective; allocates everything. Throws DeviceError.
    TrainingState(const FlatLayout& layout, Backend& backend, Communicator& world, Stream& compute, Stream& communication,
                  DType compute_type, Purpose purpose, const ShardPlan& plan, const ShardGroups& groups, const ShardOptions& options = {});

    /// What a rank's state takes, before it is made.
    static std::vector<StateClass> classes(const FlatLayout& layout, DType compute_type, Purpose purpose, const ShardPlan& plan,
                                           const ShardGroups& groups, const ShardOptions& options, int rank);
    /// Bytes that a rank sends in an optimizer step of that many micro-steps, all and between nodes, as planned.
    Traffic planned_traffic(std::int64_t micro_steps) const;

    const FlatLayout& layout() const noexcept { return context_.layout; }

    // UnitStore
    void gather(int unit) override;
    void get(int unit) override;
    void release(int unit) override;
    Tensor weight(int unit, int parameter) override;
    Tensor gradient(int unit, int parameter) override;
    GradientTarget gradient_target(int unit, int parameter) override;
    void accumulate(int unit) override;

    /// Sums of gradients start anew: before the first micro-step of an optimizer step.
    void begin_step();
    /// In the last micro-step, gradients also go to the owners of the optimizer's intervals.
    void begin_micro_step(bool last);
    /// Makes the compute stream wait for all sums of gradients.
    void finish_gradients();
    /// squares[unit] (device, fp64) = sum of squares over owned(unit) of the summed gradient: over ranks, each element counts once.
    void sum_squares(double* squares);
    /// One AdamW step on every unit, weight decay on parameters of two or more dimensions only; new weights travel back unit by unit.
    void update(const AdamWStep& step);

    /// The part of a unit's masters and moments that this rank answers for: all ranks together cover the unit once.
    Interval owned(int unit) const;
    /// Intervals of a unit that this rank needs of a state, in rising order without overlap.
    std::vector<Interval> wanted(StateKind kind, int unit) const;
    /// Sets elements [begin, begin + count) of a parameter from host memory, as far as this rank holds them; blocks. Masters set the
    /// weights too. After the last one call weights_loaded().
    void load(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, const float* values);
    void weights_loaded();
    /// Reads elements within owned(unit) of a state to host memory; blocks.
    void read(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, float* values);
    /// The same in two parts: values are there after finish_reads(), of all that was started before.
    void start_read(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, float* values);
    void finish_reads();
    /// For memory of reads that are under way: waits for them where an exception leaves it.
    [[nodiscard]] StreamGuard guard_of_reads() const { return {context_.backend, context_.compute}; }
    /// Reads elements of the summed gradient within owned(unit); blocks. For tests.
    void read_gradient(ParameterPlace place, std::int64_t begin, std::int64_t count, float* values);

  private:
    Tensor tensor(void* unit_data, DType type, int unit, int parameter) const;
    void load_weights_part(int unit, Interval part, const float* values);
    void copy_in(float* to, const float* values, std::int64_t count);

    ShardContext context_;
    WeightUnits weights_;
    std::optional<GradientUnits> gradients_;   ///< training only
    std::optional<OptimizerState> optimizer_;  ///< training only
    DeviceMemory staging_;                     ///< of values to be cast
};

}  // namespace sherd
