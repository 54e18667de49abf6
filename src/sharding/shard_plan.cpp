#include "sherd/sharding/shard_plan.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace sherd {

std::string_view name_of(Placement placement) noexcept {
    constexpr std::array<std::string_view, 3> names{"replica", "node", "world"};
    return names[static_cast<std::size_t>(placement)];
}

bool ShardPlan::uses_nodes() const noexcept {
    return parameters == Placement::node || gradients == Placement::node || optimizer == Placement::node;
}

const std::vector<NamedStrategy>& named_strategies() {
    using enum Placement;
    static const std::vector<NamedStrategy> table{
        {"no_shard", {"ddp"}, {replica, replica, replica}},     {"shard_opt", {"zero1"}, {replica, replica, world}},
        {"shard_grad_op", {"zero2"}, {replica, world, world}},  {"full_shard", {"zero3", "fsdp"}, {world, world, world}},
        {"hybrid_shard", {"hsdp", "mics"}, {node, node, node}}, {"hierarchical_shard", {"hfsdp"}, {node, node, world}},
    };
    return table;
}

ShardPlan plan_named(const std::string& name) {
    std::string known;
    for (const NamedStrategy& s : named_strategies()) {
        if (s.name == name || std::find(s.aliases.begin(), s.aliases.end(), name) != s.aliases.end()) return s.plan;
        known += (known.empty() ? "" : ", ") + std::string(s.name);
        for (const auto alias : s.aliases) known += ", " + std::string(alias);
    }
    throw UsageError("no sharding strategy is named '{}'; known are {}", name, known);
}

std::string describe(const ShardPlan& plan) {
    for (const NamedStrategy& s : named_strategies())
        if (s.plan == plan) return std::string(s.name);
    return fmt::format("parameters={}, gradients={}, optimizer={}", name_of(plan.parameters), name_of(plan.gradients),
                       name_of(plan.optimizer));
}

void check_plan(const ShardPlan& plan) {
    if (plan.parameters > plan.gradients)
        throw UsageError(
            "sharding.parameters = {} with sharding.gradients = {} makes no sense: a rank would keep whole gradients of parameters "
            "that it gathers piece by piece; split gradients at least as finely",
            name_of(plan.parameters), name_of(plan.gradients));
    if (plan.gradients > plan.optimizer)
        throw UsageError(
            "sharding.gradients = {} with sharding.optimizer = {} makes no sense: gradients summed into finer pieces would have to be "
            "put together again for the optimizer; split the optimizer at least as finely",
            name_of(plan.gradients), name_of(plan.optimizer));
}

int ShardGroups::node_count() const noexcept {
    return nodes.empty() ? 0 : *std::max_element(nodes.begin(), nodes.end()) + 1;
}

std::vector<int> ShardGroups::ranks_of(int node) const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r)
        if (nodes[static_cast<std::size_t>(r)] == node) ranks.push_back(r);
    return ranks;
}

bool ShardGroups::aligned() const {
    const auto shares_of = [&](int node) {
        std::vector<double> all;
        for (const int r : ranks_of(node)) all.push_back(shares[static_cast<std::size_t>(r)]);
        return all;
    };
    for (int node = 1; node < node_count(); ++node)
        if (shares_of(node) != shares_of(0)) return false;
    return true;
}

ShardGroups make_groups(const std::vector<int>& nodes_found, std::int64_t node_size, const std::vector<double>& shares,
                        const ShardPlan& plan) {
    ShardGroups groups{nodes_found, shares};
    if (node_size > 0)
        for (std::size_t r = 0; r < groups.nodes.size(); ++r) groups.nodes[r] = static_cast<int>(static_cast<std::int64_t>(r) / node_size);
    if (shares.empty()) groups.shares.assign(groups.nodes.size(), 1.0);
    if (groups.shares.size() != groups.nodes.size())
        throw UsageError("sharding.shares lists {} values for {} ranks; give one per rank", groups.shares.size(), groups.nodes.size());
    if (std::any_of(groups.shares.begin(), groups.shares.end(), [](double s) { return !(s >= 0 && std::isfinite(s)); }))
        throw UsageError("sharding.shares holds a value that is negative or no finite number");
    if (std::all_of(groups.shares.begin(), groups.shares.end(), [](double s) { return s == 0; }))
        throw UsageError("sharding.shares are all 0: nobody would hold the model's state");
    for (int node = 0; plan.uses_nodes() && node < groups.node_count(); ++node) {
        const auto ranks = groups.ranks_of(node);
        if (std::all_of(ranks.begin(), ranks.end(), [&](int r) { return groups.shares[static_cast<std::size_t>(r)] == 0; }))
            throw UsageError("sharding.shares are all 0 on node {} (ranks {} to {}), where strategy {} keeps a whole state on every node",
                             node, ranks.front(), ranks.back(), describe(plan));
    }
    return groups;
}

ShardPlan simplified(const ShardPlan& plan, const ShardGroups& groups) {
    const auto simple = [&](Placement placement) {
        if (placement == Placement::node && groups.node_count() == 1) placement = Placement::world;
        if (placement == Placement::node && groups.node_count() == groups.size()) return Placement::replica;
        return groups.size() == 1 ? Placement::replica : placement;
    };
    return {simple(plan.parameters), simple(plan.gradients), simple(plan.optimizer)};
}

namespace {

/// Per node: its ranks' intervals by their shares.
IntervalTable node_table(const ShardGroups& groups, std::int64_t n) {
    IntervalTable table(groups.nodes.size());
    for (int node = 0; node < groups.node_count(); ++node) {
        const std::vector<int> ranks = groups.ranks_of(node);
        std::vector<double> shares;
        for (const int r : ranks) shares.push_back(groups.shares[static_cast<std::size_t>(r)]);
        if (std::all_of(shares.begin(), shares.end(), [](double s) { return s == 0; })) continue;  // the plan does not use nodes
        const IntervalTable parts = split_by_shares(n, shares, flat_alignment);
        for (std::size_t i = 0; i < ranks.size(); ++i) table[static_cast<std::size_t>(ranks[i])] = parts[i];
    }
    return table;
}

/// Over all ranks; nested in the nodes' intervals where groups are aligned.
IntervalTable world_table(const ShardGroups& groups, std::int64_t n) {
    if (!groups.aligned()) return split_by_shares(n, groups.shares, flat_alignment);
    const IntervalTable whole = node_table(groups, n);
    IntervalTable table(whole.size());
    for (std::size_t r = 0; r < whole.size(); ++r) {
        const Interval part =
            split_equally(whole[r].size(), groups.node_count(), flat_alignment)[static_cast<std::size_t>(groups.nodes[r])];
        table[r] = {whole[r].begin + part.begin, whole[r].begin + part.end};
    }
    return table;
}

IntervalTable table_for(Placement placement, const ShardGroups& groups, std::int64_t n) {
    switch (placement) {
        case Placement::replica:
            return IntervalTable(groups.nodes.size(), Interval{0, n});
        case Placement::node:
            return node_table(groups, n);
        case Placement::world:
            break;
    }
    return world_table(groups, n);
}

/// Each node's part of what every node holds, by its number of ranks; within it, what each rank of the node holds.
IntervalTable shared_among_nodes(const ShardGroups& groups, const IntervalTable& held, std::int64_t n) {
    std::vector<double> sizes;
    for (int node = 0; node < groups.node_count(); ++node) sizes.push_back(static_cast<double>(groups.ranks_of(node).size()));
    const IntervalTable parts = split_by_shares(n, sizes, flat_alignment);
    IntervalTable table;
    for (std::size_t r = 0; r < held.size(); ++r) table.push_back(intersect(held[r], parts[static_cast<std::size_t>(groups.nodes[r])]));
    return table;
}

}  // namespace

UnitTables make_tables(const ShardPlan& plan, const ShardGroups& groups, std::int64_t n) {
    UnitTables t{table_for(plan.parameters, groups, n), table_for(plan.gradients, groups, n), table_for(plan.optimizer, groups, n), {}};
    switch (plan.optimizer) {
        case Placement::replica:
            t.written = split_equally(n, groups.size(), flat_alignment);
            break;
        case Placement::node:
            t.written = groups.aligned() ? world_table(groups, n) : shared_among_nodes(groups, t.optimizer, n);
            break;
        case Placement::world:
            t.written = t.optimizer;
            break;
    }
    return t;
}

}  // namespace sherd
