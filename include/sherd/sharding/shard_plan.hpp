#pragma once
/// A strategy is data: for each of three states, over whom it is split. Every strategy is a row of one table; a new one needs no code.
#include "sherd/sharding/flat_layout.hpp"
#include "sherd/tensor/interval.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// Over whom a state is split: nobody (each rank holds all of it), the ranks of its node, all ranks.
enum class Placement { replica, node, world };
std::string_view name_of(Placement placement) noexcept;

struct ShardPlan {
    Placement parameters = Placement::replica;  ///< weights in the compute type
    Placement gradients = Placement::replica;   ///< summed over the ranks they are split over after each micro-step
    Placement optimizer = Placement::replica;   ///< fp32 masters and moments
    bool operator==(const ShardPlan&) const = default;
    bool uses_nodes() const noexcept;
};

struct NamedStrategy {
    std::string_view name;
    std::vector<std::string_view> aliases;
    ShardPlan plan;
};

/// The table of strategies (Rajbhandari et al. 2020, "ZeRO"; Zhao et al. 2023, "PyTorch FSDP"; Zhang et al. 2022, "MiCS").
const std::vector<NamedStrategy>& named_strategies();

/// The plan of a name or alias. Throws UsageError listing the names.
ShardPlan plan_named(const std::string& name);
/// The name of a plan that is in the table, else "parameters=node, gradients=world, optimizer=world" and the like.
std::string describe(const ShardPlan& plan);
/// Refuses a row that can only cost: a state may not be split more finely than the one after it in (parameters, gradients, optimizer).
/// Throws UsageError with the reason.
void check_plan(const ShardPlan& plan);

/// The ranks of a job for sharding.
struct ShardGroups {
    std::vector<int> nodes;      ///< by rank, from 0
    std::vector<double> shares;  ///< by rank: its part of what is split
    int size() const noexcept { return static_cast<int>(nodes.size()); }
    int node_count() const noexcept;
    /// Ranks of one node, rising.
    std::vector<int> ranks_of(int node) const;
    /// Whether all nodes have equally many ranks with the same shares: intervals of nodes then nest in those of the world.
    bool aligned() const;
};

/// node_size 0: the nodes as found; else every node_size consecutive ranks are a node (the last may be smaller). shares empty: equal.
/// Throws UsageError: another number of shares, a negative or infinite one, all 0, or all 0 on one node where the plan uses nodes.
ShardGroups make_groups(const std::vector<int>& nodes_found, std::int64_t node_size, const std::vector<double>& shares,
                        const ShardPlan& plan);

/// The plan with the same owners and the least movement: a state split over groups of one rank is a replica, one split over the only node
/// is split over the world.
ShardPlan simplified(const ShardPlan& plan, const ShardGroups& groups);

/// Who holds which elements of one flat unit, by rank of the world.
struct UnitTables {
    IntervalTable parameters, gradients, optimizer;
    IntervalTable written;  ///< a part of `optimizer` such that all ranks together cover the unit once: norms and checkpoints
};

/// Tables of a unit of n elements. With aligned groups the world's order is local-rank major: the interval of rank l of a node is split
/// among the nodes, so that movements between node and world stay among ranks l. Otherwise the world's intervals follow rank order.
UnitTables make_tables(const ShardPlan& plan, const ShardGroups& groups, std::int64_t n);

}  // namespace sherd
