#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include <array>

namespace sherd::cpu {

namespace {

constexpr std::int64_t block = 16384, group = 1024, lanes = 32;

/// Sum of f(x[i]) with a fixed number of partial sums, whatever the vector width.
template <class F>
SHERD_INLINE inline double block_sum(const float* x, std::int64_t n, const F& f) {
    double partial[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
#pragma omp simd
        for (std::int64_t j = 0; j < lanes; ++j) partial[j] += f(static_cast<double>(x[i + j]));
    }
    for (std::int64_t j = 0; i < n; ++i, ++j) partial[j] += f(static_cast<double>(x[i]));
    double total = 0;
    for (const double p : partial) total += p;
    return total;
}

/// Blocks of fixed size on all threads, their sums added in order: the result does not depend on the number of threads.
template <class F>
double total(const float* x, std::int64_t n, const F& f) {
    double result = 0;
    std::array<double, group> sums;
    for (std::int64_t start = 0; start < n; start += block * group) {
        const std::int64_t count = std::min(block * group, n - start);
        for_blocks(count, block, [&](std::int64_t first, std::int64_t last) {
            double& out = sums[static_cast<std::size_t>(first / block)];
            widest([&]() SHERD_INLINE { out = block_sum(x + start + first, last - first, f); });
        });
        for (std::int64_t b = 0; b * block < count; ++b) result += sums[static_cast<std::size_t>(b)];
    }
    return result;
}

}  // namespace

double sum(const float* x, std::int64_t n) {
    return total(x, n, [](double value) SHERD_INLINE { return value; });
}

double sum_squares(const float* x, std::int64_t n) {
    return total(x, n, [](double value) SHERD_INLINE { return value * value; });
}

}  // namespace sherd::cpu
