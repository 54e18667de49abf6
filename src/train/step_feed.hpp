#pragma once
/// Fetches the documents of a step while the step before it computes.
#include "train/batch.hpp"

#include "sherd/data/order.hpp"
#include "sherd/data/packing.hpp"
#include "sherd/data/prefetch.hpp"

#include <cstdint>
#include <vector>

namespace sherd {

/// A step's work for this rank, and what all ranks know of it.
struct StepWork {
    std::vector<std::int64_t> documents;   ///< of the whole step, in training order
    std::int64_t tokens = 0;               ///< of the whole step
    std::vector<HostBatch> micro_batches;  ///< of this rank; equally many on all ranks
    std::int64_t my_targets = 0;
};

class StepFeed {
  public:
    StepFeed(const TokenGroup& group, std::vector<RankBudget> budgets, int rank);
    /// Starts reading what this rank trains on of these documents.
    void prepare(std::vector<std::int64_t> documents);
    /// What was prepared first and not yet taken; waits for it.
    StepWork take();

  private:
    struct Pending {
        StepWork work;
        std::vector<std::vector<std::int32_t>> micro_batches;  ///< positions in work.documents
    };
    const TokenGroup& group_;
    std::vector<RankBudget> budgets_;
    int rank_;
    std::vector<Pending> pending_;
    StepReader reader_;
};

}  // namespace sherd
