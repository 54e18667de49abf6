#include "device.cuh"
#include "kernels.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

constexpr int threads = 256, chunk = 4;
constexpr int batch = 4;                                 ///< chunks of a thread that are on their way from memory at once
constexpr int block_elements = threads * chunk * batch;  ///< the least that a block is made for

template <bool squares>
__device__ double term(float x) {
    const auto wide = static_cast<double>(x);
    return squares ? wide * wide : wide;
}

/// partial[b] = sum over the chunks of 4 elements that block b owns. A thread owns the same elements whatever the alignment, so the order
/// of additions depends on n alone. Bytes: 4 an element. FLOPs: 1 or 2 in fp64, which even a GPU with 1/64 of its fp32 rate keeps up with.
template <bool squares>
__global__ void __launch_bounds__(threads) partial_sums_kernel(double* partial, const float* x, std::int64_t n, bool aligned) {
    __shared__ double scratch[32];
    double total = 0;
    const std::int64_t stride = std::int64_t{gridDim.x} * threads * chunk;
    for (std::int64_t i = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * chunk; i < n; i += batch * stride) {
        float v[batch][chunk];
        if (aligned && i + (batch - 1) * stride + chunk <= n) {
#pragma unroll
            for (int b = 0; b < batch; ++b) load(v[b], x + i + b * stride);
        } else {
#pragma unroll
            for (int b = 0; b < batch; ++b) {
#pragma unroll
                for (int j = 0; j < chunk; ++j) v[b][j] = i + b * stride + j < n ? x[i + b * stride + j] : 0.0f;
            }
        }
#pragma unroll
        for (int b = 0; b < batch; ++b) {
#pragma unroll
            for (int j = 0; j < chunk; ++j) total += term<squares>(v[b][j]);
        }
    }
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

/// *out += the sum of up to reduce_scratch partial sums: one block. Bytes: 8 a partial sum, 16 of *out. FLOPs: 1 a partial sum, in fp64.
__global__ void __launch_bounds__(threads) total_kernel(double* out, const double* partial, int count) {
    __shared__ double scratch[32];
    double total = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) total += partial[i];
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) *out += total;
}

template <bool squares>
void reduce(cudaStream_t stream, double* out, const float* x, std::int64_t n, double* scratch) {
    if (n == 0) return;
    const std::int64_t blocks = std::min(reduce_scratch, (n + block_elements - 1) / block_elements);
    launch<partial_sums_kernel<squares>>({.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(threads), .stream = stream}, scratch,
                                         x, n, aligned_to(16, x));
    launch<total_kernel>({.block = dim3(threads), .stream = stream}, out, scratch, static_cast<int>(blocks));
}

}  // namespace

void sum(cudaStream_t stream, double* out, const float* x, std::int64_t n, double* scratch) {
    reduce<false>(stream, out, x, n, scratch);
}

void sum_squares(cudaStream_t stream, double* out, const float* x, std::int64_t n, double* scratch) {
    reduce<true>(stream, out, x, n, scratch);
}

}  // namespace sherd::cuda
