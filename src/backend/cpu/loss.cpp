#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include <limits>

namespace sherd::cpu {

namespace {

/// Columns whose exponentials are summed in fp32 before the sum goes on in fp64.
constexpr std::int64_t sum_block = 512;

SHERD_INLINE inline float highest(const float* x, std::int64_t n) {
    float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
    for (std::int64_t c = 0; c < n; ++c) top = top < x[c] ? x[c] : top;
    return top;
}

/// x[c] becomes exp(x[c] - top); returns their sum.
SHERD_INLINE inline double exponentials(float* x, float top, std::int64_t n) {
    double total = 0;
    for (std::int64_t first = 0; first < n; first += sum_block) {
        const std::int64_t last = std::min(n, first + sum_block);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (std::int64_t c = first; c < last; ++c) {
            x[c] = exponential(x[c] - top);
            part += x[c];
        }
        total += static_cast<double>(part);
    }
    return total;
}

template <class T>
SHERD_INLINE inline void scaled_copy(T* to, const float* from, float factor, std::int64_t n) {
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) to[c] = from_float<T>(from[c] * factor);
}

template <class T>
void row_loss(float* loss, T* gradient, float* x, std::int64_t target, float scale, std::int64_t n) {
    if (target < 0) {
        *loss = 0.0f;
        if (gradient != nullptr) std::fill(gradient, gradient + n, from_float<T>(0.0f));
        return;
    }
    float top = 0;
    double total = 0;
    const float at_target = x[target];
    widest([&]() SHERD_INLINE {
        top = highest(x, n);
        total = exponentials(x, top, n);
    });
    *loss = static_cast<float>(std::log(total) + (static_cast<double>(top) - static_cast<double>(at_target)));
    if (gradient == nullptr) return;
    const auto inverse = static_cast<float>(1.0 / total);
    const float at = (x[target] * inverse - 1.0f) * scale;
    widest([&]() SHERD_INLINE { scaled_copy(gradient, x, inverse * scale, n); });
    gradient[target] = from_float<T>(at);
}

}  // namespace

void cross_entropy(float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale) {
    const std::int64_t n = logits.columns;
    for (std::int64_t t = 0; t < logits.rows; ++t) {
        if (targets[t] >= n) {
            throw InputError("row {} of the micro-batch has target {}, but the model has {} tokens: do the tokens belong to this model?", t,
                             targets[t], n);
        }
    }
    with_compute_type(gradient.data != nullptr ? gradient.dtype : DType::f32, [&]<class T>() {
        for_blocks(logits.rows, 1, [&](std::int64_t t, std::int64_t) {
            T* const to = gradient.data != nullptr ? gradient.as<T>() + t * n : nullptr;
            row_loss(loss + t, to, logits.as<float>() + t * n, targets[t], scale, n);
        });
    });
}

}  // namespace sherd::cpu
