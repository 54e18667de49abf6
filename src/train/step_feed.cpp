#include "train/step_feed.hpp"

namespace sherd {

StepFeed::StepFeed(const TokenGroup& group, std::vector<RankBudget> budgets, int rank)
    : group_(group), budgets_(std::move(budgets)), rank_(rank), reader_(group) {}

void StepFeed::prepare(std::vector<std::int64_t> documents) {
    Pending p;
    std::vector<std::int64_t> lengths;
    for (const std::int64_t d : documents) {
        lengths.push_back(group_.length(d));
        p.work.tokens += lengths.back();
    }
    p.work.documents = std::move(documents);
    p.micro_batches = plan_step(lengths, budgets_).micro_batches[static_cast<std::size_t>(rank_)];
    std::vector<std::int64_t> mine;
    for (const auto& batch : p.micro_batches)
        for (const std::int32_t i : batch) mine.push_back(p.work.documents[static_cast<std::size_t>(i)]);
    reader_.request(std::move(mine));
    pending_.push_back(std::move(p));
}

StepWork StepFeed::take() {
    std::vector<Document> documents = reader_.take();
    Pending p = std::move(pending_.front());
    pending_.erase(pending_.begin());
    auto next = documents.begin();
    for (const auto& batch : p.micro_batches) {
        const auto end = next + static_cast<std::ptrdiff_t>(batch.size());
        p.work.micro_batches.push_back(pack({std::make_move_iterator(next), std::make_move_iterator(end)}));
        p.work.my_targets += p.work.micro_batches.back().target_count;
        next = end;
    }
    return std::move(p.work);
}

}  // namespace sherd
