#include "backend/adamw_constants.hpp"
#include "dispatch.hpp"
#include "elementwise.cuh"
#include "kernels.hpp"

namespace sherd::cuda {

namespace {

/// Bytes: 28 an element, and those of its copy in W where weights is not null. FLOPs: 15.
template <class W>
__global__ void __launch_bounds__(elementwise_threads) adamw_kernel(float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
                                                                    W* weights, std::int64_t n, AdamWConstants c, bool aligned) {
    over_elements<chunk_of<float>>(n, aligned, [&]<int N>(std::int64_t i) {
        float p[N], m[N], v[N], g[N];
        load(p, master + i);
        load(m, exp_avg + i);
        load(v, exp_avg_sq + i);
        load(g, gradient + i);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            g[j] *= c.gradient_scale;
            m[j] = c.beta1 * m[j] + c.rest1 * g[j];
            v[j] = c.beta2 * v[j] + c.rest2 * (g[j] * g[j]);
            p[j] = p[j] * c.decay - c.step_size * (m[j] / (sqrtf(v[j]) * c.root_bias2 + c.epsilon));
        }
        store(exp_avg + i, m);
        store(exp_avg_sq + i, v);
        store(master + i, p);
        if (weights != nullptr) store(weights + i, p);
    });
}

}  // namespace

void adamw(cudaStream_t stream, const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
           Tensor weights, std::int64_t n) {
    if (n == 0) return;
    if (weights.data == master) weights.data = nullptr;  // fp32 weights that are the masters themselves
    with_type(weights.data == nullptr ? DType::f32 : weights.dtype, "adamw", [&]<class W>() {
        constexpr int chunk = chunk_of<float>;
        const bool aligned = aligned_to(16, master, exp_avg, exp_avg_sq, gradient) && aligned_to(chunk * sizeof(W), weights.as<W>());
        launch<adamw_kernel<W>>(elementwise_shape(stream, n, chunk), master, exp_avg, exp_avg_sq, gradient, weights.as<W>(), n,
                                AdamWConstants(step), aligned);
    });
}

}  // namespace sherd::cuda
