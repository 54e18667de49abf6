#pragma once
/// What the parts of a rank's state share: the model's units, the plan's tables, streams and groups.
#include "sherd/backend/backend.hpp"
#include "sherd/comm/communicator.hpp"
#include "sherd/sharding/flat_layout.hpp"
#include "sherd/sharding/shard_plan.hpp"

#include <memory>
#include <vector>

namespace sherd {

/// Options of the deck's section `sharding` besides the plan.
struct ShardOptions {
    bool keep_gathered = false;    ///< weights stay whole from one step to the next: more memory, one gather a step
    bool prefetch = true;          ///< gather the next unit under the compute of this one
    DType reduce = DType::f32;     ///< type of gradients on the way
    DType gradients = DType::f32;  ///< type in which summed gradients are kept: fp32 or bf16
};

class ShardContext {
  public:
    /// Collective: splits the world into nodes where the plan uses them.
    ShardContext(const FlatLayout& layout, Backend& backend, Communicator& world, Stream& compute, Stream& communication,
                 const ShardPlan& plan, const ShardGroups& groups, const ShardOptions& options);

    const FlatLayout& layout;
    Backend& backend;
    Communicator& world;
    Stream &compute, &communication;
    ShardPlan plan;
    ShardGroups groups;
    ShardOptions options;
    std::vector<UnitTables> tables;  ///< by unit

    /// Ranks that a state is split over; nullptr for replicas.
    Communicator* group(Placement placement) const noexcept;
    /// A table by rank of the world, for the ranks of that group only.
    IntervalTable within(Placement placement, const IntervalTable& table) const;
    /// This rank's interval of every unit.
    std::vector<Interval> mine(IntervalTable UnitTables::*state) const;

  private:
    std::unique_ptr<Communicator> node_;
    std::vector<int> node_ranks_;  ///< ranks of the world on this rank's node
};

/// The tables of every unit, for a rank that needs no communicator (tables of memory).
std::vector<UnitTables> all_tables(const FlatLayout& layout, const ShardPlan& plan, const ShardGroups& groups);

/// Two units' buffers of blocks, alternating, and one for the units around them: which one a unit uses, and how large each is.
struct UnitSlots {
    static constexpr int count = 3;
    static int of(const FlatLayout& layout, int unit) noexcept;
    static std::vector<std::int64_t> elements(const FlatLayout& layout);
};

}  // namespace sherd
