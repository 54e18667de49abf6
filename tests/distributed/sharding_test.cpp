/// Every plan over real ranks: the same gradients and weights as without sharding, the same bits where sums are taken in the same order,
/// and on the wire the bytes that were planned.
#include "train/batch.hpp"
#include "world.hpp"

#include "sherd/model/decoder.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/sharding/training_state.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace sherd::tests {
namespace {

using enum Placement;
using Floats = std::vector<float>;

ModelConfig model_of(bool tied) {
    ModelConfig c;
    c.architecture = "LlamaForCausalLM";
    c.vocabulary = 61;
    c.hidden = 20;
    c.intermediate = 28;
    c.layers = 3;
    c.heads = 2;
    c.kv_heads = 1;
    c.head_dim = 10;
    c.max_positions = 16;
    c.tied = tied;
    c.windows.assign(static_cast<std::size_t>(c.layers), 0);
    return c;
}

struct Case {
    ShardPlan plan;
    std::int64_t node_size = 0;
    std::vector<double> shares{};
    int micro_steps = 1;
    bool tied = false;
    ShardOptions options{};
    StreamOrder order = StreamOrder::as_enqueued;
    DType type = DType::f32;

    std::string text() const {
        return fmt::format("{}, node_size {}, shares {}, {} micro-steps{}{}{}", describe(plan), node_size, ::testing::PrintToString(shares),
                           micro_steps, tied ? ", tied" : "", options.prefetch ? "" : ", no prefetch",
                           options.keep_gathered ? ", kept gathered" : "");
    }
};

/// Whole tensors, by parameter, on every rank.
struct Outcome {
    std::vector<Floats> first_gradients;     ///< of step 1
    std::vector<Floats> gradients, masters;  ///< of step 2, after it
    double norm = 0;                         ///< of step 2
};

/// Documents of a micro-step on a rank: of different lengths, and none for the last rank in the last micro-step.
std::vector<Document> documents_of(int rank, int ranks, int micro, int micro_steps) {
    std::vector<Document> all;
    if (ranks > 1 && rank == ranks - 1 && micro == micro_steps - 1) return all;
    std::mt19937 random(static_cast<unsigned>(97 * rank + micro + 1));
    for (int i = 0; i < 1 + (rank + micro) % 2; ++i) {
        Document d{i, {}, {}};
        for (int t = 0; t < 3 + (2 * rank + 3 * micro + i) % 6; ++t) {
            d.tokens.push_back(static_cast<std::int32_t>(random() % 61));
            d.is_target.push_back(t > 0);
        }
        all.push_back(std::move(d));
    }
    return all;
}

Floats initial_values(const FlatParameter& p, ParameterPlace place) {
    std::mt19937 random(static_cast<unsigned>(1000 * place.unit + place.parameter));
    std::normal_distribution<float> normal(p.spec.shape.size() == 1 ? 1.0f : 0.0f, 0.2f);
    Floats values(static_cast<std::size_t>(p.elements));
    for (float& x : values) x = normal(random);
    return values;
}

class Job {
  public:
    explicit Job(const Case& c)
        : case_(c),
          ranks_(session().topology().hosts.size()),
          groups_(make_groups(std::vector<int>(ranks_, 0), c.node_size, c.shares, c.plan)),
          backend_(make_cpu_backend(1, c.order)),
          world_(session().world(*backend_, groups_.nodes)),
          config_(model_of(c.tied)),
          layout_(parameter_units(config_)),
          compute_(backend_->make_stream("compute")),
          communication_(backend_->make_stream("communication")),
          state_(layout_, *backend_, *world_, *compute_, *communication_, c.type, TrainingState::Purpose::training, c.plan, groups_,
                 c.options),
          buffers_(*backend_, *compute_, *compute_, 32),
          decoder_(config_, *backend_, *compute_, state_, c.type, DecoderLimits{32, 16, true}),
          sums_(*backend_, 16 * sizeof(double), "sums") {
        for (const ParameterPlace place : layout_.places()) {
            const Floats values = initial_values(layout_.at(place), place);
            state_.load(StateKind::master, place, 0, static_cast<std::int64_t>(values.size()), values.data());
        }
        state_.weights_loaded();
        for (int m = 0; m < c.micro_steps; ++m) batches_.push_back(pack(documents_of(world_->rank(), world_->size(), m, c.micro_steps)));
    }

    /// Waits for no more than training does. epsilon is large: near 0, AdamW would blow up the last bit of a sum.
    void step(int t) {
        backend_->zero(*compute_, sums_.data(), sums_.bytes());
        state_.begin_step();
        for (std::size_t m = 0; m < batches_.size(); ++m) {
            state_.begin_micro_step(m + 1 == batches_.size());
            decoder_.train(buffers_.upload(batches_[m]), 0.01f, sums_.as<double>());
        }
        state_.finish_gradients();
        state_.sum_squares(sums_.as<double>() + 1);
        std::vector<double> sums(static_cast<std::size_t>(1 + layout_.unit_count()));
        backend_->copy_to_host(*compute_, sums.data(), sums_.data(), sums.size() * sizeof(double));
        backend_->synchronize(*compute_);
        all_reduce_sum(*world_, sums);
        norm_ = std::sqrt(std::accumulate(sums.begin() + 1, sums.end(), 0.0));
        state_.update({0.01, 0.9, 0.95, 1e-3, 0.1, 1 - std::pow(0.9, t), 1 - std::pow(0.95, t), 1.0});
        ++steps_;
    }

    /// The bytes on the wire must be those that were planned.
    void expect_planned_traffic() {
        backend_->synchronize(*compute_);
        backend_->synchronize(*communication_);
        const Traffic sent = world_->traffic(), planned = state_.planned_traffic(case_.micro_steps);
        for (std::size_t i = 0; i < communication_phases; ++i) {
            EXPECT_EQ(sent.bytes[i], steps_ * planned.bytes[i]) << name_of(static_cast<CommunicationPhase>(i));
            EXPECT_EQ(sent.between_nodes[i], steps_ * planned.between_nodes[i]) << name_of(static_cast<CommunicationPhase>(i));
        }
    }

    std::vector<Floats> gradients() {
        std::vector<Floats> all;
        for (const ParameterPlace place : layout_.places())
            all.push_back(whole(place, [&](std::int64_t at, std::int64_t n, float* to) { state_.read_gradient(place, at, n, to); }));
        return all;
    }
    std::vector<Floats> masters() {
        std::vector<Floats> all;
        for (const ParameterPlace place : layout_.places())
            all.push_back(
                whole(place, [&](std::int64_t at, std::int64_t n, float* to) { state_.read(StateKind::master, place, at, n, to); }));
        return all;
    }
    double norm() const { return norm_; }

  private:
    /// The owners' pieces of a parameter, put together; each element must have one owner.
    template <class Read>
    Floats whole(ParameterPlace place, Read read) {
        const FlatParameter& p = layout_.at(place);
        const Interval mine = intersect(state_.owned(place.unit), p.interval());
        Floats part(static_cast<std::size_t>(mine.size()));
        if (!mine.empty()) read(mine.begin - p.begin, mine.size(), part.data());
        Floats all(static_cast<std::size_t>(p.elements), std::nanf(""));
        std::int64_t covered = 0;
        const std::int64_t begin = mine.begin - p.begin;
        const auto begins = world_->exchange({reinterpret_cast<const char*>(&begin), sizeof begin});
        const auto parts = world_->exchange({reinterpret_cast<const char*>(part.data()), part.size() * sizeof(float)});
        for (std::size_t r = 0; r < parts.size(); ++r) {
            if (parts[r].empty()) continue;
            std::int64_t at = 0;
            std::memcpy(&at, begins[r].data(), sizeof at);
            std::memcpy(all.data() + at, parts[r].data(), parts[r].size());
            covered += static_cast<std::int64_t>(parts[r].size() / sizeof(float));
        }
        EXPECT_EQ(covered, p.elements) << p.spec.name;
        return all;
    }

    Case case_;
    std::size_t ranks_;
    ShardGroups groups_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Communicator> world_;
    ModelConfig config_;
    FlatLayout layout_;
    std::unique_ptr<Stream> compute_, communication_;
    TrainingState state_;
    BatchBuffers buffers_;
    Decoder decoder_;
    DeviceMemory sums_;
    std::vector<HostBatch> batches_;
    double norm_ = 0;
    std::uint64_t steps_ = 0;
};

enum class Between { look, nothing };

/// Looking at gradients between the steps waits for them, which may hide that something else does not.
Outcome two_steps(const Case& c, Between between = Between::look) {
    SCOPED_TRACE(c.text());
    Job job(c);
    Outcome all;
    job.step(1);
    if (between == Between::look) all.first_gradients = job.gradients();
    job.step(2);
    job.expect_planned_traffic();
    all.gradients = job.gradients();
    all.masters = job.masters();
    all.norm = job.norm();
    return all;
}

/// NaN in any place is infinitely far.
double distance(const std::vector<Floats>& a, const std::vector<Floats>& b) {
    double most = 0, largest = 0;
    for (std::size_t p = 0; p < a.size(); ++p)
        for (std::size_t i = 0; i < a[p].size(); ++i) {
            const double difference = std::abs(static_cast<double>(a[p][i]) - static_cast<double>(b[p][i]));
            most = std::isnan(difference) ? HUGE_VAL : std::max(most, difference);
            largest = std::max(largest, std::abs(static_cast<double>(b[p][i])));
        }
    return most / largest;
}
bool same_bits(const std::vector<Floats>& a, const std::vector<Floats>& b) {
    for (std::size_t p = 0; p < a.size(); ++p)
        if (std::memcmp(a[p].data(), b[p].data(), a[p].size() * sizeof(float)) != 0) return false;
    return true;
}
void expect_same_bits(const Outcome& found, const Outcome& expected, const Case& c) {
    EXPECT_TRUE(same_bits(found.first_gradients, expected.first_gradients)) << c.text();
    EXPECT_TRUE(same_bits(found.gradients, expected.gradients)) << c.text() << ": " << distance(found.gradients, expected.gradients);
    EXPECT_TRUE(same_bits(found.masters, expected.masters)) << c.text() << ": " << distance(found.masters, expected.masters);
    EXPECT_NEAR(found.norm, expected.norm, 1e-12 * expected.norm) << c.text();  // summed by other owners
}
void expect_close(const Outcome& found, const Outcome& expected, double relative, const Case& c) {
    EXPECT_LE(distance(found.first_gradients, expected.first_gradients), relative) << c.text();
    // these differ by what the rounding of the weights that they were taken at does to them, too
    EXPECT_LE(distance(found.gradients, expected.gradients), 3 * relative) << c.text();
    EXPECT_LE(distance(found.masters, expected.masters), relative) << c.text();
    EXPECT_NEAR(found.norm, expected.norm, 3 * relative * expected.norm) << c.text();
}

int world_size() {
    return static_cast<int>(session().topology().hosts.size());
}
std::vector<ShardPlan> sensible_plans() {
    std::vector<ShardPlan> all;
    for (const Placement p : {replica, node, world})
        for (const Placement g : {replica, node, world})
            for (const Placement o : {replica, node, world})
                if (p <= g && g <= o) all.push_back({p, g, o});
    return all;
}

/// Who sums what with whom first: cases of one order give the same bits, whatever else differs.
std::string order_of_sums(const Case& c) {
    const int ranks = world_size();
    const auto size = static_cast<int>(std::min<std::int64_t>(c.node_size, ranks));
    Placement g = c.plan.gradients;
    if (g == node && size == ranks) g = world;                          // one node
    if (g == node && size == 1) g = replica;                            // nodes of one
    if (g == world && (c.micro_steps == 1 || ranks == 1)) g = replica;  // one sum over all ranks either way
    return fmt::format("{} {} {} {}", name_of(g), g == node ? size : 0, c.micro_steps, c.tied);
}

/// Equal, uneven, and with zeros that leave no node empty where the plan uses nodes.
std::vector<std::vector<double>> shares_for(const Case& c) {
    std::vector<double> uneven, zeros;
    const int ranks = world_size();
    for (int r = 0; r < ranks; ++r) {
        uneven.push_back(1 + (3 * r) % 5);
        const bool may_be_0 = !c.plan.uses_nodes() || (r % c.node_size != 0 && c.node_size > 1);
        zeros.push_back(may_be_0 && r != ranks - 1 && r % 2 == (c.plan.uses_nodes() ? 1 : 0) ? 0.0 : 1.0 + r);
    }
    return {{}, uneven, zeros};
}

std::vector<Case> cases() {
    std::vector<Case> all;
    const int ranks = world_size();
    for (const ShardPlan& plan : sensible_plans()) {
        std::vector<std::int64_t> sizes{1, 2, 3, ranks};
        std::sort(sizes.begin(), sizes.end());
        sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
        std::erase_if(sizes, [&](std::int64_t s) { return s > ranks; });
        if (!plan.uses_nodes()) sizes = {ranks > 2 ? 2 : ranks};  // counts what crosses them, nothing else
        for (const std::int64_t size : sizes) {
            Case c{plan, size};
            const auto shares = shares_for(c);
            for (const int k : {1, 2, 4})
                for (const auto& given : shares) {
                    c.micro_steps = k;
                    c.shares = given;
                    c.tied = k == 2;
                    all.push_back(c);
                }
        }
    }
    return all;
}

TEST(Sharding, every_plan_gives_the_gradients_and_weights_of_none) {
    std::map<std::string, Outcome> unsharded, by_order;
    for (const Case& c : cases()) {
        const std::string batches = fmt::format("{} {}", c.micro_steps, c.tied);
        if (!unsharded.contains(batches)) {
            Case plain{plan_named("no_shard"), world_size()};
            plain.micro_steps = c.micro_steps;
            plain.tied = c.tied;
            unsharded[batches] = by_order[order_of_sums(plain)] = two_steps(plain);
        }
        const Outcome found = two_steps(c);
        expect_close(found, unsharded[batches], 1e-6, c);
        const auto [first, is_new] = by_order.try_emplace(order_of_sums(c), found);
        if (!is_new) expect_same_bits(found, first->second, c);
        if (HasFailure()) return;
    }
}

TEST(Sharding, prefetch_kept_weights_and_late_streams_change_no_bit) {
    for (const ShardPlan& plan : sensible_plans()) {
        Case c{plan, 2};
        c.micro_steps = 2;
        c.tied = plan.optimizer == node;
        const Outcome expected = two_steps(c, Between::nothing);
        Case changed = c;
        changed.options.prefetch = false;
        expect_same_bits(two_steps(changed, Between::nothing), expected, changed);
        changed = c;
        changed.options.keep_gathered = true;
        expect_same_bits(two_steps(changed, Between::nothing), expected, changed);
        changed.order = StreamOrder::delayed;
        expect_same_bits(two_steps(changed, Between::nothing), expected, changed);
        changed = c;
        changed.order = StreamOrder::delayed;
        expect_same_bits(two_steps(changed, Between::nothing), expected, changed);
        if (HasFailure()) return;
    }
}

TEST(Sharding, bf16_weights_agree_over_plans) {
    Case plain{plan_named("no_shard"), 2};
    plain.type = DType::bf16;
    const Outcome expected = two_steps(plain);
    for (const ShardPlan& plan : sensible_plans()) {
        Case c = plain;
        c.plan = plan;
        const Outcome found = two_steps(c);
        // where a sum differs in its last bit, a weight may round the other way
        if (order_of_sums(c) == order_of_sums(plain))
            expect_same_bits(found, expected, c);
        else
            expect_close(found, expected, 2e-3, c);
    }
}

TEST(Sharding, gradients_rounded_on_the_way) {
    for (const ShardPlan& plan : sensible_plans())
        for (const DType reduce : {DType::bf16, DType::f16}) {
            Case c{plan, 2};
            c.micro_steps = 2;
            const Outcome exact = two_steps(c);
            c.options.reduce = reduce;
            const Outcome rounded = two_steps(c);
            expect_close(rounded, exact, 1e-2, c);
            // more than one rank rounds what it sends, so it must show
            EXPECT_TRUE(world_size() == 1 || distance(rounded.gradients, exact.gradients) > 1e-6) << c.text();
        }
}

TEST(Sharding, gradients_kept_in_bf16) {
    for (const ShardPlan& plan : sensible_plans()) {
        Case c{plan, 2};
        c.micro_steps = 3;
        const Outcome exact = two_steps(c);
        c.options.gradients = DType::bf16;
        const Outcome rounded = two_steps(c);
        expect_close(rounded, exact, 1e-2, c);
        EXPECT_GT(distance(rounded.gradients, exact.gradients), 1e-6) << c.text();
        c.order = StreamOrder::delayed;
        expect_same_bits(two_steps(c), rounded, c);
    }
}

}  // namespace
}  // namespace sherd::tests
