#include "sherd/sharding/weight_units.hpp"

#include <numeric>

namespace sherd {

namespace {
/// One buffer a unit where everything stays gathered, else two for blocks and one for the units around them.
std::vector<std::int64_t> slot_elements(const FlatLayout& layout, const ShardOptions& options) {
    if (!options.keep_gathered) return UnitSlots::elements(layout);
    std::vector<std::int64_t> sizes;
    for (const FlatUnit& u : layout.units()) sizes.push_back(u.elements);
    return sizes;
}
}  // namespace

std::uint64_t WeightUnits::gathered_bytes(const FlatLayout& layout, const ShardPlan& plan, const ShardOptions& options, DType dtype) {
    if (plan.parameters == Placement::replica) return 0;
    const auto sizes = slot_elements(layout, options);
    return static_cast<std::uint64_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})) * size_of(dtype);
}

WeightUnits::WeightUnits(const ShardContext& context, DType dtype)
    : context_(context),
      dtype_(dtype),
      replica_(context.plan.parameters == Placement::replica),
      shard_(context.backend, context.compute, context.mine(&UnitTables::parameters), dtype, "weights"),
      changed_(context.backend.make_event()) {
    if (replica_) return;
    for (const std::int64_t elements : slot_elements(context.layout, context.options)) {
        DeviceMemory memory(context.backend, static_cast<std::size_t>(elements) * size_of(dtype), "gathered weights");
        context.backend.zero(context.compute, memory.data(), memory.bytes());
        slots_.push_back({std::move(memory), -1, 0, context.backend.make_event(), context.backend.make_event()});
    }
}

int WeightUnits::slot_of(int unit) const noexcept {
    return context_.options.keep_gathered ? unit : UnitSlots::of(context_.layout, unit);
}

void WeightUnits::gather(int unit) {
    if (replica_) return;
    Slot& slot = slots_[static_cast<std::size_t>(slot_of(unit))];
    if (slot.unit == unit && slot.version == version_) return;
    Backend& backend = context_.backend;
    backend.wait(context_.communication, *changed_);
    backend.wait(context_.communication, *slot.free);
    const Placement placement = context_.plan.parameters;
    const IntervalTable sources = context_.within(placement, context_.tables[static_cast<std::size_t>(unit)].parameters);
    const Interval whole{0, context_.layout.unit(unit).elements};
    context_.group(placement)->redistribute(context_.communication,
                                            {Redistribution::Mode::copy, dtype_, dtype_, shard_.at(unit, shard_.held(unit).begin),
                                             slot.memory.data(), sources, IntervalTable(sources.size(), whole)},
                                            {CommunicationPhase::gather_weights, unit});
    backend.record(*slot.ready, context_.communication);
    slot.unit = unit;
    slot.version = version_;
}

void WeightUnits::get(int unit) {
    if (replica_) {
        context_.backend.wait(context_.compute, *changed_);
        return;
    }
    gather(unit);  // nothing where it was asked for before
    context_.backend.wait(context_.compute, *slots_[static_cast<std::size_t>(slot_of(unit))].ready);
}

void WeightUnits::release(int unit) {
    if (!replica_) context_.backend.record(*slots_[static_cast<std::size_t>(slot_of(unit))].free, context_.compute);
}

void WeightUnits::await_refresh() {
    context_.backend.wait(context_.compute, *changed_);
}

void* WeightUnits::unit_data(int unit) const {
    return replica_ ? shard_.at(unit, 0) : slots_[static_cast<std::size_t>(slot_of(unit))].memory.data();
}

void WeightUnits::changed() {
    ++version_;
    context_.backend.record(*changed_, context_.compute);
}

void WeightUnits::refresh(int unit, const void* source) {
    const UnitTables& t = context_.tables[static_cast<std::size_t>(unit)];
    // where every node has all of the optimizer's state, weights come from the own node
    const Placement from = context_.plan.optimizer;
    Communicator* group = context_.group(from);
    if (group == nullptr || (t.parameters == t.optimizer && source == shard_.at(unit, shard_.held(unit).begin))) return;
    context_.backend.record(*changed_, context_.compute);
    context_.backend.wait(context_.communication, *changed_);
    group->redistribute(context_.communication,
                        {Redistribution::Mode::copy, dtype_, dtype_, source, shard_.at(unit, shard_.held(unit).begin),
                         context_.within(from, t.optimizer), context_.within(from, t.parameters)},
                        {CommunicationPhase::refresh_weights, unit});
}

void WeightUnits::finish_refresh() {
    ++version_;
    // what was refreshed on the communication stream and what was written on the compute stream: both are before this event
    context_.backend.record(*changed_, context_.compute);
    context_.backend.wait(context_.communication, *changed_);
    context_.backend.record(*changed_, context_.communication);
}

}  // namespace sherd
