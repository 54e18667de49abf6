#include "sherd/data/packing.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sherd {

namespace {
/// Positions from the longest document to the shortest; equal ones stay in order, so that every rank sorts alike.
std::vector<std::int32_t> longest_first(std::span<const std::int64_t> lengths) {
    if (lengths.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        throw UsageError("a step has {} documents: expected fewer than 2^31", lengths.size());
    std::vector<std::int32_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
    });
    return order;
}

/// The rank that would have the least tokens relative to its share, among those that can hold the document; ranks.size() if none can.
/// Counting the document itself keeps a slow rank from taking the longest one while its load is still zero.
std::size_t least_loaded(std::int64_t length, std::span<const RankBudget> ranks, const std::vector<std::int64_t>& loads) {
    std::size_t best = ranks.size();
    double best_load = std::numeric_limits<double>::infinity();
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (!(ranks[r].share > 0) || length > ranks[r].micro_tokens) continue;
        const double load = static_cast<double>(loads[r] + length) / ranks[r].share;
        if (best == ranks.size() || load < best_load) {
            best = r;
            best_load = load;
        }
    }
    return best;
}

/// First-fit decreasing: `documents` come longest first; each goes into the first micro-batch with room.
std::vector<std::vector<std::int32_t>> first_fit(const std::vector<std::int32_t>& documents, std::span<const std::int64_t> lengths,
                                                 std::int64_t capacity) {
    std::vector<std::vector<std::int32_t>> batches;
    if (documents.empty()) return batches;
    const std::int64_t shortest = lengths[static_cast<std::size_t>(documents.back())];
    std::vector<std::int64_t> room;
    std::size_t first_open = 0;  // batches before it cannot take even the shortest document: keeps the search short
    for (const std::int32_t d : documents) {
        const std::int64_t length = lengths[static_cast<std::size_t>(d)];
        while (first_open < room.size() && room[first_open] < shortest) ++first_open;
        std::size_t b = first_open;
        while (b < room.size() && room[b] < length) ++b;
        if (b == room.size()) {
            room.push_back(capacity);
            batches.emplace_back();
        }
        room[b] -= length;
        batches[b].push_back(d);
    }
    for (auto& batch : batches) std::sort(batch.begin(), batch.end());
    return batches;
}

void check(std::span<const RankBudget> ranks) {
    bool any = false;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (!(ranks[r].share >= 0) || ranks[r].share == std::numeric_limits<double>::infinity())
            throw UsageError("batch.shares: rank {} has share {}: expected a finite number of at least 0", r, ranks[r].share);
        any = any || ranks[r].share > 0;
    }
    if (!any) throw UsageError("batch.shares: no rank has a share of the work: expected at least one above 0");
}
}  // namespace

StepPlan plan_step(std::span<const std::int64_t> lengths, std::span<const RankBudget> ranks) {
    check(ranks);
    std::vector<std::vector<std::int32_t>> by_rank(ranks.size());
    std::vector<std::int64_t> loads(ranks.size(), 0);
    for (const std::int32_t d : longest_first(lengths)) {
        const std::int64_t length = lengths[static_cast<std::size_t>(d)];
        const std::size_t r = least_loaded(length, ranks, loads);
        if (r == ranks.size()) {
            std::int64_t largest = 0;
            for (const RankBudget& rank : ranks) largest = rank.share > 0 ? std::max(largest, rank.micro_tokens) : largest;
            throw UsageError(
                "a document of {} tokens (number {} of the step) fits into no micro-batch: batch.micro_tokens is at most {} on the ranks "
                "with a share of the work; raise it or cut documents with data.max_sequence",
                length, d, largest);
        }
        loads[r] += length;
        by_rank[r].push_back(d);
    }
    StepPlan plan;
    std::size_t micro_steps = 1;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        plan.micro_batches.push_back(first_fit(by_rank[r], lengths, ranks[r].micro_tokens));
        micro_steps = std::max(micro_steps, plan.micro_batches.back().size());
    }
    for (auto& batches : plan.micro_batches) batches.resize(micro_steps);
    return plan;
}

}  // namespace sherd
