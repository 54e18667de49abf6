#include "sherd/sharding/training_state.hpp"

#include "sherd/runtime/error.hpp"

namespace sherd {

namespace {
constexpr std::int64_t staging_elements = 1 << 20;

std::uint64_t bytes_of(std::int64_t elements, DType type) {
    return static_cast<std::uint64_t>(elements) * size_of(type);
}
}  // namespace

std::vector<StateClass> TrainingState::classes(const FlatLayout& layout, DType type, Purpose purpose) {
    const std::int64_t n = layout.elements();
    if (purpose == Purpose::evaluation) return {{"weights", type, bytes_of(n, type)}};
    std::vector<StateClass> all;
    if (type != DType::f32) all.push_back({"weights", type, bytes_of(n, type)});
    all.push_back({type == DType::f32 ? "weights (are the masters)" : "master weights", DType::f32, bytes_of(n, DType::f32)});
    all.push_back({"exp_avg", DType::f32, bytes_of(n, DType::f32)});
    all.push_back({"exp_avg_sq", DType::f32, bytes_of(n, DType::f32)});
    all.push_back({"gradients", DType::f32, bytes_of(n, DType::f32)});
    return all;
}

TrainingState::TrainingState(const FlatLayout& layout, Backend& backend, Communicator& communicator, Stream& compute, Stream& communication,
                             DType compute_type, Purpose purpose)
    : layout_(layout),
      backend_(backend),
      communicator_(communicator),
      compute_(compute),
      communication_(communication),
      type_(compute_type),
      gradients_ready_(backend.make_event()),
      sums_ready_(backend.make_event()) {
    for (const FlatUnit& u : layout_.units()) owners_.push_back(split_equally(u.elements, communicator_.size(), flat_alignment));
    const std::int64_t n = layout_.elements();
    const auto make = [&](DType type, const char* purpose_text) {
        DeviceMemory memory(backend_, bytes_of(n, type), purpose_text);
        backend_.zero(compute_, memory.data(), memory.bytes());
        return memory;
    };
    if (type_ != DType::f32) low_weights_ = make(type_, "weights");
    if (type_ == DType::f32 || purpose == Purpose::training) master_ = make(DType::f32, "master weights");
    if (purpose == Purpose::training) {
        exp_avg_ = make(DType::f32, "exp_avg");
        exp_avg_sq_ = make(DType::f32, "exp_avg_sq");
        gradients_ = make(DType::f32, "gradients");
    } else if (type_ != DType::f32) {
        staging_ = DeviceMemory(backend_, staging_elements * sizeof(float), "staging of weights");
    }
    backend_.synchronize(compute_);
}

// Replicas need no gathering: the compute stream itself wrote the weights.
void TrainingState::gather(int) {}
void TrainingState::get(int) {}
void TrainingState::release(int) {}

Tensor TrainingState::tensor(void* base, DType type, int unit, int parameter) const {
    const FlatUnit& u = layout_.unit(unit);
    const FlatParameter& p = u.parameters[static_cast<std::size_t>(parameter)];
    auto* at = static_cast<unsigned char*>(base) + bytes_of(u.begin + p.begin, type);
    const auto& shape = p.spec.shape;
    return shape.size() == 1 ? Tensor{at, type, 1, shape[0]} : Tensor{at, type, shape[0], p.elements / shape[0]};
}

Tensor TrainingState::weight(int unit, int parameter) {
    return tensor(type_ == DType::f32 ? master_.data() : low_weights_.data(), type_, unit, parameter);
}
Tensor TrainingState::gradient(int unit, int parameter) {
    return tensor(gradients_.data(), DType::f32, unit, parameter);
}

void TrainingState::begin_step() {
    backend_.zero(compute_, gradients_.data(), gradients_.bytes());
}
void TrainingState::begin_micro_step(bool last) {
    last_micro_step_ = last;
}

void TrainingState::accumulate(int unit) {
    if (!last_micro_step_ || communicator_.size() == 1) return;
    const FlatUnit& u = layout_.unit(unit);
    const IntervalTable& owners = owners_[static_cast<std::size_t>(unit)];
    float* data = gradients_.as<float>() + u.begin;
    backend_.record(*gradients_ready_, compute_);
    backend_.wait(communication_, *gradients_ready_);
    communicator_.reduce_scatter(communication_, data, owners, {"reduce gradients", unit});
    communicator_.all_gather(communication_, data, sizeof(float), owners, {"gather gradients", unit});
}

void TrainingState::finish_gradients() {
    backend_.record(*sums_ready_, communication_);
    backend_.wait(compute_, *sums_ready_);
}

Interval TrainingState::owned(int unit) const {
    return owners_[static_cast<std::size_t>(unit)][static_cast<std::size_t>(communicator_.rank())];
}

void TrainingState::sum_squares(double* squares) {
    backend_.zero(compute_, squares, static_cast<std::size_t>(layout_.unit_count()) * sizeof(double));
    for (int u = 0; u < layout_.unit_count(); ++u) {
        const Interval mine = owned(u);
        if (!mine.empty())
            backend_.sum_squares(compute_, squares + u, gradients_.as<float>() + layout_.unit(u).begin + mine.begin, mine.size());
    }
}

void TrainingState::update(const AdamWStep& step) {
    for (const FlatUnit& u : layout_.units()) {
        // consecutive parameters with the same decay go in one call; the padding between them has zero gradients and moments
        for (std::size_t first = 0; first < u.parameters.size();) {
            const bool decays = u.parameters[first].spec.decays();
            std::size_t last = first + 1;
            while (last < u.parameters.size() && u.parameters[last].spec.decays() == decays) ++last;
            const std::int64_t begin = u.begin + u.parameters[first].begin;
            const std::int64_t end = u.begin + u.parameters[last - 1].interval().end;
            AdamWStep s = step;
            if (!decays) s.weight_decay = 0;
            const Tensor weights = type_ == DType::f32 ? Tensor{}
                                                       : Tensor{static_cast<unsigned char*>(low_weights_.data()) + bytes_of(begin, type_),
                                                                type_, 1, end - begin};
            backend_.adamw(compute_, s, master_.as<float>() + begin, exp_avg_.as<float>() + begin, exp_avg_sq_.as<float>() + begin,
                           gradients_.as<float>() + begin, weights, end - begin);
            first = last;
        }
    }
}

float* TrainingState::flat(StateKind kind, int unit) const {
    const DeviceMemory& memory = kind == StateKind::master ? master_ : kind == StateKind::exp_avg ? exp_avg_ : exp_avg_sq_;
    return memory.as<float>() + layout_.unit(unit).begin;
}

void TrainingState::load(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, const float* values) {
    const std::int64_t at = layout_.at(place).begin + begin;
    backend_.copy_to_device(compute_, flat(kind, place.unit) + at, values, bytes_of(count, DType::f32));
    backend_.synchronize(compute_);
}

void TrainingState::load(ParameterPlace place, std::int64_t begin, std::int64_t count, const float* values) {
    if (master_.data() != nullptr) return load(StateKind::master, place, begin, count, values);
    auto* base =
        static_cast<unsigned char*>(low_weights_.data()) + bytes_of(layout_.unit(place.unit).begin + layout_.at(place).begin, type_);
    for (std::int64_t at = 0; at < count; at += staging_elements) {
        const std::int64_t n = std::min(staging_elements, count - at);
        backend_.copy_to_device(compute_, staging_.data(), values + at, bytes_of(n, DType::f32));
        backend_.cast(compute_, {base + bytes_of(begin + at, type_), type_, 1, n}, {staging_.data(), DType::f32, 1, n});
    }
    backend_.synchronize(compute_);
}

void TrainingState::weights_loaded() {
    if (type_ == DType::f32 || master_.data() == nullptr) return;
    backend_.cast(compute_, {low_weights_.data(), type_, 1, layout_.elements()}, {master_.data(), DType::f32, 1, layout_.elements()});
    backend_.synchronize(compute_);
}

void TrainingState::read(StateKind kind, ParameterPlace place, std::int64_t begin, std::int64_t count, float* values) {
    backend_.copy_to_host(compute_, values, flat(kind, place.unit) + layout_.at(place).begin + begin, bytes_of(count, DType::f32));
    backend_.synchronize(compute_);
}

void TrainingState::read_gradient(ParameterPlace place, std::int64_t begin, std::int64_t count, float* values) {
    backend_.copy_to_host(compute_, values, gradients_.as<float>() + layout_.unit(place.unit).begin + layout_.at(place).begin + begin,
                          bytes_of(count, DType::f32));
    backend_.synchronize(compute_);
}

}  // namespace sherd
