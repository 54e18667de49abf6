#pragma once
/// Half-open ranges of elements, and who owns which: the arithmetic under every shard.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace sherd {

/// Elements [begin, end).
struct Interval {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const noexcept { return end - begin; }
    bool empty() const noexcept { return end <= begin; }
    bool operator==(const Interval&) const = default;
};

/// The part that both hold; empty where they do not meet.
inline Interval intersect(Interval a, Interval b) noexcept {
    const Interval both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
    return both.empty() ? Interval{both.begin, both.begin} : both;
}

/// Owners of [0, n) by rank: consecutive intervals that cover everything once; some may be empty.
using IntervalTable = std::vector<Interval>;

/// Splits [0, n) by shares (all 1: equal parts). Inner bounds are multiples of `alignment`; a share of 0 gives an empty interval.
/// Cumulative shares rounded to aligned blocks: no interval differs from its exact part of the blocks by more than one.
/// Throws UsageError where no share is above 0, or one is negative or not finite.
IntervalTable split_by_shares(std::int64_t n, const std::vector<double>& shares, std::int64_t alignment);

/// Equal parts over `ranks`.
IntervalTable split_equally(std::int64_t n, int ranks, std::int64_t alignment);

}  // namespace sherd
