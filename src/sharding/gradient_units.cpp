#include "sherd/sharding/gradient_units.hpp"

#include <algorithm>
#include <numeric>

namespace sherd {

namespace {
bool added_in_place(const ShardPlan& plan, const ShardOptions& options) {
    return plan.gradients == Placement::replica && options.gradients == DType::f32;
}
/// Floats of the largest unit, for each of three buffers that unpack what is kept in bf16.
std::int64_t unpacking_elements(const FlatLayout& layout, const ShardOptions& options) {
    std::int64_t largest = 0;
    for (const FlatUnit& u : layout.units()) largest = std::max(largest, u.elements);
    return options.gradients == DType::f32 ? 0 : largest;
}
}  // namespace

std::uint64_t GradientUnits::unit_bytes(const FlatLayout& layout, const ShardPlan& plan, const ShardOptions& options) {
    if (added_in_place(plan, options)) return 0;
    const auto sizes = UnitSlots::elements(layout);
    return static_cast<std::uint64_t>(std::accumulate(sizes.begin(), sizes.end(), 3 * unpacking_elements(layout, options))) * sizeof(float);
}

GradientUnits::GradientUnits(const ShardContext& context)
    : context_(context),
      in_place_(added_in_place(context.plan, context.options)),
      shard_(context.backend, context.compute, context.mine(&UnitTables::gradients), context.options.gradients, "gradients"),
      filled_(context.backend.make_event()),
      done_(context.backend.make_event()) {
    for (const FlatUnit& u : context.layout.units()) fresh_.emplace_back(u.parameters.size(), true);
    const auto optimizer = context.mine(&UnitTables::optimizer);
    if (has_own_result(optimizer, context.mine(&UnitTables::gradients)))
        own_result_ = ShardBuffer(context.backend, context.compute, optimizer, context.options.gradients, "summed gradients");
    if (in_place_) return;
    const auto make = [&](std::int64_t elements) {
        DeviceMemory memory(context.backend, static_cast<std::size_t>(elements) * sizeof(float), "gradients of a unit");
        context.backend.zero(context.compute, memory.data(), memory.bytes());
        return memory;
    };
    for (const std::int64_t elements : UnitSlots::elements(context.layout))
        slots_.push_back({make(elements), -1, context.backend.make_event(), context.backend.make_event()});
    const std::int64_t unpacking = unpacking_elements(context.layout, context.options);
    for (DeviceMemory* memory : {&unpacked_, &outgoing_, &incoming_})
        if (unpacking > 0) *memory = make(unpacking);
}

void GradientUnits::begin_step() {
    micro_steps_ = 0;
    if (in_place_)
        for (auto& parameters : fresh_) parameters.assign(parameters.size(), true);
}
void GradientUnits::begin_micro_step(bool last) {
    ++micro_steps_;
    last_ = last;
}

/// Opens a unit's buffer for a micro-step. Padding is sent too, and the buffer may have held another unit.
float* GradientUnits::open(int unit) {
    if (in_place_) return shard_.floats(unit, 0);
    Slot& slot = slot_of(unit);
    if (slot.open_unit == unit) return slot.memory.as<float>();
    context_.backend.wait(context_.compute, *slot.free);
    slot.open_unit = unit;
    const FlatUnit& layout = context_.layout.unit(unit);
    std::int64_t end = 0;
    for (const FlatParameter& p : layout.parameters) {
        zero(unit, {end, p.begin});
        end = p.interval().end;
    }
    zero(unit, {end, layout.elements});
    fresh_[static_cast<std::size_t>(unit)].assign(layout.parameters.size(), true);
    return slot.memory.as<float>();
}

bool GradientUnits::take_fresh(int unit, int parameter) {
    std::vector<bool>& flags = fresh_[static_cast<std::size_t>(unit)];
    const bool fresh = flags[static_cast<std::size_t>(parameter)];
    flags[static_cast<std::size_t>(parameter)] = false;
    return fresh;
}

void GradientUnits::zero(int unit, Interval part) {
    float* data = in_place_ ? shard_.floats(unit, 0) : slot_of(unit).memory.as<float>();
    if (!part.empty()) context_.backend.zero(context_.compute, data + part.begin, static_cast<std::size_t>(part.size()) * sizeof(float));
}

std::pair<float*, bool> GradientUnits::written_to(int unit, int parameter) {
    float* data = open(unit);
    return {data, take_fresh(unit, parameter)};
}

float* GradientUnits::added_to(int unit, int parameter) {
    float* data = open(unit);
    if (take_fresh(unit, parameter)) zero(unit, context_.layout.at({unit, parameter}).interval());
    return data;
}

/// A rank without documents contributes zeros.
void GradientUnits::zero_unwritten(int unit) {
    const int parameters = static_cast<int>(context_.layout.unit(unit).parameters.size());
    for (int p = 0; p < parameters; ++p) (void)added_to(unit, p);
}

void GradientUnits::accumulate(int unit) {
    if (!in_place_ || last_) zero_unwritten(unit);
    if (!in_place_) reduce_into_shard(unit);
    if (last_) bring_to_owners(unit);
}

Tensor GradientUnits::kept(int unit) const {
    const Interval mine = shard_.held(unit);
    return {shard_.at(unit, mine.begin), shard_.dtype(), 1, mine.size()};
}

Tensor GradientUnits::result_kept(int unit) const {
    const Interval mine = context_.tables[static_cast<std::size_t>(unit)].optimizer[static_cast<std::size_t>(context_.world.rank())];
    // an empty interval may begin outside of what the gradients hold: any address will do
    if (mine.empty()) return {shard_.at(unit, shard_.held(unit).begin), shard_.dtype(), 1, 0};
    return {own_result_.exists() ? own_result_.at(unit, mine.begin) : shard_.at(unit, mine.begin), shard_.dtype(), 1, mine.size()};
}

/// The group's sum of this micro-step becomes this rank's part, or is added to it, on the communication stream.
void GradientUnits::reduce_into_shard(int unit) {
    Slot& slot = slot_of(unit);
    Backend& backend = context_.backend;
    backend.record(*slot.filled, context_.compute);
    backend.wait(context_.communication, *slot.filled);
    const Placement placement = context_.plan.gradients;
    const Interval mine = shard_.held(unit), whole{0, context_.layout.unit(unit).elements};
    // what is kept may be the sum itself
    const bool first = micro_steps_ == 1, direct = first && shard_.dtype() == DType::f32 && context_.group(placement) != nullptr;
    float* sum = direct ? kept(unit).as<float>() : slot.memory.as<float>() + mine.begin;
    if (Communicator* group = context_.group(placement); group != nullptr) {
        const IntervalTable owners = context_.within(placement, context_.tables[static_cast<std::size_t>(unit)].gradients);
        group->redistribute(context_.communication,
                            {Redistribution::Mode::sum, DType::f32, context_.options.reduce, slot.memory.data(), sum,
                             IntervalTable(owners.size(), whole), owners},
                            {CommunicationPhase::reduce_gradients, unit});
    }
    const Tensor addend{sum, DType::f32, 1, mine.size()};
    if (!mine.empty() && !direct)
        first ? backend.cast(context_.communication, kept(unit), addend) : backend.add(context_.communication, kept(unit), addend, true);
    backend.record(*slot.free, context_.communication);
    slot.open_unit = -1;
}

/// Once a step: sums over the groups that each hold a whole gradient, to the ranks that are responsible for a part; then to all that hold
/// a replica of that part of the optimizer.
void GradientUnits::bring_to_owners(int unit) {
    if (context_.plan.gradients == Placement::world || context_.world.size() == 1) return;
    Backend& backend = context_.backend;
    Stream& stream = context_.communication;
    if (in_place_) {  // written by the compute stream
        backend.record(*filled_, context_.compute);
        backend.wait(stream, *filled_);
    }
    const Tensor own = kept(unit), result = result_kept(unit);
    if (shard_.dtype() == DType::f32) return redistribute_to_owners(unit, own.as<float>(), result.as<float>());
    backend.cast(stream, {outgoing_.data(), DType::f32, 1, own.elements()}, own);
    redistribute_to_owners(unit, outgoing_.as<float>(), incoming_.as<float>());
    backend.cast(stream, result, {incoming_.data(), DType::f32, 1, result.elements()});
}

void GradientUnits::redistribute_to_owners(int unit, const float* from, float* to) {
    const UnitTables& t = context_.tables[static_cast<std::size_t>(unit)];
    const auto me = static_cast<std::size_t>(context_.world.rank());
    float* part = to + (t.written[me].empty() ? 0 : t.written[me].begin - t.optimizer[me].begin);
    const CollectiveTag tag{CommunicationPhase::finish_gradients, unit};
    context_.world.redistribute(context_.communication,
                                {Redistribution::Mode::sum, DType::f32, context_.options.reduce, from, part, t.gradients, t.written}, tag);
    if (context_.plan.optimizer != Placement::world)
        context_.world.redistribute(context_.communication,
                                    {Redistribution::Mode::copy, DType::f32, DType::f32, part, to, t.written, t.optimizer}, tag);
}

void GradientUnits::finish() {
    context_.backend.record(*done_, context_.communication);
    context_.backend.wait(context_.compute, *done_);
}

const float* GradientUnits::result(int unit) {
    const Tensor result = result_kept(unit);
    if (result.dtype == DType::f32) return result.as<float>();
    context_.backend.cast(context_.compute, {unpacked_.data(), DType::f32, 1, result.elements()}, result);
    return unpacked_.as<float>();
}

}  // namespace sherd
