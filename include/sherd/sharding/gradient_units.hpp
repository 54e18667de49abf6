#pragma once
/// Gradients: summed over ranks unit by unit behind the backward pass, and brought to the owners of the optimizer's intervals once a step.
#include "sherd/sharding/shard_buffer.hpp"
#include "sherd/sharding/shard_context.hpp"

namespace sherd {

class GradientUnits {
  public:
    explicit GradientUnits(const ShardContext& context);
    /// Bytes of the unit buffers that a backward pass writes into: 0 for replicas, which are written in place.
    static std::uint64_t unit_bytes(const FlatLayout& layout, const ShardPlan& plan);
    /// Whether the optimizer's interval needs memory of its own, since it does not lie within that of the gradients.
    static bool has_own_result(const std::vector<Interval>& optimizer, const std::vector<Interval>& gradients) noexcept {
        return !nested(optimizer, gradients);
    }

    void begin_step();  ///< zeroes
    void begin_micro_step(bool last);
    float* unit_data(int unit);  ///< of the whole unit, to be added to on the compute stream
    void accumulate(int unit);   ///< everything of this micro-step was added
    void finish();               ///< the compute stream waits for all sums

    /// The summed gradient over this rank's interval of the optimizer, after finish().
    float* result(int unit) const;

  private:
    struct Slot {
        DeviceMemory memory;
        int open_unit = -1;
        std::unique_ptr<Event> filled, free;
    };
    Slot& slot_of(int unit) { return slots_[static_cast<std::size_t>(UnitSlots::of(context_.layout, unit))]; }
    void reduce_into_shard(int unit);
    void bring_to_owners(int unit);

    const ShardContext& context_;
    bool replica_, last_ = false;
    ShardBuffer shard_;
    ShardBuffer own_result_;  ///< only where the optimizer's interval does not lie within the gradient's
    std::vector<Slot> slots_;
    std::unique_ptr<Event> filled_, done_;
};

}  // namespace sherd
