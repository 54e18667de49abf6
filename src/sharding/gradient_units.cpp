#include "sherd/sharding/gradient_units.hpp"

#include <numeric>

namespace sherd {

std::uint64_t GradientUnits::unit_bytes(const FlatLayout& layout, const ShardPlan& plan) {
    if (plan.gradients == Placement::replica) return 0;
    const auto sizes = UnitSlots::elements(layout);
    return static_cast<std::uint64_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})) * sizeof(float);
}

GradientUnits::GradientUnits(const ShardContext& context)
    : context_(context),
      replica_(context.plan.gradients == Placement::replica),
      shard_(context.backend, context.compute, context.mine(&UnitTables::gradients), DType::f32, "gradients"),
      filled_(context.backend.make_event()),
      done_(context.backend.make_event()) {
    const auto optimizer = context.mine(&UnitTables::optimizer);
    if (has_own_result(optimizer, context.mine(&UnitTables::gradients)))
        own_result_ = ShardBuffer(context.backend, context.compute, optimizer, DType::f32, "summed gradients");
    if (replica_) return;
    for (const std::int64_t elements : UnitSlots::elements(context.layout)) {
        DeviceMemory memory(context.backend, static_cast<std::size_t>(elements) * sizeof(float), "gradients of a unit");
        context.backend.zero(context.compute, memory.data(), memory.bytes());
        slots_.push_back({std::move(memory), -1, context.backend.make_event(), context.backend.make_event()});
    }
}

void GradientUnits::begin_step() {
    context_.backend.zero(context_.compute, shard_.data(), shard_.bytes());
}
void GradientUnits::begin_micro_step(bool last) {
    last_ = last;
}

float* GradientUnits::unit_data(int unit) {
    if (replica_) return shard_.floats(unit, 0);
    Slot& slot = slot_of(unit);
    if (slot.open_unit != unit) {
        context_.backend.wait(context_.compute, *slot.free);
        context_.backend.zero(context_.compute, slot.memory.data(),
                              static_cast<std::size_t>(context_.layout.unit(unit).elements) * sizeof(float));
        slot.open_unit = unit;
    }
    return slot.memory.as<float>();
}

void GradientUnits::accumulate(int unit) {
    if (!replica_) reduce_into_shard(unit);
    if (last_) bring_to_owners(unit);
}

/// The group's sum of this micro-step, added to this rank's part on the communication stream.
void GradientUnits::reduce_into_shard(int unit) {
    (void)unit_data(unit);  // a rank without documents contributes zeros
    Slot& slot = slot_of(unit);
    Backend& backend = context_.backend;
    backend.record(*slot.filled, context_.compute);
    backend.wait(context_.communication, *slot.filled);
    const Placement placement = context_.plan.gradients;
    const IntervalTable owners = context_.within(placement, context_.tables[static_cast<std::size_t>(unit)].gradients);
    const Interval mine = shard_.held(unit), whole{0, context_.layout.unit(unit).elements};
    float* sum = slot.memory.as<float>() + mine.begin;
    context_.group(placement)->redistribute(context_.communication,
                                            {Redistribution::Mode::sum, DType::f32, context_.options.reduce, slot.memory.data(), sum,
                                             IntervalTable(owners.size(), whole), owners},
                                            {CommunicationPhase::reduce_gradients, unit});
    if (!mine.empty()) backend.add(context_.communication, shard_.floats(unit), sum, mine.size());
    backend.record(*slot.free, context_.communication);
    slot.open_unit = -1;
}

/// Once a step: sums over the groups that each hold a whole gradient, to the ranks that are responsible for a part; then to all that hold
/// a replica of that part of the optimizer.
void GradientUnits::bring_to_owners(int unit) {
    const ShardPlan& plan = context_.plan;
    const UnitTables& t = context_.tables[static_cast<std::size_t>(unit)];
    Backend& backend = context_.backend;
    if (plan.gradients == Placement::world || context_.world.size() == 1) return;
    if (replica_) {  // written by the compute stream
        backend.record(*filled_, context_.compute);
        backend.wait(context_.communication, *filled_);
    }
    const auto me = static_cast<std::size_t>(context_.world.rank());
    float* part = result(unit) + (t.written[me].empty() ? 0 : t.written[me].begin - t.optimizer[me].begin);
    const CollectiveTag tag{CommunicationPhase::finish_gradients, unit};
    context_.world.redistribute(
        context_.communication,
        {Redistribution::Mode::sum, DType::f32, context_.options.reduce, shard_.floats(unit), part, t.gradients, t.written}, tag);
    if (plan.optimizer != Placement::world)
        context_.world.redistribute(context_.communication,
                                    {Redistribution::Mode::copy, DType::f32, DType::f32, part, result(unit), t.written, t.optimizer}, tag);
}

void GradientUnits::finish() {
    context_.backend.record(*done_, context_.communication);
    context_.backend.wait(context_.compute, *done_);
}

float* GradientUnits::result(int unit) const {
    const Interval mine = context_.tables[static_cast<std::size_t>(unit)].optimizer[static_cast<std::size_t>(context_.world.rank())];
    // an empty interval may begin outside of what the gradients hold: any address will do
    if (mine.empty()) return shard_.floats(unit);
    return own_result_.exists() ? own_result_.floats(unit) : shard_.floats(unit, mine.begin);
}

}  // namespace sherd
