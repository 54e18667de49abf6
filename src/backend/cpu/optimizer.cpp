#include "backend/adamw_constants.hpp"
#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

namespace sherd::cpu {

namespace {

struct NoWeights {};

template <class W>
SHERD_INLINE inline void update(const AdamWConstants& c, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
                                W* weights, std::int64_t n) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
        const float g = gradient[i] * c.gradient_scale;
        const float m = c.beta1 * exp_avg[i] + c.rest1 * g;
        const float v = c.beta2 * exp_avg_sq[i] + c.rest2 * (g * g);
        const float p = master[i] * c.decay - c.step_size * (m / (std::sqrt(v) * c.root_bias2 + c.epsilon));
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        master[i] = p;
        if constexpr (!std::is_same_v<W, NoWeights>) weights[i] = from_float<W>(p);
    }
}

template <class W>
void update_all(const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient, W* weights,
                std::int64_t n) {
    const AdamWConstants constants(step);
    for_blocks(n, element_block, [&](std::int64_t first, std::int64_t last) {
        widest([&]() SHERD_INLINE {
            W* const out = std::is_same_v<W, NoWeights> ? nullptr : weights + first;
            update(constants, master + first, exp_avg + first, exp_avg_sq + first, gradient + first, out, last - first);
        });
    });
}

}  // namespace

void adamw(const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient, Tensor weights, std::int64_t n) {
    if (weights.data == nullptr || weights.data == master) {
        return update_all<NoWeights>(step, master, exp_avg, exp_avg_sq, gradient, nullptr, n);
    }
    switch (weights.dtype) {
        case DType::f32:
            return update_all(step, master, exp_avg, exp_avg_sq, gradient, weights.as<float>(), n);
        case DType::bf16:
            return update_all(step, master, exp_avg, exp_avg_sq, gradient, weights.as<bfloat16>(), n);
        case DType::f16:
            return update_all(step, master, exp_avg, exp_avg_sq, gradient, weights.as<float16>(), n);
        default:
            throw DeviceError("adamw: weights of type {}; fp32, bf16 or fp16 expected", name_of(weights.dtype));
    }
}

}  // namespace sherd::cpu
