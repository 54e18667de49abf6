/// What a rank holds, against closed forms and against what the device was asked for; and that a run allocates nothing later.
#include "sharding_testing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace sherd::tests {
namespace {

using enum Placement;
using Purpose = TrainingState::Purpose;

std::vector<StateClass> classes_of(const DryRun& run, const FlatLayout& layout, int rank, Purpose purpose = Purpose::training) {
    return TrainingState::classes(layout, run.type, purpose, run.plan, run.groups, run.options, rank);
}

/// Bytes by the name before " (where)"; 0 where there is no such class.
std::map<std::string, std::int64_t> by_name(const std::vector<StateClass>& classes) {
    std::map<std::string, std::int64_t> all;
    for (const StateClass& c : classes) all[c.name.substr(0, c.name.find(" ("))] += static_cast<std::int64_t>(c.bytes);
    return all;
}

/// The largest block twice and the largest of the units around them.
std::int64_t slots(const FlatLayout& layout) {
    std::int64_t block = 0, outer = 0;
    for (const FlatUnit& u : layout.units()) (u.outer ? outer : block) = std::max(u.outer ? outer : block, u.elements);
    return 2 * block + outer;
}

struct Expected {
    const char* name;
    // bytes = sharded * P / R + whole * P + gathered * (units' buffers)
    std::int64_t sharded, whole, gathered;
};

/// fp32 on R equal ranks: weights, moments and gradients 4 bytes each; masters are the weights, unless only the optimizer is split finer.
TEST(Memory, of_named_strategies_in_fp32) {
    // many blocks of flat_alignment divide by 4 in every unit, so that parts are exact
    ModelConfig model = small_model(false, 3);
    model.vocabulary = model.hidden = model.intermediate = 64;
    model.heads = model.kv_heads = 2;
    model.head_dim = 32;
    constexpr int ranks = 4;
    const Expected expected[] = {
        {"no_shard", 0, 16, 0},       // weights, two moments, gradients
        {"shard_opt", 8, 8, 0},       // whole weights and gradients
        {"shard_grad_op", 12, 4, 4},  // whole weights; gradients pass through buffers
        {"full_shard", 16, 0, 8},     // weights pass through buffers too
    };
    for (const auto& [name, sharded, whole, gathered] : expected) {
        const DryRun run{model, plan_named(name), make_groups(std::vector<int>(ranks, 0), 0, {}, {})};
        const FlatLayout layout(parameter_units(model));
        std::int64_t total = 0;
        for (int rank = 0; rank < ranks; ++rank)
            for (const StateClass& c : classes_of(run, layout, rank)) total += static_cast<std::int64_t>(c.bytes);
        EXPECT_EQ(total, sharded * layout.elements() + ranks * (whole * layout.elements() + gathered * slots(layout))) << name;
    }
    // two nodes of two ranks: hierarchical holds weights and gradients by node, moments by world
    for (const auto& [name, node_bytes, world_bytes] : {std::tuple{"hybrid_shard", 16, 0}, {"hierarchical_shard", 8, 8}}) {
        const DryRun run{model, plan_named(name), make_groups(std::vector<int>(ranks, 0), 2, {}, plan_named(name))};
        const FlatLayout layout(parameter_units(model));
        for (int rank = 0; rank < ranks; ++rank) {
            const auto classes = by_name(classes_of(run, layout, rank));
            const std::int64_t total = std::accumulate(classes.begin(), classes.end(), std::int64_t{0},
                                                       [](std::int64_t sum, const auto& c) { return sum + c.second; });
            // a block of 128 elements a unit, table and level may fall to the one rank or the other
            EXPECT_NEAR(static_cast<double>(total),
                        static_cast<double>(node_bytes * layout.elements() / 2 + world_bytes * layout.elements() / 4 + 8 * slots(layout)),
                        16.0 * 128 * 5)
                << name << " rank " << rank;
        }
    }
}

/// Of all ranks together, each class is so many whole copies, whatever the shares.
TEST(Memory, of_every_plan_adds_up_to_whole_copies) {
    for (const DType type : {DType::f32, DType::bf16})
        for (const ShardPlan& plan : sensible_plans())
            for (const std::vector<double>& shares : {std::vector<double>{}, {3, 0, 1, 0, 2}}) {
                const DryRun run{small_model(true, 2), plan, make_groups({0, 0, 0, 0, 0}, 3, shares, plan), {}, type};
                SCOPED_TRACE(describe(plan) + " " + std::string(name_of(type)));
                const FlatLayout layout(parameter_units(run.model));
                const auto copies = [&](Placement placement) { return placement == replica ? 5 : placement == node ? 2 : 1; };
                std::map<std::string, std::int64_t> all;
                for (int rank = 0; rank < 5; ++rank)
                    for (const auto& [name, bytes] : by_name(classes_of(run, layout, rank))) all[name] += bytes;
                const std::int64_t p = layout.elements(), element = type == DType::f32 ? 4 : 2;
                EXPECT_EQ(all["weights"], copies(plan.parameters) * element * p);
                EXPECT_EQ(all["exp_avg"], copies(plan.optimizer) * 4 * p);
                EXPECT_EQ(all["exp_avg_sq"], copies(plan.optimizer) * 4 * p);
                EXPECT_EQ(all["gradients"], copies(plan.gradients) * 4 * p);
                EXPECT_EQ(all["gathered units"], plan.parameters == replica ? 0 : 5 * element * slots(layout));
                EXPECT_EQ(all["gradients of units"], plan.gradients == replica ? 0 : 5 * 4 * slots(layout));
                const std::int64_t masters = type == DType::bf16 ? copies(plan.optimizer) * 4 * p : 0;
                // fp32 masters are the weights, but where these unequal nodes cut them elsewhere than the world
                EXPECT_TRUE(all["master weights"] == masters || (plan.parameters == node && plan.optimizer == world))
                    << all["master weights"];
                EXPECT_EQ(all["staging of weights"], type == DType::f32 ? 0 : 5 << 22);
            }
}

TEST(Memory, of_kept_weights_and_of_evaluation) {
    DryRun run{small_model(false, 4), plan_named("full_shard"), make_groups({0, 0}, 0, {}, {}), {true}};
    const FlatLayout layout(parameter_units(run.model));
    EXPECT_EQ(by_name(classes_of(run, layout, 0))["gathered units"], 4 * layout.elements());
    run.options.keep_gathered = false;
    auto evaluation = by_name(classes_of(run, layout, 1, Purpose::evaluation));
    EXPECT_EQ(evaluation["gathered units"], 4 * slots(layout));
    EXPECT_EQ(evaluation.size(), 2u);
    EXPECT_GT(evaluation["weights"], 0);
}

/// The table is what the device is asked for, but for a minimum of 256 bytes where a rank holds nothing; and steps ask for nothing.
TEST(Memory, is_allocated_as_planned_and_only_at_the_start) {
    const std::map<std::string, std::string> purposes{{"weights", "weights"},
                                                      {"gathered units", "gathered weights"},
                                                      {"master weights", "master weights"},
                                                      {"exp_avg", "exp_avg"},
                                                      {"exp_avg_sq", "exp_avg_sq"},
                                                      {"gradients", "gradients"},
                                                      {"summed gradients", "summed gradients"},
                                                      {"gradients of units", "gradients of a unit"},
                                                      {"outgoing weights", "outgoing weights"},
                                                      {"staging of weights", "staging of weights"}};
    for (const DType type : {DType::f32, DType::bf16})
        for (const ShardPlan& plan : sensible_plans())
            for (const auto& [ranks, size] : {std::pair{1, 1}, {3, 2}, {4, 2}}) {
                std::vector<double> shares(static_cast<std::size_t>(ranks), 1.0);
                if (ranks == 4) shares[1] = 0;
                const DryRun run{small_model(ranks == 3, 2),
                                 plan,
                                 make_groups(std::vector<int>(shares.size(), 0), size, shares, plan),
                                 {.gradients = ranks == 3 ? DType::bf16 : DType::f32},
                                 type};
                const FlatLayout layout(parameter_units(run.model));
                for (int rank = 0; rank < ranks; ++rank) {
                    SCOPED_TRACE(::testing::Message() << describe(plan) << " " << name_of(type) << " rank " << rank << " of " << ranks);
                    DryRank one(run, rank);
                    std::map<std::string, std::int64_t> asked;
                    for (const auto& [name, bytes] : one.state_bytes)
                        if (bytes > 256) asked[name] += static_cast<std::int64_t>(bytes);
                    std::map<std::string, std::int64_t> planned;
                    for (const auto& [name, bytes] : by_name(classes_of(run, layout, rank))) planned[purposes.at(name)] += bytes;
                    EXPECT_EQ(asked, planned);
                    const int before = one.allocated.count;
                    one.step(2);
                    one.step(1);
                    EXPECT_EQ(one.allocated.count, before);
                }
            }
}

}  // namespace
}  // namespace sherd::tests
