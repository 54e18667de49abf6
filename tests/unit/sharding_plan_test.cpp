/// Rows of the table of strategies, their names, and the groups of ranks they are laid over.
#include "sherd/runtime/error.hpp"
#include "sherd/sharding/shard_plan.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

namespace sherd {
namespace {

using enum Placement;

template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (const UsageError& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::usage);
        return error.what();
    }
    return "not refused";
}
void expect_told(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

TEST(ShardPlan, names_and_aliases_mean_their_rows) {
    const struct {
        const char* name;
        ShardPlan plan;
    } expected[] = {
        {"no_shard", {replica, replica, replica}},
        {"ddp", {replica, replica, replica}},
        {"shard_opt", {replica, replica, world}},
        {"zero1", {replica, replica, world}},
        {"shard_grad_op", {replica, world, world}},
        {"zero2", {replica, world, world}},
        {"full_shard", {world, world, world}},
        {"zero3", {world, world, world}},
        {"fsdp", {world, world, world}},
        {"hybrid_shard", {node, node, node}},
        {"hsdp", {node, node, node}},
        {"mics", {node, node, node}},
        {"hierarchical_shard", {node, node, world}},
        {"hfsdp", {node, node, world}},
    };
    std::size_t known = 0;
    for (const NamedStrategy& s : named_strategies()) known += 1 + s.aliases.size();
    EXPECT_EQ(known, std::size(expected));
    for (const auto& [name, plan] : expected) EXPECT_EQ(plan_named(name), plan) << name;
}

TEST(ShardPlan, unknown_name_lists_the_known_ones) {
    const std::string told = refusal([] { plan_named("zero4"); });
    expect_told(told, {"'zero4'", "no_shard, ddp", "shard_opt, zero1", "shard_grad_op, zero2", "full_shard, zero3, fsdp",
                       "hybrid_shard, hsdp, mics", "hierarchical_shard, hfsdp"});
}

TEST(ShardPlan, description_of_a_named_row_is_its_name_and_reads_back) {
    std::set<std::string> seen;
    for (const NamedStrategy& s : named_strategies()) {
        EXPECT_EQ(describe(s.plan), s.name);
        EXPECT_EQ(plan_named(describe(s.plan)), s.plan);
        EXPECT_TRUE(seen.insert(describe(s.plan)).second) << s.name;
    }
    EXPECT_EQ(describe({replica, node, world}), "parameters=replica, gradients=node, optimizer=world");
}

TEST(ShardPlan, ten_rows_make_sense_and_the_others_are_refused_with_the_reason) {
    int accepted = 0;
    for (const Placement p : {replica, node, world})
        for (const Placement g : {replica, node, world})
            for (const Placement o : {replica, node, world}) {
                const ShardPlan plan{p, g, o};
                const std::string told = refusal([&] { check_plan(plan); });
                SCOPED_TRACE(describe(plan) + ": " + told);
                if (p <= g && g <= o) {
                    EXPECT_EQ(told, "not refused");
                    ++accepted;
                } else if (p > g) {
                    expect_told(told, {"sharding.parameters = ", "sharding.gradients = ", name_of(p).data(), name_of(g).data(),
                                       "makes no sense", "split gradients at least as finely"});
                } else {
                    expect_told(told, {"sharding.gradients = ", "sharding.optimizer = ", name_of(g).data(), name_of(o).data(),
                                       "makes no sense", "split the optimizer at least as finely"});
                }
                EXPECT_EQ(plan.uses_nodes(), p == node || g == node || o == node);
            }
    EXPECT_EQ(accepted, 10);
}

TEST(ShardGroups, nodes_as_found_or_by_size) {
    const ShardPlan plan = plan_named("hierarchical_shard");
    const ShardGroups found = make_groups({0, 1, 0, 1}, 0, {}, plan);
    EXPECT_EQ(found.nodes, (std::vector<int>{0, 1, 0, 1}));
    EXPECT_EQ(found.shares, (std::vector<double>{1, 1, 1, 1}));
    EXPECT_EQ(found.ranks_of(1), (std::vector<int>{1, 3}));
    EXPECT_TRUE(found.aligned());

    const ShardGroups pairs = make_groups({0, 0, 0, 0, 0}, 2, {}, plan);
    EXPECT_EQ(pairs.nodes, (std::vector<int>{0, 0, 1, 1, 2}));
    EXPECT_EQ(pairs.node_count(), 3);
    EXPECT_EQ(pairs.ranks_of(2), (std::vector<int>{4}));
    EXPECT_FALSE(pairs.aligned());

    EXPECT_EQ(make_groups({0, 0, 1}, 8, {}, plan).node_count(), 1);
    EXPECT_EQ(make_groups({0, 0, 1}, 1, {}, plan).node_count(), 3);
    EXPECT_TRUE(make_groups({0, 0, 0, 0}, 2, {1, 3, 1, 3}, plan).aligned());
    EXPECT_FALSE(make_groups({0, 0, 0, 0}, 2, {1, 3, 3, 1}, plan).aligned());
}

TEST(ShardGroups, shares_that_fit_no_rank_are_refused) {
    const std::vector<int> four{0, 0, 0, 0};
    const ShardPlan full = plan_named("full_shard"), hybrid = plan_named("hybrid_shard");
    expect_told(refusal([&] { make_groups(four, 0, {1, 2, 1}, full); }), {"sharding.shares lists 3 values for 4 ranks", "one per rank"});
    expect_told(refusal([&] { make_groups(four, 0, {1, -2, 1, 1}, full); }), {"sharding.shares", "negative"});
    expect_told(refusal([&] { make_groups(four, 0, {0, 0, 0, 0}, full); }), {"sharding.shares are all 0", "nobody"});
    expect_told(refusal([&] { make_groups(four, 2, {1, 1, 0, 0}, hybrid); }), {"all 0 on node 1", "ranks 2 to 3", "hybrid_shard"});
    EXPECT_NO_THROW(make_groups(four, 2, {1, 1, 0, 0}, full));  // no state is kept by node
    EXPECT_NO_THROW(make_groups(four, 2, {0, 1, 2, 0}, hybrid));
    for (const double odd : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
        expect_told(refusal([&] { make_groups(four, 0, {1, odd, 1, 1}, full); }), {"sharding.shares"});
}

}  // namespace
}  // namespace sherd
