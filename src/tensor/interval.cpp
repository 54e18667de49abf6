#include "sherd/tensor/interval.hpp"

#include "sherd/runtime/error.hpp"

#include <cmath>
#include <numeric>

namespace sherd {

IntervalTable split_by_shares(std::int64_t n, const std::vector<double>& shares, std::int64_t alignment) {
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    if (!(total > 0) || !std::isfinite(total) || std::any_of(shares.begin(), shares.end(), [](double s) { return s < 0; }))
        throw UsageError("shares must be finite and not negative, and at least one must be above 0");
    const std::int64_t blocks = (n + alignment - 1) / alignment;
    IntervalTable table;
    double sum = 0;
    std::int64_t begin = 0;
    for (const double share : shares) {
        sum += share;
        // bounds come from cumulative shares, so that rounding never adds up; a share of 0 repeats the bound before it
        const auto bound = static_cast<std::int64_t>(std::llround(sum / total * static_cast<double>(blocks)));
        const std::int64_t end = share > 0 ? std::min(n, bound * alignment) : begin;
        table.push_back({begin, std::max(begin, end)});
        begin = table.back().end;
    }
    for (auto last = table.rbegin(); last != table.rend(); ++last) {  // floating rounding may leave a block: the last owner takes it
        if (shares[static_cast<std::size_t>(std::distance(last, table.rend()) - 1)] > 0) {
            last->end = n;
            break;
        }
        *last = {n, n};
    }
    return table;
}

IntervalTable split_equally(std::int64_t n, int ranks, std::int64_t alignment) {
    return split_by_shares(n, std::vector<double>(static_cast<std::size_t>(ranks), 1.0), alignment);
}

}  // namespace sherd
