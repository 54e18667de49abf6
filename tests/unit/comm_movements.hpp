#pragma once
/// Redistributions of every kind with numbers in them, and what must come out: element by element, sums in rank order.
#include "comm/movement_kind.hpp"

#include "sherd/comm/communicator.hpp"
#include "sherd/tensor/half.hpp"

#include <cmath>
#include <string>
#include <vector>

namespace sherd::tests {

struct MovementCase {
    std::string name;
    Redistribution::Mode mode;
    DType wire;
    IntervalTable sources, owners;
    detail::MovementKind kind;
};

inline IntervalTable whole(int ranks, std::int64_t n) {
    return IntervalTable(static_cast<std::size_t>(ranks), Interval{0, n});
}

/// Parts that differ; one is empty where there are three ranks or more.
inline IntervalTable uneven(int ranks, std::int64_t n) {
    std::vector<double> shares;
    for (int r = 0; r < ranks; ++r) shares.push_back(ranks > 2 && r == 1 ? 0 : 1 + r);
    return split_by_shares(n, shares, 1);
}

/// Two groups hold halves: rank r holds the half of its parity.
inline IntervalTable halves(int ranks, std::int64_t n) {
    IntervalTable table;
    for (int r = 0; r < ranks; ++r) table.push_back(r % 2 == 0 ? Interval{0, n / 2} : Interval{n / 2, n});
    return table;
}

/// n: divisible by the number of ranks.
inline std::vector<MovementCase> movement_cases(int ranks, std::int64_t n) {
    using enum Redistribution::Mode;
    using enum detail::MovementKind;
    const IntervalTable equal = split_equally(n, ranks, 1), parts = uneven(ranks, n), all = whole(ranks, n);
    IntervalTable reversed(equal.rbegin(), equal.rend());
    std::vector<MovementCase> cases{{"gather", copy, DType::f32, equal, all, all_gather},
                                    {"gather uneven parts", copy, DType::f32, parts, all, ranks == 1 ? all_gather : broadcasts},
                                    {"other owners", copy, DType::f32, parts, equal, ranks == 1 ? all_gather : messages},
                                    {"scatter", sum, DType::f32, all, equal, ranks == 1 ? all_reduce : reduce_scatter},
                                    {"sum everywhere", sum, DType::f32, all, all, all_reduce},
                                    {"uneven owners", sum, DType::f32, all, parts, ranks == 1 ? all_reduce : reduces},
                                    {"bf16 on the wire", sum, DType::bf16, all, parts, exchange},
                                    {"fp16 on the wire", sum, DType::f16, all, equal, exchange}};
    if (ranks > 1) {
        cases.push_back({"halves held", sum, DType::f32, halves(ranks, n), parts, exchange});
        cases.push_back({"half held by nobody", sum, DType::bf16, whole(ranks, n / 2), parts, exchange});
        cases.push_back({"gather in reverse", copy, DType::f32, reversed, all, broadcasts});
    }
    return cases;
}

/// Element i of rank r: sums in another order round otherwise. Some are -0 on every rank, whose sum from 0 on is 0.
inline float element(int rank, std::int64_t i) {
    if (i % 13 == 5) return -0.0f;
    return std::ldexp(static_cast<float>((i * 37 + rank * 101) % 97 - 48), (rank * 5 + static_cast<int>(i)) % 19 - 9);
}

inline float on_wire(float x, DType wire) {
    return wire == DType::bf16 ? to_float(to_bfloat16(x)) : wire == DType::f16 ? to_float(to_float16(x)) : x;
}

/// What rank `rank` must hold afterwards of element i, which it wants.
inline float expected(const MovementCase& c, int rank, std::int64_t i) {
    if (c.sources.size() == 1) return element(0, i);  // a sum of one is a copy
    float total = 0;
    for (int r = 0; r < static_cast<int>(c.sources.size()); ++r) {
        const Interval held = c.sources[static_cast<std::size_t>(r)];
        if (i < held.begin || i >= held.end) continue;
        if (c.mode == Redistribution::Mode::copy) return element(r, i);
        total += r == rank ? element(r, i) : on_wire(element(r, i), c.wire);
    }
    return total;
}

}  // namespace sherd::tests
