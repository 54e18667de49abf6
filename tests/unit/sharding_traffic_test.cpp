/// What a step sends, against closed forms: a counting communicator under a decoder, and the plan made before anything runs.
#include "sharding_testing.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sherd::tests {
namespace {

using enum Placement;
using Phase = CommunicationPhase;

TEST(SentBytes, counts_what_others_want_of_mine) {
    // rank 0 holds [0, 10), rank 1 [10, 30), rank 2 nothing; wanted: [0, 30), [5, 12), [8, 30); ranks 0 and 1 on one node
    const Redistribution m{Redistribution::Mode::copy, DType::bf16, DType::bf16, nullptr, nullptr, {{0, 10}, {10, 30}, {30, 30}},
                           {{0, 30}, {5, 12}, {8, 30}}};
    EXPECT_EQ(sent_bytes(m, 0, {0, 0, 1}), (std::pair<std::uint64_t, std::uint64_t>{2 * (5 + 2), 2 * 2}));
    EXPECT_EQ(sent_bytes(m, 1, {0, 0, 1}), (std::pair<std::uint64_t, std::uint64_t>{2 * (20 + 20), 2 * 20}));
    EXPECT_EQ(sent_bytes(m, 2, {0, 0, 1}), (std::pair<std::uint64_t, std::uint64_t>{0, 0}));
}

/// How many whole copies of a state the ranks hold together.
std::int64_t copies(Placement placement, const ShardGroups& groups) {
    return placement == replica ? groups.size() : placement == node ? groups.node_count() : 1;
}

/// Elements that are gathered in a step by the two-buffer walk, counted from the description in docs/sharding.md: embedding and head share
/// a buffer, so each passes in and out once a micro-step (a tied outer unit stays for the whole step). Of L blocks, the last two stay from
/// forward to backward, and the first two from backward to the next micro-step.
std::int64_t gathered_elements(const FlatLayout& layout, std::int64_t k, bool keep) {
    std::int64_t outer = 0, blocks = 0;
    const bool tied = !layout.units().back().outer;
    for (const FlatUnit& u : layout.units()) (u.outer ? outer : blocks) += u.elements;
    if (keep) return outer + blocks;
    const auto count = static_cast<std::int64_t>(layout.units().size()) - (tied ? 1 : 2);
    const std::int64_t block = blocks / count;  // all are equal
    const std::int64_t passes = 2 * count - std::min<std::int64_t>(2, count);
    return outer * (tied ? 1 : k) + block * (k * passes - (k - 1) * std::min<std::int64_t>(2, count));
}

struct Bytes {
    std::int64_t gather, reduce, finish, refresh;
};

/// Sent by all ranks together, exactly, for any shares: a movement from one whole copy to `c` sends an element c - 1 times.
Bytes closed_form(const ShardPlan& plan, const ShardGroups& groups, const FlatLayout& layout, std::int64_t k, std::int64_t w,
                  std::int64_t r, bool keep) {
    const std::int64_t p = layout.elements(), ranks = groups.size();  // padding to 256 bytes travels too
    const std::int64_t cp = copies(plan.parameters, groups), cg = copies(plan.gradients, groups), co = copies(plan.optimizer, groups);
    return {w * gathered_elements(layout, k, keep) * (ranks - cp), r * k * p * (ranks - cg), (r * (cg - 1) + 4 * (co - 1)) * p,
            w * (cp - co) * p};
}

Traffic operator+(Traffic a, const Traffic& b) {
    for (std::size_t i = 0; i < communication_phases; ++i) {
        a.bytes[i] += b.bytes[i];
        a.between_nodes[i] += b.between_nodes[i];
    }
    return a;
}
std::int64_t of(const Traffic& t, Phase phase) {
    return static_cast<std::int64_t>(t.bytes[static_cast<std::size_t>(phase)]);
}
std::int64_t between(const Traffic& t, Phase phase) {
    return static_cast<std::int64_t>(t.between_nodes[static_cast<std::size_t>(phase)]);
}

/// Counted over one step by rank; checked against the plan of each rank, and equal in the second step.
std::vector<Traffic> counted(const DryRun& run, int k) {
    std::vector<Traffic> by_rank;
    for (int rank = 0; rank < run.groups.size(); ++rank) {
        DryRank one(run, rank);
        one.step(k);
        by_rank.push_back(one.counted);
        one.step(k);
        const Traffic planned = one.state.planned_traffic(k), twice = planned + planned;
        EXPECT_EQ(by_rank.back().bytes, planned.bytes) << "rank " << rank;
        EXPECT_EQ(by_rank.back().between_nodes, planned.between_nodes) << "rank " << rank;
        EXPECT_EQ(one.counted.bytes, twice.bytes) << "rank " << rank << ", second step";
    }
    return by_rank;
}

void expect_form(const DryRun& run, int k) {
    SCOPED_TRACE(::testing::Message() << describe(run.plan) << ", k " << k << ", nodes " << ::testing::PrintToString(run.groups.nodes)
                                      << ", shares " << ::testing::PrintToString(run.groups.shares) << ", " << name_of(run.type));
    Traffic all;
    for (const Traffic& t : counted(run, k)) all = all + t;
    const FlatLayout layout(parameter_units(run.model));
    const Bytes expected = closed_form(run.plan, run.groups, layout, k, static_cast<std::int64_t>(size_of(run.type)),
                                       static_cast<std::int64_t>(size_of(run.options.reduce)), run.options.keep_gathered);
    EXPECT_EQ(of(all, Phase::gather_weights), expected.gather);
    EXPECT_EQ(of(all, Phase::reduce_gradients), expected.reduce);
    EXPECT_EQ(of(all, Phase::other), 0);
    if (!run.groups.aligned() && run.plan.uses_nodes()) return;  // there, parts of node and world cross: the next test
    EXPECT_EQ(of(all, Phase::finish_gradients), expected.finish);
    EXPECT_EQ(of(all, Phase::refresh_weights), expected.refresh);
}

TEST(Traffic, of_every_plan_is_its_closed_form) {
    const std::vector<int> six(6, 0);
    for (const ShardPlan& plan : sensible_plans())
        for (const int k : {1, 2, 4})
            for (const ShardGroups& groups : {make_groups(six, 2, {}, plan), make_groups(six, 3, {2, 0, 1, 2, 0, 1}, plan)})
                expect_form({small_model(k == 2, 3), plan, groups}, k);
}

TEST(Traffic, of_other_shapes_types_and_models) {
    for (const ShardPlan& plan : sensible_plans()) {
        expect_form({small_model(true, 1), plan, make_groups({0, 0, 0}, 2, {}, plan)}, 2);
        expect_form({small_model(false, 2), plan, make_groups({0, 0, 0, 0, 0}, 0, {0, 3, 1, 1, 0.5}, plan)}, 3);
        expect_form({small_model(true, 5), plan, make_groups({0, 1, 0, 1}, 0, {}, plan), {true, true, DType::f32}}, 4);
        expect_form({small_model(false, 4), plan, make_groups({0, 0}, 1, {}, plan), {false, false, DType::bf16}, DType::bf16}, 2);
        expect_form({small_model(false, 3), plan, make_groups({0}, 0, {}, plan)}, 2);
    }
}

/// What is between nodes: every node sends each element that another node needs exactly once, whatever k and however unequal the nodes.
TEST(Traffic, crosses_nodes_once_a_step) {
    for (const char* name : {"hierarchical_shard", "hybrid_shard"})
        for (const int k : {1, 2, 4})
            for (const auto& [ranks, size] : {std::pair{6, 3}, {6, 2}, {5, 2}, {3, 2}, {7, 3}}) {
                const DryRun run{small_model(false, 3), plan_named(name),
                                 make_groups(std::vector<int>(static_cast<std::size_t>(ranks), 0), size, {}, plan_named(name))};
                SCOPED_TRACE(::testing::Message() << name << ", k " << k << ", " << ranks << " ranks, nodes of " << size);
                const std::int64_t p = FlatLayout(parameter_units(run.model)).elements(), nodes = run.groups.node_count();
                const auto by_rank = counted(run, k);
                Traffic all;
                std::vector<std::int64_t> by_node(static_cast<std::size_t>(nodes), 0);
                for (std::size_t r = 0; r < by_rank.size(); ++r) {
                    all = all + by_rank[r];
                    by_node[static_cast<std::size_t>(run.groups.nodes[r])] += static_cast<std::int64_t>(by_rank[r].total_between_nodes());
                }
                EXPECT_EQ(between(all, Phase::gather_weights), 0);
                EXPECT_EQ(between(all, Phase::reduce_gradients), 0);
                const bool hybrid = run.plan.optimizer == node;  // sums come back to every node; weights need not
                EXPECT_EQ(between(all, Phase::finish_gradients), (hybrid ? 8 : 4) * p * (nodes - 1));
                EXPECT_EQ(between(all, Phase::refresh_weights), hybrid ? 0 : 4 * p * (nodes - 1));
                if (!run.groups.aligned()) continue;
                for (const std::int64_t sent : by_node)  // (r + w) P (N - 1) / N each, to a block of 512 bytes a rank and unit
                    EXPECT_NEAR(static_cast<double>(sent), 8.0 * static_cast<double>(p * (nodes - 1)) / static_cast<double>(nodes),
                                512.0 * 2 * 5 * ranks);
            }
}

/// Rows that know nothing of nodes cross them with every rank: S times as much as a row by nodes of S ranks.
TEST(Traffic, of_rows_without_nodes_crosses_once_a_rank) {
    constexpr std::int64_t ranks = 6, size = 2, k = 3;
    for (const auto& [name, times] : {std::pair{"no_shard", 8}, {"shard_opt", 8}, {"shard_grad_op", 4 * k + 4}}) {
        const DryRun run{small_model(true, 2), plan_named(name), make_groups(std::vector<int>(ranks, 0), size, {}, plan_named(name))};
        Traffic all;
        for (const Traffic& t : counted(run, k)) all = all + t;
        const std::int64_t p = FlatLayout(parameter_units(run.model)).elements();
        EXPECT_EQ(static_cast<std::int64_t>(all.total_between_nodes()), times * p * (ranks - size)) << name;
    }
}

/// The figures users know, by rank, for equal shares: to a block of 256 bytes of a 16-bit type a unit and peer.
TEST(Traffic, of_a_rank_is_what_the_papers_say) {
    constexpr int ranks = 4, k = 3;
    const DryRun base{small_model(false, 3), {}, make_groups(std::vector<int>(ranks, 0), 0, {}, {}), {false, true, DType::bf16}};
    const FlatLayout layout(parameter_units(base.model));
    const auto p = static_cast<double>(layout.elements()), r = 2.0, w = 4.0;
    const double reused = static_cast<double>(layout.unit(1).elements) * (2 * k + 2 * (k - 1));  // by two blocks at every turn
    double outer = 0;
    for (const FlatUnit& u : layout.units()) outer += u.outer ? static_cast<double>(u.elements) : 0;
    const struct {
        const char* name;
        double bytes;
    } expected[] = {
        {"ddp", (r + 4) * p},  // the second half, sums on their way back, stays fp32
        {"zero1", (r + w) * p},
        {"zero2", (k * r + w) * p},
        // 2 w a micro-step, less the units that have no backward pass and those that are still there
        {"zero3", k * r * p + w * (2 * k * p - k * outer - reused)},
    };
    for (const auto& [name, bytes] : expected) {
        DryRun run = base;
        run.plan = plan_named(name);
        const double tolerance = 5.0 * 128 * 4 * ranks * 2 * k;
        for (const Traffic& t : counted(run, k))
            EXPECT_NEAR(static_cast<double>(t.total()), bytes * (ranks - 1) / ranks, tolerance) << name;
    }
}

}  // namespace
}  // namespace sherd::tests
