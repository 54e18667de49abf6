#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include <array>

namespace sherd::cpu {

void bias_backward(float* dbias, Tensor dy) {
    constexpr std::int64_t width = 256, height = 64;  // sums of few rows first: fp32 loses less
    const std::int64_t n = dy.columns;
    with_compute_type(dy.dtype, [&]<class T>() {
        for_blocks(n, width, [&](std::int64_t first, std::int64_t last) {
            std::array<float, width> partial{};
            float* const sums = partial.data();
            widest([&]() SHERD_INLINE {
                for (std::int64_t block = 0; block < dy.rows; block += height) {
                    for (std::int64_t c = 0; c < last - first; ++c) sums[c] = 0;
                    for (std::int64_t t = block; t < std::min(dy.rows, block + height); ++t) {
                        const T* const row = dy.as<const T>() + t * n + first;
#pragma omp simd
                        for (std::int64_t c = 0; c < last - first; ++c) sums[c] += to_float(row[c]);
                    }
#pragma omp simd
                    for (std::int64_t c = 0; c < last - first; ++c) dbias[first + c] += sums[c];
                }
            });
        });
    });
}

}  // namespace sherd::cpu
