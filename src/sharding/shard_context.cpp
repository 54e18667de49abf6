#include "sherd/sharding/shard_context.hpp"

#include <algorithm>

namespace sherd {

std::vector<UnitTables> all_tables(const FlatLayout& layout, const ShardPlan& plan, const ShardGroups& groups) {
    std::vector<UnitTables> all;
    for (const FlatUnit& u : layout.units()) all.push_back(make_tables(plan, groups, u.elements));
    return all;
}

ShardContext::ShardContext(const FlatLayout& layout_in, Backend& backend_in, Communicator& world_in, Stream& compute_in,
                           Stream& communication_in, const ShardPlan& plan_in, const ShardGroups& groups_in, const ShardOptions& options_in)
    : layout(layout_in),
      backend(backend_in),
      world(world_in),
      compute(compute_in),
      communication(communication_in),
      plan(simplified(plan_in, groups_in)),
      groups(groups_in),
      options(options_in),
      tables(all_tables(layout_in, plan, groups_in)) {
    if (!plan.uses_nodes()) return;
    const int node = groups.nodes[static_cast<std::size_t>(world.rank())];
    node_ = world.split(node);
    node_ranks_ = groups.ranks_of(node);
}

Communicator* ShardContext::group(Placement placement) const noexcept {
    return placement == Placement::world ? &world : placement == Placement::node ? node_.get() : nullptr;
}

IntervalTable ShardContext::within(Placement placement, const IntervalTable& table) const {
    if (placement != Placement::node) return table;
    IntervalTable part;
    for (const int r : node_ranks_) part.push_back(table[static_cast<std::size_t>(r)]);
    return part;
}

std::vector<Interval> ShardContext::mine(IntervalTable UnitTables::*state) const {
    std::vector<Interval> all;
    for (const UnitTables& t : tables) all.push_back((t.*state)[static_cast<std::size_t>(world.rank())]);
    return all;
}

int UnitSlots::of(const FlatLayout& layout, int unit) noexcept {
    return layout.unit(unit).outer ? 2 : unit % 2;
}

std::vector<std::int64_t> UnitSlots::elements(const FlatLayout& layout) {
    std::vector<std::int64_t> sizes(count, 0);
    for (int u = 0; u < layout.unit_count(); ++u) {
        auto& size = sizes[static_cast<std::size_t>(of(layout, u))];
        size = std::max(size, layout.unit(u).elements);
    }
    return sizes;
}

}  // namespace sherd
