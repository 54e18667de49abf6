// What a plan costs, before anything is made: memory by class and traffic by phase, from the same tables that the run uses.
#include "sherd/runtime/error.hpp"
#include "sherd/sharding/training_state.hpp"

#include <algorithm>

namespace sherd {

std::vector<StateClass> TrainingState::classes(const FlatLayout& layout, DType type, Purpose purpose, const ShardPlan& wanted_plan,
                                               const ShardGroups& groups, const ShardOptions& options, int rank) {
    const ShardPlan plan = simplified(wanted_plan, groups);
    std::vector<Interval> parameters, gradients, optimizer;
    for (const UnitTables& t : all_tables(layout, plan, groups)) {
        parameters.push_back(t.parameters[static_cast<std::size_t>(rank)]);
        gradients.push_back(t.gradients[static_cast<std::size_t>(rank)]);
        optimizer.push_back(t.optimizer[static_cast<std::size_t>(rank)]);
    }
    std::vector<StateClass> all;
    const auto add = [&](std::string name, DType dtype, std::uint64_t bytes) {
        if (bytes > 0) all.push_back({std::move(name), dtype, bytes});
    };
    const auto over = [&](Placement placement) { return fmt::format(" ({})", name_of(placement)); };
    add("weights" + over(plan.parameters), type, ShardBuffer::bytes(parameters, type));
    add("gathered units", type, WeightUnits::gathered_bytes(layout, plan, options, type));
    if (purpose == Purpose::training) {
        if (!OptimizerState::masters_are_weights(optimizer, parameters, type))
            add("master weights" + over(plan.optimizer), DType::f32, ShardBuffer::bytes(optimizer, DType::f32));
        add("exp_avg" + over(plan.optimizer), DType::f32, ShardBuffer::bytes(optimizer, DType::f32));
        add("exp_avg_sq" + over(plan.optimizer), DType::f32, ShardBuffer::bytes(optimizer, DType::f32));
        add("gradients" + over(plan.gradients), options.gradients, ShardBuffer::bytes(gradients, options.gradients));
        add("gradients of units", DType::f32, GradientUnits::unit_bytes(layout, plan, options));
        if (GradientUnits::has_own_result(optimizer, gradients))
            add("summed gradients", options.gradients, ShardBuffer::bytes(optimizer, options.gradients));
        if (OptimizerState::needs_outgoing(optimizer, parameters, type)) add("outgoing weights", type, ShardBuffer::bytes(optimizer, type));
    }
    if (type != DType::f32) add("staging of weights", DType::f32, std::uint64_t{1} << 22);
    return all;
}

namespace {

/// How often each unit is gathered in a step: the walk of the passes over the units' buffers, where a unit that is still in its buffer is
/// not gathered again.
std::vector<std::int64_t> gathers_per_step(const FlatLayout& layout, const ShardOptions& options, std::int64_t micro_steps) {
    const int units = layout.unit_count();
    std::vector<std::int64_t> counts(static_cast<std::size_t>(units), 0);
    std::vector<int> content(static_cast<std::size_t>(std::max(units, UnitSlots::count)), -1);
    const auto visit = [&](int unit) {
        int& slot = content[static_cast<std::size_t>(options.keep_gathered ? unit : UnitSlots::of(layout, unit))];
        if (slot != unit) ++counts[static_cast<std::size_t>(unit)];
        slot = unit;
    };
    for (std::int64_t m = 0; m < micro_steps; ++m) {
        for (int u = 0; u < units; ++u) visit(u);
        if (!layout.unit(units - 1).outer) visit(0);  // a tied head
        for (int u = units - 1; u >= 0; --u)
            if (!layout.unit(u).outer) visit(u);
    }
    return counts;
}

}  // namespace

Traffic TrainingState::planned_traffic(std::int64_t micro_steps) const {
    Traffic traffic;
    const int rank = context_.world.rank();
    const auto add = [&](CommunicationPhase phase, const IntervalTable& sources, const IntervalTable& owners, DType wire,
                         std::int64_t times, Placement within) {
        // ranks outside of the group take no part: their intervals are emptied
        const auto restrict_to_group = [&](IntervalTable table) {
            for (std::size_t r = 0; within == Placement::node && r < table.size(); ++r)
                if (context_.groups.nodes[r] != context_.groups.nodes[static_cast<std::size_t>(rank)]) table[r] = {};
            return table;
        };
        const Redistribution m{Redistribution::Mode::copy, wire, wire, nullptr, nullptr, restrict_to_group(sources),
                               restrict_to_group(owners)};
        const auto [all, between] = sent_bytes(m, rank, context_.groups.nodes);
        traffic.bytes[static_cast<std::size_t>(phase)] += all * static_cast<std::uint64_t>(times);
        traffic.between_nodes[static_cast<std::size_t>(phase)] += between * static_cast<std::uint64_t>(times);
    };
    const ShardPlan& plan = context_.plan;
    const DType weight = weights_.shard().dtype(), reduce = context_.options.reduce;
    const auto gathers = gathers_per_step(context_.layout, context_.options, micro_steps);
    for (int u = 0; u < context_.layout.unit_count(); ++u) {
        const UnitTables& t = context_.tables[static_cast<std::size_t>(u)];
        const IntervalTable whole(t.parameters.size(), Interval{0, context_.layout.unit(u).elements});
        if (plan.parameters != Placement::replica)
            add(CommunicationPhase::gather_weights, t.parameters, whole, weight, gathers[static_cast<std::size_t>(u)], plan.parameters);
        if (plan.gradients != Placement::replica)
            add(CommunicationPhase::reduce_gradients, whole, t.gradients, reduce, micro_steps, plan.gradients);
        if (plan.gradients != Placement::world) {
            add(CommunicationPhase::finish_gradients, t.gradients, t.written, reduce, 1, Placement::world);
            if (plan.optimizer != Placement::world)
                add(CommunicationPhase::finish_gradients, t.written, t.optimizer, DType::f32, 1, Placement::world);
        }
        if (plan.optimizer != Placement::replica && t.parameters != t.optimizer)
            add(CommunicationPhase::refresh_weights, t.optimizer, t.parameters, weight, 1, plan.optimizer);
    }
    return traffic;
}

}  // namespace sherd
