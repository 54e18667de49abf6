#include "column_sums.hpp"
#include "device.cuh"
#include "dispatch.hpp"
#include "kernels.hpp"
#include "norm_loops.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

// A row is held in the registers of the threads that share it: `group` of them, each with `vectors` times 16 bytes as they lie in memory,
// so that nothing is read twice. Rows of up to 32 threads (the heads of query/key norms) stand next to each other in a block of small_block
// threads; a longer one has a block of its own. What does not fit (more than most_threads threads, widths or addresses that 16 bytes do not
// divide) goes through the loops of norm_loops.cu.
constexpr int small_block = 256, warp = 32;
constexpr int most_threads = 1024;          ///< of a row, two vectors each: up to 16,384 columns of 16 bits
constexpr int most_backward_threads = 512;  ///< two or four vectors each: a thread holds three rows and its sums, in up to 128 registers

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

/// Elements of a thread, zero beyond the row.
template <class T, int vectors>
struct Held {
    uint4 bits[vectors];

    __device__ void load_row(const Place<T>& p, const T* from) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            bits[v] = p.holds(v) ? *reinterpret_cast<const uint4*>(from + p.at(v)) : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ void clear() {
#pragma unroll
        for (int v = 0; v < vectors; ++v) bits[v] = make_uint4(0, 0, 0, 0);
    }
    __device__ void load_columns(const Place<T>& p, const T* from) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            bits[v] = p.column(v) < p.columns ? *reinterpret_cast<const uint4*>(from + p.column(v)) : make_uint4(0, 0, 0, 0);
        }
    }
    /// Makes the compiler convert them again where they are used next, instead of keeping floats, which take twice the registers.
    __device__ void forget_floats() {
#pragma unroll
        for (int v = 0; v < vectors; ++v) bits[v] = opaque(bits[v]);
    }
};

/// Writes x * scale * w.
template <class T, int vectors>
__device__ void store_scaled(const Place<T>& p, T* y, const Held<T, vectors>& x, float scale, const Held<T, vectors>& w) {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
        float value[vector_of<T>], weight[vector_of<T>];
        unpack<T>(value, x.bits[v]);
        unpack<T>(weight, w.bits[v]);
#pragma unroll
        for (int j = 0; j < vector_of<T>; ++j) value[j] *= scale * weight[j];
        if (p.holds(v)) store(y + p.at(v), value);
    }
}

constexpr int pair = 2;  ///< vectors of a thread where nothing but the row and w is held

/// Bytes: 2 sizeof(T) an element, 4 with delta. FLOPs: 4, 5 with delta.
template <class T>
__global__ void __launch_bounds__(most_threads) rms_norm_forward_kernel(T* y, float* rstd, T* sum, const T* x, const T* delta, const T* w,
                                                                        std::int64_t rows, int columns, int group, float epsilon) {
    __shared__ float scratch[32];
    const Place<T> p(std::int64_t{blockIdx.x} * (blockDim.x / group), rows, columns, group);
    Held<T, pair> value, weight;
    value.load_row(p, x);
    weight.load_columns(p, w);
    if (delta != nullptr) {
        Held<T, pair> added;
        added.load_row(p, delta);
#pragma unroll
        for (int v = 0; v < pair; ++v) {
            float a[vector_of<T>], b[vector_of<T>];
            unpack<T>(a, value.bits[v]);
            unpack<T>(b, added.bits[v]);
#pragma unroll
            for (int j = 0; j < vector_of<T>; ++j) a[j] += b[j];
            value.bits[v] = pack<T>(a);
            if (p.holds(v)) *reinterpret_cast<uint4*>(sum + p.at(v)) = value.bits[v];
        }
    }
    float squares = 0;
#pragma unroll
    for (int v = 0; v < pair; ++v) {
        float a[vector_of<T>];
        unpack<T>(a, value.bits[v]);
#pragma unroll
        for (int j = 0; j < vector_of<T>; ++j) squares += a[j] * a[j];
    }
    const float scale = 1.0f / sqrtf(p.sum(squares, scratch) / static_cast<float>(columns) + epsilon);
    if (p.live && p.lane == 0) rstd[p.row] = scale;
    store_scaled(p, y, value, scale, weight);
}

/// Bytes: 2 sizeof(T) an element. FLOPs: 2.
template <class T>
__global__ void __launch_bounds__(most_threads)
    rms_norm_again_kernel(T* y, const T* x, const float* rstd, const T* w, std::int64_t rows, int columns, int group) {
    const Place<T> p(std::int64_t{blockIdx.x} * (blockDim.x / group), rows, columns, group);
    Held<T, pair> value, weight;
    value.load_row(p, x);
    weight.load_columns(p, w);
    store_scaled(p, y, value, p.live ? rstd[p.row] : 0.0f, weight);
}

/// What the backward pass reads of a row; where there is nothing to add to, it starts from zeros.
template <class T, int vectors>
struct Row {
    Held<T, vectors> gradient, value, to;
    float scale;

    __device__ void load(const Place<T>& p, const T* dy, const T* x, const T* dx, const float* rstd, bool accumulate) {
        gradient.load_row(p, dy);
        value.load_row(p, x);
        if (accumulate) {
            to.load_row(p, dx);
        } else {
            to.clear();
        }
        scale = p.live ? rstd[p.row] : 0.0f;
    }
    /// dw += dy x rstd; the thread's part of dy w . x.
    __device__ float take(float (&dw)[vectors][vector_of<T>], const Held<T, vectors>& w) const {
        float dot = 0;
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            float g[vector_of<T>], a[vector_of<T>], weight[vector_of<T>];
            unpack<T>(g, gradient.bits[v]);
            unpack<T>(a, value.bits[v]);
            unpack<T>(weight, w.bits[v]);
#pragma unroll
            for (int j = 0; j < vector_of<T>; ++j) {
                dw[v][j] += g[j] * a[j] * scale;
                dot += g[j] * weight[j] * a[j];
            }
        }
        return dot;
    }
    /// dx = what was there + rstd (dy w - x shared), shared = rstd^2 mean(dy w x).
    __device__ void store_to(T* dx, const Place<T>& p, const Held<T, vectors>& w, float shared) const {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            float g[vector_of<T>], a[vector_of<T>], weight[vector_of<T>], sum[vector_of<T>];
            unpack<T>(g, gradient.bits[v]);
            unpack<T>(a, value.bits[v]);
            unpack<T>(weight, w.bits[v]);
            unpack<T>(sum, to.bits[v]);
#pragma unroll
            for (int j = 0; j < vector_of<T>; ++j) sum[j] += scale * (g[j] * weight[j] - a[j] * shared);
            if (p.holds(v)) store(dx + p.at(v), sum);
        }
    }
};

/// partial[b, c] of a block whose rows stand side by side: their threads' sums are added in order.
template <class T, int vectors>
__device__ void store_partial(float* partial, const float (&dw)[vectors][vector_of<T>], int columns, int group) {
    __shared__ __align__(16) float sums[small_block * pair * vector_of<T>];
    const int together = static_cast<int>(blockDim.x) / group;
    const Place<T> p(0, together, columns, group);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
        if (p.holds(v)) store(sums + p.at(v), dw[v]);
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x)) {
        float total = 0;
        for (int r = 0; r < together; ++r) total += sums[r * columns + c];
        partial[std::int64_t{blockIdx.x} * columns + c] = total;
    }
}

/// Block b takes every gridDim.x-th group of rows, the next of which is on its way while the sum of one is formed (threads that hold four
/// vectors have no registers for that), and keeps the sums of dw of its columns in registers until its end: partial[b, c].
/// Bytes: 3 sizeof(T) an element, 4 with accumulate; 4 columns a block. FLOPs: 11.
template <class T, int vectors>
__global__ void __launch_bounds__(most_backward_threads)
    rms_norm_backward_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd, const T* w, std::int64_t rows, int columns,
                             int group, bool accumulate) {
    __shared__ float scratch[2][32];
    constexpr bool ahead = vectors == pair;
    const int together = static_cast<int>(blockDim.x) / group;
    const std::int64_t step = std::int64_t{gridDim.x} * together;
    float dw[vectors][vector_of<T>] = {};
    Held<T, vectors> weight;
    weight.load_columns(Place<T>(0, rows, columns, group), w);
    Row<T, vectors> next;
    if constexpr (ahead) next.load(Place<T>(std::int64_t{blockIdx.x} * together, rows, columns, group), dy, x, dx, rstd, accumulate);
    int parity = 0;
    for (std::int64_t first = std::int64_t{blockIdx.x} * together; first < rows; first += step, parity ^= 1) {
        const Place<T> p(first, rows, columns, group);
        if constexpr (!ahead) next.load(p, dy, x, dx, rstd, accumulate);
        Row<T, vectors> row = next;
        if constexpr (ahead) next.load(Place<T>(first + step, rows, columns, group), dy, x, dx, rstd, accumulate);
        weight.forget_floats();
        const float dot = p.sum(row.take(dw, weight), scratch[parity]);
        row.gradient.forget_floats();
        row.value.forget_floats();
        weight.forget_floats();
        row.store_to(dx, p, weight, dot * row.scale * row.scale / static_cast<float>(columns));
    }
    if constexpr (ahead) {
        if (together > 1) return store_partial<T>(partial, dw, columns, group);
    }
    const Place<T> p(blockIdx.x, gridDim.x, columns, group);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
        if (p.holds(v)) store(partial + p.at(v), dw[v]);
    }
}

/// How rows lie on threads; no group: not at all.
struct Geometry {
    int group = 0, block = 0, vectors = 0;
    std::int64_t blocks(std::int64_t rows) const { return (rows + block / group - 1) / (block / group); }
};

template <class T, class... Addresses>
Geometry geometry_of(std::int64_t columns, int threads, int most_vectors, const Addresses*... addresses) {
    constexpr int chunk = vector_of<T>;
    if (columns % chunk != 0 || !aligned_to(16, addresses...)) return {};
    for (int vectors = pair; vectors <= most_vectors; vectors *= 2) {
        const std::int64_t needed = (columns + vectors * chunk - 1) / (vectors * chunk);
        if (needed > threads) continue;
        int group = 1;
        while (group < needed && group < warp) group *= 2;
        if (group >= needed) return {group, small_block, vectors};
        group = static_cast<int>((needed + warp - 1) / warp * warp);
        return {group, group, vectors};
    }
    return {};
}

template <class T, class... Addresses>
Geometry backward_geometry(std::int64_t columns, const Addresses*... addresses) {
    return geometry_of<T>(columns, most_backward_threads, 2 * pair, addresses...);
}

/// Blocks of the backward pass, as many as run at once, each of which leaves a partial sum of dw.
std::int64_t backward_blocks(std::int64_t rows, const Geometry& g) {
    if (g.group == 0) return rms_norm_loop_blocks(rows);
    return std::min<std::int64_t>(g.blocks(rows), std::int64_t{device_limits().multiprocessors} * (most_backward_threads / g.block));
}

LaunchShape shape_of(cudaStream_t stream, std::int64_t blocks, const Geometry& g, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
    return {
        .grid = dim3(blocks_for(blocks, 1)), .block = dim3(static_cast<unsigned>(g.block)), .stream = stream, .file = file, .line = line};
}

}  // namespace

void rms_norm_forward(cudaStream_t stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) {
    if (x.elements() == 0) return;
    with_type(x.dtype, "rms_norm_forward", [&]<class T>() {
        const Geometry g = geometry_of<T>(x.columns, most_threads, pair, y.as<T>(), x.as<T>(), delta.as<T>(), w.as<T>(),
                                          delta.data ? sum.as<T>() : nullptr);
        if (g.group == 0) return rms_norm_forward_loops(stream, y, rstd, sum, x, delta, w, epsilon);
        launch<rms_norm_forward_kernel<T>>(shape_of(stream, g.blocks(x.rows), g), y.as<T>(), rstd, sum.as<T>(), x.as<const T>(),
                                           delta.as<const T>(), w.as<const T>(), x.rows, static_cast<int>(x.columns), g.group, epsilon);
    });
}

void rms_norm_again(cudaStream_t stream, Tensor y, Tensor x, const float* rstd, Tensor w) {
    if (x.elements() == 0) return;
    with_type(x.dtype, "rms_norm_again", [&]<class T>() {
        const Geometry g = geometry_of<T>(x.columns, most_threads, pair, y.as<T>(), x.as<T>(), w.as<T>());
        if (g.group == 0) return rms_norm_again_loops(stream, y, x, rstd, w);
        launch<rms_norm_again_kernel<T>>(shape_of(stream, g.blocks(x.rows), g), y.as<T>(), x.as<const T>(), rstd, w.as<const T>(), x.rows,
                                         static_cast<int>(x.columns), g.group);
    });
}

void rms_norm_backward(cudaStream_t stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch,
                       bool accumulate) {
    if (x.elements() == 0) return;
    std::int64_t partials = 0;
    with_type(x.dtype, "rms_norm_backward", [&]<class T>() {
        const Geometry g = backward_geometry<T>(x.columns, dx.as<T>(), dy.as<T>(), x.as<T>(), w.as<T>(), reinterpret_cast<T*>(scratch));
        partials = backward_blocks(x.rows, g);
        if (g.group == 0) return rms_norm_backward_loops(stream, dx, dy, x, rstd, w, scratch, accumulate);
        const auto run = [&]<int vectors>() {
            launch<rms_norm_backward_kernel<T, vectors>>(shape_of(stream, partials, g), dx.as<T>(), scratch, dy.as<const T>(),
                                                         x.as<const T>(), rstd, w.as<const T>(), x.rows, static_cast<int>(x.columns),
                                                         g.group, accumulate);
        };
        if (g.vectors == pair) return run.template operator()<pair>();
        run.template operator()<2 * pair>();
    });
    add_column_sums(stream, dw, scratch, partials, x.columns);
}

std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) {
    const std::int64_t wide = backward_blocks(rows, backward_geometry<float>(columns));
    const std::int64_t narrow = backward_blocks(rows, backward_geometry<__half>(columns));
    return std::max({wide, narrow, rms_norm_loop_blocks(rows)}) * columns;  // addresses may ask for the loops
}

}  // namespace sherd::cuda
