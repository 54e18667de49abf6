#pragma once
/// Gradients on the way between ranks: rounded to the wire's type by who sends, added in fp32 by who receives.
#include "sherd/tensor/dtype.hpp"
#include "sherd/tensor/half.hpp"
#include "sherd/tensor/interval.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sherd::detail {

/// wire: bf16 or fp16; round to nearest even.
inline void encode(const float* from, std::int64_t n, DType wire, std::uint16_t* to) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = wire == DType::bf16 ? to_bfloat16(from[i]).bits : to_float16(from[i]).bits;
}

/// What a rank adds to a sum: fp32 or rounded to a wire's type.
struct Addend {
    Interval part;  ///< in the same numbers as the interval that is summed, and within it
    const void* data;
    DType dtype;
};

/// to[i] = the sum of all addends that hold element i, in their order; 0 where none does. A block at a time in the nearest cache, so that
/// memory is read and written once; `to` may be where an addend with the whole interval lies.
inline void add_up(Interval whole, const std::vector<Addend>& addends, float* to) {
    constexpr std::int64_t block = 2048;
    float sums[block];
    for (std::int64_t at = whole.begin; at < whole.end; at += block) {
        const Interval now{at, std::min(at + block, whole.end)};
        std::fill_n(sums, now.size(), 0.0f);
        for (const Addend& a : addends) {
            const Interval part = intersect(a.part, now);
            float* sum = sums + (part.begin - now.begin);
            const auto add = [&](const auto* values, auto widen) {
                values += part.begin - a.part.begin;
                for (std::int64_t i = 0; i < part.size(); ++i) sum[i] += widen(values[i]);
            };
            if (a.dtype == DType::f32)
                add(static_cast<const float*>(a.data), [](float x) { return x; });
            else if (a.dtype == DType::bf16)
                add(static_cast<const bfloat16*>(a.data), [](bfloat16 x) { return to_float(x); });
            else
                add(static_cast<const float16*>(a.data), [](float16 x) { return to_float(x); });
        }
        std::copy_n(sums, now.size(), to + (now.begin - whole.begin));
    }
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
