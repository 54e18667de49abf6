#include "device.cuh"
#include "dispatch.hpp"
#include "norm_loops.hpp"

namespace sherd::cuda {

namespace {

constexpr int threads = 256;

/// A block a row, whose elements are read once more for y, from the cache. Bytes: 2 sizeof(T) an element, 4 with delta. FLOPs: 4, 5.
template <class T>
__global__ void __launch_bounds__(threads)
    rms_norm_forward_loops_kernel(T* y, float* rstd, T* sum, const T* x, const T* delta, const T* w, std::int64_t columns, float epsilon) {
    __shared__ float scratch[32];
    const std::int64_t row = blockIdx.x * columns;
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
        float v = to_float(x[row + c]);
        if (delta != nullptr) {
            const T added = from_float<T>(v + to_float(delta[row + c]));
            sum[row + c] = added;
            v = to_float(added);
        }
        squares += v * v;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(columns) + epsilon);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    const T* const from = delta != nullptr ? sum : x;  // each thread reads what it wrote itself
    for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
        y[row + c] = from_float<T>(to_float(from[row + c]) * (scale * to_float(w[c])));
    }
}

/// Bytes: 2 sizeof(T) an element. FLOPs: 2.
template <class T>
__global__ void __launch_bounds__(threads)
    rms_norm_again_loops_kernel(T* y, const T* x, const float* rstd, const T* w, std::int64_t columns) {
    const std::int64_t row = blockIdx.x * columns;
    const float scale = rstd[blockIdx.x];
    for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
        y[row + c] = from_float<T>(to_float(x[row + c]) * (scale * to_float(w[c])));
    }
}

/// Block b takes every gridDim.x-th row. Its partial sums of dw stay in memory, that is in the cache; each thread owns its columns.
/// Bytes: 3 sizeof(T) an element, 4 with accumulate; the second reading comes from the cache. FLOPs: 11.
template <class T>
__global__ void __launch_bounds__(threads)
    rms_norm_backward_loops_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd, const T* w, std::int64_t rows,
                                   std::int64_t columns, bool accumulate) {
    __shared__ float scratch[2][32];
    float* const dw = partial + blockIdx.x * columns;
    for (std::int64_t c = threadIdx.x; c < columns; c += threads) dw[c] = 0;
    int parity = 0;
    for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x, parity ^= 1) {
        const std::int64_t row = r * columns;
        const float scale = rstd[r];
        float dot = 0;
        for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
            const float gradient = to_float(dy[row + c]), value = to_float(x[row + c]);
            dw[c] += gradient * value * scale;
            dot += gradient * to_float(w[c]) * value;
        }
        const float shared = block_sum(dot, scratch[parity]) * scale * scale / static_cast<float>(columns);
        for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
            const float slope = to_float(dy[row + c]) * to_float(w[c]) - to_float(x[row + c]) * shared;
            dx[row + c] = from_float<T>((accumulate ? to_float(dx[row + c]) : 0.0f) + scale * slope);
        }
    }
}

}  // namespace

void rms_norm_forward_loops(cudaStream_t stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) {
    with_type(x.dtype, "rms_norm_forward", [&]<class T>() {
        launch<rms_norm_forward_loops_kernel<T>>({.grid = dim3(blocks_for(x.rows, 1)), .block = dim3(threads), .stream = stream}, y.as<T>(),
                                                 rstd, sum.as<T>(), x.as<const T>(), delta.as<const T>(), w.as<const T>(), x.columns,
                                                 epsilon);
    });
}

void rms_norm_again_loops(cudaStream_t stream, Tensor y, Tensor x, const float* rstd, Tensor w) {
    with_type(x.dtype, "rms_norm_again", [&]<class T>() {
        launch<rms_norm_again_loops_kernel<T>>({.grid = dim3(blocks_for(x.rows, 1)), .block = dim3(threads), .stream = stream}, y.as<T>(),
                                               x.as<const T>(), rstd, w.as<const T>(), x.columns);
    });
}

void rms_norm_backward_loops(cudaStream_t stream, Tensor dx, Tensor dy, Tensor x, const float* rstd, Tensor w, float* partial,
                             bool accumulate) {
    with_type(x.dtype, "rms_norm_backward", [&]<class T>() {
        launch<rms_norm_backward_loops_kernel<T>>(
            {.grid = dim3(blocks_for(rms_norm_loop_blocks(x.rows), 1)), .block = dim3(threads), .stream = stream}, dx.as<T>(), partial,
            dy.as<const T>(), x.as<const T>(), rstd, w.as<const T>(), x.rows, x.columns, accumulate);
    });
}

}  // namespace sherd::cuda
