#pragma once
/// Who trains on which documents of a step, in which micro-batch. Every rank computes the same answer from lengths alone.
#include <cstdint>
#include <span>
#include <vector>

namespace sherd {

/// Capacity and share of one rank.
struct RankBudget {
    std::int64_t micro_tokens;  ///< capacity of one micro-batch, tokens
    double share = 1.0;         ///< of the step's work; 0: none
};

/// Documents by rank and micro-batch: micro_batches[rank][m] lists positions in the step's list of documents.
/// Every rank has the same number of micro-batches; surplus ones are empty.
struct StepPlan {
    std::vector<std::vector<std::vector<std::int32_t>>> micro_batches;
    std::int64_t micro_steps() const noexcept { return micro_batches.empty() ? 0 : static_cast<std::int64_t>(micro_batches[0].size()); }
};

/// Longest first to the rank that would then have the least tokens relative to its share, among those whose micro-batch can hold the
/// document; then first-fit decreasing into micro-batches; at least one micro-step. Within a micro-batch positions rise. Throws UsageError
/// if a document is longer than the capacity of every rank with a share, or if no rank has a share.
StepPlan plan_step(std::span<const std::int64_t> lengths, std::span<const RankBudget> ranks);

}  // namespace sherd
