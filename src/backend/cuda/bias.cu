#include "column_sums.hpp"
#include "device.cuh"
#include "dispatch.hpp"
#include "kernels.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

constexpr int warps = 8, threads = warps * 32;

/// Block (p, s): the sum of rows [p rows_of_partial, ...) of dy in a strip of 32 chunks of columns. Each warp takes every eighth row; the
/// warps' sums are added in their order. Bytes: sizeof(T) an element. FLOPs: 1.
template <class T, int chunk>
__global__ void __launch_bounds__(threads)
    bias_partial_kernel(float* partial, const T* dy, std::int64_t rows, std::int64_t columns, std::int64_t rows_of_partial) {
    __shared__ float sums[warps][32 * chunk];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const std::int64_t strip = std::int64_t{blockIdx.y} * 32 * chunk, column = strip + lane * chunk;
    const std::int64_t first = std::int64_t{blockIdx.x} * rows_of_partial, last = min(rows, first + rows_of_partial);
    float total[chunk] = {};
    if (column < columns) {
#pragma unroll 4
        for (std::int64_t row = first + warp; row < last; row += warps) {
            float v[chunk];
            load(v, dy + row * columns + column);
#pragma unroll
            for (int j = 0; j < chunk; ++j) total[j] += v[j];
        }
    }
#pragma unroll
    for (int j = 0; j < chunk; ++j) sums[warp][lane * chunk + j] = total[j];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < 32 * chunk && strip + c < columns; c += threads) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < warps; ++w) sum += sums[w][c];
        partial[blockIdx.x * columns + strip + c] = sum;
    }
}

constexpr int summing_warps = 16, strip_columns = 32;

/// A block sums strip_columns columns: a lane `chunk` of them in one row, so that a warp reads `chunk` rows at once.
/// Bytes: 4 a partial sum and 8 a column. FLOPs: 1 a partial sum.
template <int chunk>
__global__ void __launch_bounds__(32 * summing_warps)
    column_sums_kernel(float* out, const float* partial, int count, std::int64_t columns) {
    __shared__ __align__(16) float sums[summing_warps][strip_columns];
    constexpr int lanes = strip_columns / chunk;  // of a row
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const std::int64_t strip = std::int64_t{blockIdx.x} * strip_columns, column = strip + lane % lanes * chunk;
    float total[chunk] = {};
    if (column < columns) {
#pragma unroll 8
        for (int p = warp * chunk + lane / lanes; p < count; p += summing_warps * chunk) {
            float v[chunk];
            load(v, partial + p * columns + column);
#pragma unroll
            for (int j = 0; j < chunk; ++j) total[j] += v[j];
        }
    }
#pragma unroll
    for (int j = 0; j < chunk; ++j) {
        for (int bits = lanes; bits < 32; bits *= 2) total[j] += __shfl_xor_sync(full_warp, total[j], bits);
    }
    if (lane < lanes) store(sums[warp] + lane * chunk, total);
    __syncthreads();
    if (warp > 0 || strip + lane >= columns) return;
    float sum = 0;
    for (int w = 0; w < summing_warps; ++w) sum += sums[w][lane];
    out[strip + lane] += sum;
}

/// Rows whose sum is one partial sum: a function of the number of rows alone, at most 64 partial sums.
std::int64_t rows_of_partial(std::int64_t rows) {
    return std::max<std::int64_t>(64, (rows + 63) / 64);
}

std::int64_t partials_of(std::int64_t rows) {
    return (rows + rows_of_partial(rows) - 1) / rows_of_partial(rows);
}

template <class T, int chunk>
void sum_rows(cudaStream_t stream, float* partial, Tensor dy) {
    const dim3 grid(static_cast<unsigned>(partials_of(dy.rows)), few_blocks_for(dy.columns, 32 * chunk));
    launch<bias_partial_kernel<T, chunk>>({.grid = grid, .block = dim3(threads), .stream = stream}, partial, dy.as<const T>(), dy.rows,
                                          dy.columns, rows_of_partial(dy.rows));
}

}  // namespace

void add_column_sums(cudaStream_t stream, float* out, const float* partial, std::int64_t count, std::int64_t columns) {
    const LaunchShape shape{.grid = dim3(blocks_for(columns, strip_columns)), .block = dim3(32 * summing_warps), .stream = stream};
    if (columns % 4 == 0 && aligned_to(16, partial)) {
        launch<column_sums_kernel<4>>(shape, out, partial, static_cast<int>(count), columns);
    } else {
        launch<column_sums_kernel<1>>(shape, out, partial, static_cast<int>(count), columns);
    }
}

void bias_backward(cudaStream_t stream, float* dbias, Tensor dy, float* scratch) {
    if (dy.elements() == 0) return;
    with_type(dy.dtype, "bias_backward", [&]<class T>() {
        constexpr int chunk = vector_of<T>;
        if (dy.columns % chunk == 0 && aligned_to(16, dy.as<T>())) {
            sum_rows<T, chunk>(stream, scratch, dy);
        } else {
            sum_rows<T, 1>(stream, scratch, dy);
        }
    });
    add_column_sums(stream, dbias, scratch, partials_of(dy.rows), dy.columns);
}

std::int64_t bias_scratch(std::int64_t rows, std::int64_t columns) {
    return partials_of(rows) * columns;
}

}  // namespace sherd::cuda
