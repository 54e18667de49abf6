#include "sherd/sharding/optimizer_state.hpp"

namespace sherd {

OptimizerState::OptimizerState(const ShardContext& context, const WeightUnits& weights) : context_(context), weights_(weights) {
    const auto mine = context.mine(&UnitTables::optimizer), parameters = context.mine(&UnitTables::parameters);
    const DType compute = weights.shard().dtype();
    const auto make = [&](DType type, const char* purpose) { return ShardBuffer(context.backend, context.compute, mine, type, purpose); };
    if (!masters_are_weights(mine, parameters, compute)) master_ = make(DType::f32, "master weights");
    exp_avg_ = make(DType::f32, "exp_avg");
    exp_avg_sq_ = make(DType::f32, "exp_avg_sq");
    if (needs_outgoing(mine, parameters, compute)) outgoing_ = make(compute, "outgoing weights");
}

float* OptimizerState::data(StateKind kind, int unit) const {
    if (kind == StateKind::exp_avg) return exp_avg_.floats(unit);
    if (kind == StateKind::exp_avg_sq) return exp_avg_sq_.floats(unit);
    if (master_.exists()) return master_.floats(unit);
    const Interval mine = held(unit);
    return mine.empty() ? weights_.shard().floats(unit) : weights_.shard().floats(unit, mine.begin);
}

void* OptimizerState::outgoing(int unit) const {
    const ShardBuffer& weights = weights_.shard();
    const Interval mine = held(unit);
    if (mine.empty()) return weights.at(unit, weights.held(unit).begin);
    if (outgoing_.exists()) return outgoing_.at(unit, mine.begin);
    if (weights.dtype() == DType::f32) return data(StateKind::master, unit);
    return weights.at(unit, mine.begin);
}

void OptimizerState::update_unit(const AdamWStep& step, int unit, const float* gradient) {
    const Interval mine = held(unit);
    const auto& parameters = context_.layout.unit(unit).parameters;
    const DType type = weights_.shard().dtype();
    // consecutive parameters with the same decay go in one call; the padding between them has zero gradients and moments
    for (std::size_t first = 0; first < parameters.size();) {
        const bool decays = parameters[first].spec.decays();
        std::size_t last = first + 1;
        while (last < parameters.size() && parameters[last].spec.decays() == decays) ++last;
        const Interval part = intersect({parameters[first].begin, parameters[last - 1].interval().end}, mine);
        first = last;
        if (part.empty()) continue;
        AdamWStep s = step;
        if (!decays) s.weight_decay = 0;
        const std::int64_t at = part.begin - mine.begin;
        auto* weights = static_cast<unsigned char*>(outgoing(unit)) + static_cast<std::uint64_t>(at) * size_of(type);
        context_.backend.adamw(context_.compute, s, data(StateKind::master, unit) + at, data(StateKind::exp_avg, unit) + at,
                               data(StateKind::exp_avg_sq, unit) + at, gradient + at,
                               type == DType::f32 ? Tensor{} : Tensor{weights, type, 1, part.size()}, part.size());
    }
}

}  // namespace sherd
