#include "sherd/tensor/tensor.hpp"

#include <algorithm>
#include <bit>

namespace sherd {

std::int64_t bucket_rows(std::int64_t tokens) noexcept {
    if (tokens <= 0) return 0;
    // eight buckets an octave, never finer than 16 rows
    const auto octave = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tokens)));
    const std::int64_t step = std::max<std::int64_t>(16, octave / 8);
    return (tokens + step - 1) / step * step;
}

}  // namespace sherd
