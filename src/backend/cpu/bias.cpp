#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include <array>

namespace sherd::cpu {

void add_bias(Tensor y, Tensor bias, std::int64_t rows) {
    const std::int64_t n = y.columns;
    with_compute_type(y.dtype, [&]<class T>() {
        const T* const b = bias.as<const T>();
        for_blocks(rows, 64, [&](std::int64_t first, std::int64_t last) {
            widest([&]() SHERD_INLINE {
                for (std::int64_t t = first; t < last; ++t) {
                    T* const row = y.as<T>() + t * n;
#pragma omp simd
                    for (std::int64_t c = 0; c < n; ++c) row[c] = from_float<T>(to_float(row[c]) + to_float(b[c]));
                }
            });
        });
    });
}

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
