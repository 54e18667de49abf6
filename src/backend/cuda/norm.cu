#include "column_sums.hpp"
#include "device.cuh"
#include "dispatch.hpp"
#include "kernels.hpp"
#include "norm_loops.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

// A row is held in the registers of the threads that share it: `group` of them, each with two vectors of 16 bytes, so that nothing is read
// twice. Rows of up to 32 threads (the heads of query/key norms) stand next to each other in a block of small_block threads; a longer one
// has a block of its own. What does not fit (more than 1,024 threads, widths or addresses that 16 bytes do not divide) goes through the
// loops of norm_loops.cu.
constexpr int vectors = 2, small_block = 256, warp = 32;

/// What a thread owns of which row.
template <class T>
struct Place {
    static constexpr int chunk = vector_of<T>;
    std::int64_t row;
    int lane, group, columns;
    bool live;

    __device__ Place(std::int64_t first_row, std::int64_t rows, int columns_of_row, int threads_of_row)
        : row(first_row + static_cast<int>(threadIdx.x) / threads_of_row),
          lane(static_cast<int>(threadIdx.x) % threads_of_row),
          group(threads_of_row),
          columns(columns_of_row),
          live(row < rows) {}
    __device__ int column(int vector) const { return (lane + vector * group) * chunk; }
    __device__ bool holds(int vector) const { return live && column(vector) < columns; }
    __device__ std::int64_t at(int vector) const { return row * columns + column(vector); }
    /// Sum over the row's threads.
    __device__ float sum(float v, float* scratch) const { return group > warp ? block_sum(v, scratch) : lane_sum(v, group); }
};

/// Values of a thread, zero beyond the row.
template <class T>
struct Values {
    static constexpr int chunk = vector_of<T>;
    float at[vectors][chunk] = {};

    __device__ void load_row(const Place<T>& p, const T* from) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            if (p.holds(v)) load(at[v], from + p.at(v));
        }
    }
    __device__ void load_columns(const Place<T>& p, const T* from) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            if (p.column(v) < p.columns) load(at[v], from + p.column(v));
        }
    }
    __device__ void store_row(const Place<T>& p, T* to) const {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            if (p.holds(v)) store(to + p.at(v), at[v]);
        }
    }
};

/// Calls f(v, j) for every value of a thread.
template <class T, class F>
__device__ void for_values(const F& f) {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
#pragma unroll
        for (int j = 0; j < vector_of<T>; ++j) f(v, j);
    }
}

/// Bytes: 2 sizeof(T) an element, 4 with delta. FLOPs: 4, 5 with delta.
template <class T>
__global__ void rms_norm_forward_kernel(T* y, float* rstd, T* sum, const T* x, const T* delta, const T* w, std::int64_t rows, int columns,
                                        int group, float epsilon) {
    __shared__ float scratch[32];
    const Place<T> p(std::int64_t{blockIdx.x} * (blockDim.x / group), rows, columns, group);
    Values<T> value, weight;
    value.load_row(p, x);
    weight.load_columns(p, w);
    if (delta != nullptr) {
        Values<T> added;
        added.load_row(p, delta);
        for_values<T>([&](int v, int j) { value.at[v][j] = to_float(from_float<T>(value.at[v][j] + added.at[v][j])); });
        value.store_row(p, sum);
    }
    float squares = 0;
    for_values<T>([&](int v, int j) { squares += value.at[v][j] * value.at[v][j]; });
    const float scale = 1.0f / sqrtf(p.sum(squares, scratch) / static_cast<float>(columns) + epsilon);
    if (p.live && p.lane == 0) rstd[p.row] = scale;
    for_values<T>([&](int v, int j) { value.at[v][j] *= scale * weight.at[v][j]; });
    value.store_row(p, y);
}

/// Bytes: 2 sizeof(T) an element. FLOPs: 2.
template <class T>
__global__ void rms_norm_again_kernel(T* y, const T* x, const float* rstd, const T* w, std::int64_t rows, int columns, int group) {
    const Place<T> p(std::int64_t{blockIdx.x} * (blockDim.x / group), rows, columns, group);
    Values<T> value, weight;
    value.load_row(p, x);
    weight.load_columns(p, w);
    const float scale = p.live ? rstd[p.row] : 0.0f;
    for_values<T>([&](int v, int j) { value.at[v][j] *= scale * weight.at[v][j]; });
    value.store_row(p, y);
}

/// partial[b, c] of a block whose rows stand side by side: their threads' sums are added in order.
template <class T>
__device__ void store_partial(float* partial, const Values<T>& dw, int columns, int group) {
    __shared__ __align__(16) float sums[small_block * vectors * vector_of<T>];
    const int together = static_cast<int>(blockDim.x) / group;
    const Place<T> p(0, together, columns, group);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
        if (p.holds(v)) store(sums + p.at(v), dw.at[v]);
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x)) {
        float total = 0;
        for (int r = 0; r < together; ++r) total += sums[r * columns + c];
        partial[std::int64_t{blockIdx.x} * columns + c] = total;
    }
}

/// Block b takes every gridDim.x-th group of rows and keeps the sums of dw of its columns in registers until its end: partial[b, c].
/// Bytes: 4 sizeof(T) an element, 4 columns a block. FLOPs: 11.
template <class T>
__global__ void rms_norm_backward_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd, const T* w, std::int64_t rows,
                                         int columns, int group) {
    __shared__ float scratch[2][32];
    const int together = static_cast<int>(blockDim.x) / group;
    Values<T> weight, dw;
    weight.load_columns(Place<T>(0, rows, columns, group), w);
    int parity = 0;
    for (std::int64_t first = std::int64_t{blockIdx.x} * together; first < rows; first += std::int64_t{gridDim.x} * together, parity ^= 1) {
        const Place<T> p(first, rows, columns, group);
        Values<T> gradient, value, to;
        gradient.load_row(p, dy);
        value.load_row(p, x);
        to.load_row(p, dx);
        const float scale = p.live ? rstd[p.row] : 0.0f;
        float dot = 0;
        for_values<T>([&](int v, int j) {
            dw.at[v][j] += gradient.at[v][j] * value.at[v][j] * scale;
            gradient.at[v][j] *= weight.at[v][j];
            dot += gradient.at[v][j] * value.at[v][j];
        });
        const float shared = p.sum(dot, scratch[parity]) * scale * scale / static_cast<float>(columns);
        for_values<T>([&](int v, int j) { to.at[v][j] += scale * (gradient.at[v][j] - value.at[v][j] * shared); });
        to.store_row(p, dx);
    }
    if (together > 1) return store_partial(partial, dw, columns, group);
    const Place<T> p(blockIdx.x, gridDim.x, columns, group);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
        if (p.holds(v)) store(partial + p.at(v), dw.at[v]);
    }
}

/// How rows lie on threads; no group: not at all.
struct Geometry {
    int group = 0, block = 0;
    std::int64_t together() const { return block / group; }
};

template <class T, class... Addresses>
Geometry geometry_of(std::int64_t columns, const Addresses*... addresses) {
    constexpr int chunk = vector_of<T>;
    const std::int64_t needed = (columns + vectors * chunk - 1) / (vectors * chunk);
    if (columns % chunk != 0 || needed > 1024 || !aligned_to(16, addresses...)) return {};
    if (needed > warp) {
        const int group = static_cast<int>((needed + warp - 1) / warp * warp);
        return {group, group};
    }
    int group = 1;
    while (group < needed) group *= 2;
    return {group, small_block};
}

LaunchShape shape_of(cudaStream_t stream, std::int64_t blocks, const Geometry& g, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
    return {
        .grid = dim3(blocks_for(blocks, 1)), .block = dim3(static_cast<unsigned>(g.block)), .stream = stream, .file = file, .line = line};
}

std::int64_t blocks_of(std::int64_t rows, const Geometry& g) {
    return (rows + g.together() - 1) / g.together();
}

}  // namespace

void rms_norm_forward(cudaStream_t stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) {
    if (x.elements() == 0) return;
    with_type(x.dtype, "rms_norm_forward", [&]<class T>() {
        const Geometry g = geometry_of<T>(x.columns, y.as<T>(), x.as<T>(), delta.as<T>(), w.as<T>(), delta.data ? sum.as<T>() : nullptr);
        if (g.group == 0) return rms_norm_forward_loops(stream, y, rstd, sum, x, delta, w, epsilon);
        launch<rms_norm_forward_kernel<T>>(shape_of(stream, blocks_of(x.rows, g), g), y.as<T>(), rstd, sum.as<T>(), x.as<const T>(),
                                           delta.as<const T>(), w.as<const T>(), x.rows, static_cast<int>(x.columns), g.group, epsilon);
    });
}

void rms_norm_again(cudaStream_t stream, Tensor y, Tensor x, const float* rstd, Tensor w) {
    if (x.elements() == 0) return;
    with_type(x.dtype, "rms_norm_again", [&]<class T>() {
        const Geometry g = geometry_of<T>(x.columns, y.as<T>(), x.as<T>(), w.as<T>());
        if (g.group == 0) return rms_norm_again_loops(stream, y, x, rstd, w);
        launch<rms_norm_again_kernel<T>>(shape_of(stream, blocks_of(x.rows, g), g), y.as<T>(), x.as<const T>(), rstd, w.as<const T>(),
                                         x.rows, static_cast<int>(x.columns), g.group);
    });
}

void rms_norm_backward(cudaStream_t stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch) {
    if (x.elements() == 0) return;
    std::int64_t partials = 0;
    with_type(x.dtype, "rms_norm_backward", [&]<class T>() {
        const Geometry g = geometry_of<T>(x.columns, dx.as<T>(), dy.as<T>(), x.as<T>(), w.as<T>(), reinterpret_cast<const T*>(scratch));
        partials = rms_norm_partials(g.group == 0 ? x.rows : blocks_of(x.rows, g));
        if (g.group == 0) return rms_norm_backward_loops(stream, dx, dy, x, rstd, w, scratch);
        launch<rms_norm_backward_kernel<T>>(shape_of(stream, partials, g), dx.as<T>(), scratch, dy.as<const T>(), x.as<const T>(), rstd,
                                            w.as<const T>(), x.rows, static_cast<int>(x.columns), g.group);
    });
    add_column_sums(stream, dw, scratch, partials, x.columns);
}

std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) {
    return rms_norm_partials(rows) * columns;
}

}  // namespace sherd::cuda
