#include "comm/movement_kind.hpp"

#include <algorithm>

namespace sherd::detail {

namespace {

std::int64_t end_of(const IntervalTable& table) {
    std::int64_t end = 0;
    for (const Interval& i : table) end = std::max(end, i.end);
    return end;
}

bool all_are(const IntervalTable& table, Interval whole) {
    return std::all_of(table.begin(), table.end(), [&](Interval i) { return i == whole; });
}

/// [0, n) in parts of one size, in rank order.
bool equal_parts(const IntervalTable& table, std::int64_t n) {
    const std::int64_t part = table.front().size();
    std::int64_t at = 0;
    for (const Interval& i : table) {
        if (i.begin != at || i.size() != part) return false;
        at = i.end;
    }
    return at == n && part > 0;
}

/// No element in two intervals; covered: all elements of [0, n) in one.
bool disjoint(IntervalTable table, bool covered, std::int64_t n) {
    std::erase_if(table, [](Interval i) { return i.empty(); });
    std::sort(table.begin(), table.end(), [](Interval a, Interval b) { return a.begin < b.begin; });
    std::int64_t at = 0;
    for (const Interval& i : table) {
        if (i.begin < at || (covered && i.begin != at)) return false;
        at = i.end;
    }
    return !covered || at == n;
}

}  // namespace

MovementKind classify(const Redistribution& m) {
    if (m.mode == Redistribution::Mode::copy) {
        const std::int64_t n = end_of(m.sources);
        if (!all_are(m.owners, {0, n})) return MovementKind::messages;
        if (equal_parts(m.sources, n)) return MovementKind::all_gather;
        return disjoint(m.sources, true, n) ? MovementKind::broadcasts : MovementKind::messages;
    }
    const Interval whole{0, end_of(m.sources)};
    if (m.wire != DType::f32 || !all_are(m.sources, whole)) return MovementKind::exchange;
    if (all_are(m.owners, whole)) return MovementKind::all_reduce;
    if (equal_parts(m.owners, whole.end)) return MovementKind::reduce_scatter;
    // what nobody holds is 0, which only an exchange writes
    const bool held = end_of(m.owners) <= whole.end;
    return held && disjoint(m.owners, false, whole.end) ? MovementKind::reduces : MovementKind::exchange;
}

}  // namespace sherd::detail
