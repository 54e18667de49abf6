#pragma once
/// Masters and moments over this rank's interval of every unit, and their AdamW step.
#include "sherd/sharding/shard_buffer.hpp"
#include "sherd/sharding/shard_context.hpp"
#include "sherd/sharding/weight_units.hpp"

namespace sherd {

/// States that a checkpoint holds, fp32 each.
enum class StateKind { master, exp_avg, exp_avg_sq };

class OptimizerState {
  public:
    /// Where masters would be equal to weights (fp32 compute, nested intervals) they are the weights.
    OptimizerState(const ShardContext& context, const WeightUnits& weights);
    static bool masters_are_weights(const std::vector<Interval>& optimizer, const std::vector<Interval>& parameters,
                                    DType compute) noexcept {
        return compute == DType::f32 && nested(optimizer, parameters);
    }
    /// Whether new weights of this rank's interval need memory of their own on the way to where they are kept.
    static bool needs_outgoing(const std::vector<Interval>& optimizer, const std::vector<Interval>& parameters, DType compute) noexcept {
        return compute != DType::f32 && !nested(optimizer, parameters);
    }

    Interval held(int unit) const { return exp_avg_.held(unit); }
    /// First element of the interval.
    float* data(StateKind kind, int unit) const;
    /// Where new weights of the interval appear in the compute type.
    void* outgoing(int unit) const;

    /// AdamW on every unit; after_unit(u) is called when unit u is enqueued. gradient(u): summed, over the interval.
    template <class Gradient, class AfterUnit>
    void update(const AdamWStep& step, Gradient gradient, AfterUnit after_unit) {
        for (int u = 0; u < context_.layout.unit_count(); ++u) {
            update_unit(step, u, gradient(u));
            after_unit(u);
        }
    }

  private:
    void update_unit(const AdamWStep& step, int unit, const float* gradient);

    const ShardContext& context_;
    const WeightUnits& weights_;
    ShardBuffer master_, exp_avg_, exp_avg_sq_, outgoing_;
};

}  // namespace sherd
