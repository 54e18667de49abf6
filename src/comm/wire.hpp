#pragma once
/// Gradients on the way between ranks: rounded to the wire's type by who sends, added in fp32 by who receives.
#include "sherd/tensor/dtype.hpp"
#include "sherd/tensor/half.hpp"
#include "sherd/tensor/interval.hpp"

#include <algorithm>
#include <cstdint>

namespace sherd::detail {

/// wire: bf16 or fp16; round to nearest even.
inline void encode(const float* from, std::int64_t n, DType wire, std::uint16_t* to) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = wire == DType::bf16 ? to_bfloat16(from[i]).bits : to_float16(from[i]).bits;
}
inline void add_decoded(float* sum, const std::uint16_t* addend, std::int64_t n, DType wire) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] += wire == DType::bf16 ? to_float(bfloat16{addend[i]}) : to_float(float16{addend[i]});
}

/// Elements [at, at + length) of an interval, counted from its begin.
inline Interval window(Interval whole, std::int64_t at, std::int64_t length) noexcept {
    return intersect(whole, {whole.begin + at, whole.begin + at + length});
}

inline std::int64_t longest(const IntervalTable& table) noexcept {
    std::int64_t most = 0;
    for (const Interval& i : table) most = std::max(most, i.size());
    return most;
}

}  // namespace sherd::detail
