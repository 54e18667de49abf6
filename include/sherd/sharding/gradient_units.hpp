#pragma once
/// Gradients: summed over ranks unit by unit behind the backward pass, and brought to the owners of the optimizer's intervals once a step.
#include "sherd/sharding/shard_buffer.hpp"
#include "sherd/sharding/shard_context.hpp"

#include <utility>

namespace sherd {

/// Where the model adds to and where sums are kept. fp32 replicas are added to in place. All else goes through unit buffers: the backward
/// pass adds to a unit's buffer, the group's sum of it becomes what this rank keeps, and that of further micro-steps is added to it.
/// Nothing is zeroed that a product overwrites. Gradients kept in bf16 are unpacked a unit at a time.
class GradientUnits {
  public:
    explicit GradientUnits(const ShardContext& context);
    /// Bytes of the buffers beside what is kept.
    static std::uint64_t unit_bytes(const FlatLayout& layout, const ShardPlan& plan, const ShardOptions& options);
    /// Whether the optimizer's interval needs memory of its own, since it does not lie within that of the gradients.
    static bool has_own_result(const std::vector<Interval>& optimizer, const std::vector<Interval>& gradients) noexcept {
        return !nested(optimizer, gradients);
    }

    void begin_step();  ///< sums start anew
    void begin_micro_step(bool last);
    /// Of the whole unit; on the compute stream the parameter may be added to.
    float* added_to(int unit, int parameter);
    /// Likewise, and whether nothing was put into the parameter yet: then it holds anything and is to be overwritten whole.
    std::pair<float*, bool> written_to(int unit, int parameter);
    void accumulate(int unit);  ///< everything of this micro-step was added
    void finish();              ///< the compute stream waits for all sums

    /// The summed gradient over this rank's interval of the optimizer, after finish(), for operations enqueued on the compute stream before
    /// the next call.
    const float* result(int unit);

  private:
    struct Slot {
        DeviceMemory memory;
        int open_unit = -1;
        std::unique_ptr<Event> filled, free;
    };
    Slot& slot_of(int unit) { return slots_[static_cast<std::size_t>(UnitSlots::of(context_.layout, unit))]; }
    float* open(int unit);
    bool take_fresh(int unit, int parameter);
    void zero(int unit, Interval part);
    void zero_unwritten(int unit);
    void reduce_into_shard(int unit);
    void bring_to_owners(int unit);
    void redistribute_to_owners(int unit, const float* from, float* to);
    Tensor kept(int unit) const;         ///< this rank's interval of the gradients
    Tensor result_kept(int unit) const;  ///< this rank's interval of the optimizer

    const ShardContext& context_;
    bool in_place_, last_ = false;
    int micro_steps_ = 0;  ///< begun in this step
    ShardBuffer shard_;
    ShardBuffer own_result_;  ///< only where the optimizer's interval does not lie within the gradient's
    std::vector<Slot> slots_;
    std::vector<std::vector<bool>> fresh_;         ///< by unit and parameter: what is in memory is older than the sum that is under way
    DeviceMemory unpacked_, outgoing_, incoming_;  ///< fp32, of a unit: for gradients kept in bf16
    std::unique_ptr<Event> filled_, done_;
};

}  // namespace sherd
