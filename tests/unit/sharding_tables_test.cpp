/// Who holds what: properties of the tables of every plan over random groups, shares and sizes.
#include "sharding_testing.hpp"

#include "sherd/sharding/shard_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sherd {
namespace {

using enum Placement;

/// How many of these ranks hold each block of flat_alignment elements; bounds must lie between blocks.
std::vector<int> holders(const IntervalTable& table, const std::vector<int>& ranks, std::int64_t n) {
    std::vector<int> count(static_cast<std::size_t>(n / flat_alignment), 0);
    for (const int r : ranks) {
        const Interval held = table[static_cast<std::size_t>(r)];
        EXPECT_TRUE(0 <= held.begin && held.begin <= held.end && held.end <= n) << "rank " << r;
        EXPECT_EQ(held.begin % flat_alignment, 0) << "rank " << r;
        EXPECT_EQ(held.end % flat_alignment, 0) << "rank " << r;
        for (std::int64_t b = held.begin / flat_alignment; b < held.end / flat_alignment; ++b) ++count[static_cast<std::size_t>(b)];
    }
    return count;
}
void expect_once(const IntervalTable& table, const std::vector<int>& ranks, std::int64_t n, const char* what) {
    for (const int held : holders(table, ranks, n)) ASSERT_EQ(held, 1) << what << ": every element has one holder in a group";
}

std::vector<int> all_ranks(const ShardGroups& groups) {
    std::vector<int> all;
    for (int r = 0; r < groups.size(); ++r) all.push_back(r);
    return all;
}

bool within(Interval inner, Interval outer) {
    return inner.empty() || (outer.begin <= inner.begin && inner.end <= outer.end);
}

/// Every group that a state is split over holds all of it once; replicas hold all of it each.
void expect_state(Placement placement, const IntervalTable& table, const ShardGroups& groups, std::int64_t n, const char* what) {
    ASSERT_EQ(table.size(), groups.nodes.size());
    switch (placement) {
        case replica:
            for (const Interval& held : table) EXPECT_EQ(held, (Interval{0, n})) << what;
            return;
        case node:
            for (int i = 0; i < groups.node_count(); ++i) expect_once(table, groups.ranks_of(i), n, what);
            break;
        case world:
            expect_once(table, all_ranks(groups), n, what);
            break;
    }
    for (std::size_t r = 0; r < table.size(); ++r)
        EXPECT_TRUE(groups.shares[r] > 0 || table[r].empty()) << what << ": rank " << r << " has no share";
}

/// A rank's part is its share of its group's, to a block.
void expect_proportions(Placement placement, const IntervalTable& table, const ShardGroups& groups, std::int64_t n) {
    if (placement == replica) return;
    const double blocks = static_cast<double>(n / flat_alignment);
    for (std::size_t r = 0; r < table.size(); ++r) {
        double whole = 0;
        for (std::size_t q = 0; q < table.size(); ++q)
            if (placement == world || groups.nodes[q] == groups.nodes[r]) whole += groups.shares[q];
        const double mine = static_cast<double>(table[r].size() / flat_alignment);
        // split twice, over ranks of a node and over nodes, where groups are aligned
        EXPECT_NEAR(mine, groups.shares[r] / whole * blocks, 2 + 1e-9) << "rank " << r;
    }
}

/// Nodes of equal or unequal sizes, ranks in any order, shares of which some are 0, but none everywhere on a node.
ShardGroups random_groups(std::mt19937& random) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int nodes = 1 + below(4), size = 1 + below(4);
    const bool equal = below(2) == 0;
    ShardGroups groups;
    std::vector<double> pattern;
    for (int i = 0; i < nodes; ++i) {
        const int here = equal ? size : 1 + below(4);
        if (!equal || i == 0) {
            pattern.clear();
            for (int l = 0; l < here; ++l) pattern.push_back(below(3) == 0 ? 0.0 : 1 + below(50) / 7.0);
            pattern[static_cast<std::size_t>(below(here))] = 1.5;
        }
        for (int l = 0; l < here; ++l) {
            groups.nodes.push_back(i);
            groups.shares.push_back(pattern[static_cast<std::size_t>(l)]);
        }
    }
    if (equal && below(2) == 0)  // numbered across nodes, as some launchers do
        for (std::size_t r = 0; r < groups.nodes.size(); ++r) {
            groups.nodes[r] = static_cast<int>(r) % nodes;
            groups.shares[r] = pattern[r / static_cast<std::size_t>(nodes)];
        }
    return groups;
}

TEST(ShardTables, every_plan_covers_each_state_once_in_each_group) {
    std::mt19937 random(11);
    for (int round = 0; round < 400 && !::testing::Test::HasFailure(); ++round) {
        const ShardGroups groups = random_groups(random);
        // often fewer blocks than ranks
        const std::int64_t n = flat_alignment * static_cast<std::int64_t>(1 + random() % (round % 3 == 0 ? 6 : 500));
        for (const ShardPlan& plan : tests::sensible_plans()) {
            SCOPED_TRACE(::testing::Message() << describe(plan) << ", n " << n << ", nodes " << ::testing::PrintToString(groups.nodes)
                                              << ", shares " << ::testing::PrintToString(groups.shares));
            const UnitTables t = make_tables(plan, groups, n);
            expect_state(plan.parameters, t.parameters, groups, n, "parameters");
            expect_state(plan.gradients, t.gradients, groups, n, "gradients");
            expect_state(plan.optimizer, t.optimizer, groups, n, "optimizer");
            expect_once(t.written, all_ranks(groups), n, "written");
            for (std::size_t r = 0; r < t.written.size(); ++r) EXPECT_TRUE(within(t.written[r], t.optimizer[r])) << "rank " << r;
            expect_proportions(plan.parameters, t.parameters, groups, n);
            expect_proportions(plan.optimizer, t.optimizer, groups, n);
        }
    }
}

TEST(ShardTables, world_lies_within_node_where_groups_are_aligned) {
    std::mt19937 random(12);
    int aligned = 0;
    for (int round = 0; round < 400; ++round) {
        const ShardGroups groups = random_groups(random);
        if (!groups.aligned()) continue;
        ++aligned;
        const std::int64_t n = flat_alignment * static_cast<std::int64_t>(1 + random() % 200);
        const UnitTables t = make_tables(plan_named("hierarchical_shard"), groups, n);
        for (std::size_t r = 0; r < groups.nodes.size(); ++r)
            EXPECT_TRUE(within(t.optimizer[r], t.gradients[r]) && within(t.optimizer[r], t.parameters[r])) << "rank " << r;
        // so a movement between the two stays among ranks of one local number
        for (int a = 0; a < groups.size(); ++a)
            for (int b = 0; b < groups.size(); ++b) {
                const auto local = [&](int rank) {
                    const auto ranks = groups.ranks_of(groups.nodes[static_cast<std::size_t>(rank)]);
                    return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
                };
                if (local(a) == local(b)) continue;
                EXPECT_TRUE(intersect(t.gradients[static_cast<std::size_t>(a)], t.optimizer[static_cast<std::size_t>(b)]).empty());
            }
        if (HasFailure()) return;
    }
    EXPECT_GT(aligned, 100);
}

TEST(ShardTables, examples_by_hand) {
    constexpr std::int64_t b = flat_alignment;
    const ShardGroups four = make_groups({0, 0, 0, 0}, 2, {}, {});
    const UnitTables h = make_tables(plan_named("hierarchical_shard"), four, 8 * b);
    EXPECT_EQ(h.parameters, (IntervalTable{{0, 4 * b}, {4 * b, 8 * b}, {0, 4 * b}, {4 * b, 8 * b}}));
    EXPECT_EQ(h.gradients, h.parameters);
    EXPECT_EQ(h.optimizer, (IntervalTable{{0, 2 * b}, {4 * b, 6 * b}, {2 * b, 4 * b}, {6 * b, 8 * b}}));
    EXPECT_EQ(h.written, h.optimizer);
    const UnitTables f = make_tables(plan_named("full_shard"), make_groups({0, 0, 0, 0}, 0, {1, 0, 4, 3}, {}), 8 * b);
    EXPECT_EQ(f.parameters, (IntervalTable{{0, b}, {b, b}, {b, 5 * b}, {5 * b, 8 * b}}));
    const UnitTables d = make_tables(plan_named("no_shard"), four, 8 * b);
    EXPECT_EQ(d.optimizer, IntervalTable(4, Interval{0, 8 * b}));
    EXPECT_EQ(d.written, (IntervalTable{{0, 2 * b}, {2 * b, 4 * b}, {4 * b, 6 * b}, {6 * b, 8 * b}}));
    // nodes of 2 and 1 ranks: each node's part of the writing is by its number of ranks
    const UnitTables y = make_tables(plan_named("hybrid_shard"), make_groups({0, 0, 0}, 2, {}, {}), 6 * b);
    EXPECT_EQ(y.optimizer, (IntervalTable{{0, 3 * b}, {3 * b, 6 * b}, {0, 6 * b}}));
    EXPECT_EQ(y.written, (IntervalTable{{0, 3 * b}, {3 * b, 4 * b}, {4 * b, 6 * b}}));
}

TEST(ShardTables, more_ranks_than_blocks) {
    const UnitTables t = make_tables(plan_named("full_shard"), make_groups({0, 0, 0, 0, 0, 0, 0}, 0, {}, {}), 2 * flat_alignment);
    EXPECT_EQ(std::count_if(t.parameters.begin(), t.parameters.end(), [](Interval i) { return !i.empty(); }), 2);
}

}  // namespace
}  // namespace sherd
