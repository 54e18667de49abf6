#include "sherd/sharding/training_state.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>

namespace sherd {

namespace {
constexpr std::int64_t staging_elements = 1 << 20;
}

TrainingState::TrainingState(const FlatLayout& layout, Backend& backend, Communicator& world, Stream& compute, Stream& communication,
                             DType compute_type, Purpose purpose, const ShardPlan& plan, const ShardGroups& groups,
                             const ShardOptions& options)
    : context_(layout, backend, world, compute, communication, plan, groups, options), weights_(context_, compute_type) {
    if (purpose == Purpose::training) {
        gradients_.emplace(context_);
        optimizer_.emplace(context_, weights_);
    }
    if (compute_type != DType::f32) staging_ = DeviceMemory(backend, staging_elements * sizeof(float), "staging of weights");
    backend.synchronize(compute);
}

void TrainingState::gather(int unit) {
    if (context_.options.prefetch) weights_.gather(unit);
}
void TrainingState::get(int unit) {
    weights_.get(unit);
}
void TrainingState::release(int unit) {
    weights_.release(unit);
}

Tensor TrainingState::tensor(void* unit_data, DType type, int unit, int parameter) const {
    const FlatParameter& p = context_.layout.unit(unit).parameters[static_cast<std::size_t>(parameter)];
    auto* at = static_cast<unsigned char*>(unit_data) + static_cast<std::uint64_t>(p.begin) * size_of(type);
    const auto& shape = p.spec.shape;
    return shape.size() == 1 ? Tensor{at, type, 1, shape[0]} : Tensor{at, type, shape[0], p.elements / shape[0]};
}

Tensor TrainingState::weight(int unit, int parameter) {
    return tensor(weights_.unit_data(unit), weights_.shard().dtype(), unit, parameter);
}
Tensor TrainingState::gradient(int unit, int parameter) {
    return tensor(gradients_->added_to(unit, parameter), DType::f32, unit, parameter);
}
GradientTarget TrainingState::gradient_target(int unit, int parameter) {
    const auto [data, fresh] = gradients_->written_to(unit, parameter);
    return {tensor(data, DType::f32, unit, parameter), !fresh};
}
void TrainingState::accumulate(int unit) {
    gradients_->accumulate(unit);
}
void TrainingState::begin_step() {
    gradients_->begin_step();
}
void TrainingState::begin_micro_step(bool last) {
    gradients_->begin_micro_step(last);
}
void TrainingState::finish_gradients() {
    gradients_->finish();
}

Interval TrainingState::owned(int unit) const {
    return context_.tables[static_cast<std::size_t>(unit)].written[static_cast<std::size_t>(context_.world.rank())];
}

void TrainingState::sum_squares(double* squares) {
    context_.backend.zero(context_.compute, squares, static_cast<std::size_t>(context_.layout.unit_count()) * sizeof(double));
    for (int u = 0; u < context_.layout.unit_count(); ++u) {
        const Interval mine = owned(u);
        if (!mine.empty())
            context_.backend.sum_squares(context_.compute, squares + u, gradients_->result(u) + (mine.begin - optimizer_->held(u).begin),
                                         mine.size());
    }
}

void TrainingState::update(const AdamWStep& step) {
    optimizer_->update(
        step, [&](int u) { return gradients_->result(u); }, [&](int u) { weights_.refresh(u, optimizer_->outgoing(u)); });
    weights_.finish_refresh();
}

std::vector<Interval> TrainingState::wanted(StateKind kind, int unit) const {
    const Interval weights = weights_.shard().held(unit), state = optimizer_ ? optimizer_->held(unit) : Interval{};
    std::vector<Interval> all;
    if (!state.empty()) all.push_back(state);
    if (kind == StateKind::master && !weights.empty()) all.push_back(weights);
    if (all.size() < 2) return all;
    if (all[1].begin < all[0].begin) std::swap(all[0], all[1]);
    if (all[1].begin > all[0].end) return all;
    return {{all[0].begin, std::max(all[0].end, all[1].end)}};
}

void TrainingState::copy_in(float* to, const float* values, std::int64_t count) {
    context_.backend.copy_to_device(context_.compute, to, values, static_cast<std::size_t>(count) * sizeof(float));
}

void TrainingState::load_weights_part(int unit, Interval part, const float* values) {
    const DType type = weights_.shard().dtype();
    if (type == DType::f32) return copy_in(weights_.shard().floats(unit, part.begin), values, part.size());
    for (std::int64_t at = 0; at < part.size(); at += staging_elements) {
        const std::int64_t n = std::min(staging_elements, part.size() - at);
        copy_in(staging_.as<float>(), values + at, n);
        context_.backend.cast(context_.compute, {weights_.shard().at(unit, part.begin + at), type, 1, n},
                              {staging_.data(), DType::f32, 1, n});
    }
}

void TrainingState::load(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, const float* values) {
    const std::int64_t first = context_.layout.at(place).begin + begin;
    const Interval given{first, first + count};
    const int u = place.unit;
    if (optimizer_) {
        const Interval part = intersect(given, optimizer_->held(u));
        if (!part.empty())
            copy_in(optimizer_->data(kind, u) + (part.begin - optimizer_->held(u).begin), values + (part.begin - first), part.size());
    }
    if (kind == StateKind::master) {
        const Interval part = intersect(given, weights_.shard().held(u));
        if (!part.empty()) load_weights_part(u, part, values + (part.begin - first));
    }
    context_.backend.synchronize(context_.compute);
}

void TrainingState::weights_loaded() {
    weights_.changed();
    context_.backend.synchronize(context_.compute);
}

void TrainingState::start_read(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, float* values) {
    const std::int64_t first = context_.layout.at(place).begin + begin;
    // fp32 masters may be the own part of the weights, which a refresh may still be sending and receiving in place
    if (kind == StateKind::master) weights_.await_refresh();
    const float* from = optimizer_->data(kind, place.unit) + (first - optimizer_->held(place.unit).begin);
    context_.backend.copy_to_host(context_.compute, values, from, static_cast<std::size_t>(count) * sizeof(float));
}

void TrainingState::finish_reads() {
    context_.backend.synchronize(context_.compute);
}

void TrainingState::read(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, float* values) {
    start_read(kind, place, begin, count, values);
    finish_reads();
}

void TrainingState::read_gradient(ParameterPlace place, std::int64_t begin, std::int64_t count, float* values) {
    const std::int64_t first = context_.layout.at(place).begin + begin;
    const float* from = gradients_->result(place.unit) + (first - optimizer_->held(place.unit).begin);
    context_.backend.copy_to_host(context_.compute, values, from, static_cast<std::size_t>(count) * sizeof(float));
    context_.backend.synchronize(context_.compute);
}

}  // namespace sherd
