#include "device.cuh"
#include "dispatch.hpp"
#include "kernels.hpp"

#include <climits>
#include <cmath>
#include <type_traits>

namespace sherd::cuda {

namespace {

constexpr int threads = 256, warps = threads / 32;

/// What moves `chunk` elements at once.
template <class T, int chunk>
using Moved = std::conditional_t<chunk == 1, T, uint4>;

/// A block a row. An id beyond the table, which the host should have refused, gives a row of NaN: the step ends as not finite instead of
/// reading foreign memory. Bytes: 2 sizeof(T) an element. No FLOPs.
template <class T, int chunk>
__global__ void __launch_bounds__(threads)
    embedding_forward_kernel(T* y, const T* table, const std::int32_t* ids, std::int64_t vocabulary, std::int64_t columns) {
    const std::int64_t id = ids[blockIdx.x];
    T* const to = y + blockIdx.x * columns;
    const T* const from = table + id * columns;
    for (std::int64_t c = threadIdx.x * chunk; c < columns; c += threads * chunk) {
        float v[chunk];
        if (id >= 0 && id < vocabulary) {
            load(v, from + c);  // to float and back is exact
        } else {
#pragma unroll
            for (int j = 0; j < chunk; ++j) v[j] = id < 0 ? 0.0f : NAN;
        }
        store(to + c, v);
    }
}

/// An id as a row of the table; -1 where there is none.
__device__ int row_of_table(std::int32_t id, std::int64_t vocabulary) {
    return id >= 0 && id < vocabulary ? id : -1;
}

constexpr int sorted_rows = 32, tile_ids = 1024;  ///< of a block; of what it has in shared memory at a time

/// order: rows 0, 1, ... by their ids, equal ids in rising order of rows. Each row counts those that come before it, a lane a row, each
/// warp its part of the others: no atomics, nothing to prepare, and of all that linear sorts need, one launch in the place of several.
/// Bytes: 8 a row, and ids from the L2 cache. Integer operations: 2 for each pair of rows; 16,384 rows take some 30 us on 132
/// multiprocessors, a thousandth of such a batch's step with the smallest models.
__global__ void __launch_bounds__(threads) order_kernel(int* order, const std::int32_t* ids, int rows, std::int64_t vocabulary) {
    __shared__ __align__(16) int tile[tile_ids];
    __shared__ int counts[warps][sorted_rows];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int first = static_cast<int>(blockIdx.x) * sorted_rows, t = first + lane;
    const int id = t < rows ? row_of_table(ids[t], vocabulary) : -1;
    int before = 0;
    for (int start = 0; start < rows; start += tile_ids) {
        __syncthreads();  // nobody needs the tile before
        for (int i = static_cast<int>(threadIdx.x); i < tile_ids; i += threads) {
            tile[i] = start + i < rows ? row_of_table(ids[start + i], vocabulary) : INT_MAX;
        }
        __syncthreads();
#pragma unroll 4
        for (int i = warp * 4; i < tile_ids; i += warps * 4) {
            const int4 other = *reinterpret_cast<const int4*>(tile + i);
            const int u = start + i;
            if (u / sorted_rows == static_cast<int>(blockIdx.x)) {
                before += (other.x < id || (other.x == id && u < t)) + (other.y < id || (other.y == id && u + 1 < t)) +
                          (other.z < id || (other.z == id && u + 2 < t)) + (other.w < id || (other.w == id && u + 3 < t));
            } else {
                const int last = u < first ? id : id - 1;  // of earlier rows, those with the same id come before
                before += (other.x <= last) + (other.y <= last) + (other.z <= last) + (other.w <= last);
            }
        }
    }
    counts[warp][lane] = before;
    __syncthreads();
    if (warp > 0 || t >= rows) return;
    for (int w = 1; w < warps; ++w) before += counts[w][lane];
    order[before] = t;
}

constexpr int batch = 16;  ///< rows that are on their way from memory at once

/// Warp (p, s): where row order[p] is the first with its id, the gradients of all rows with that id, which follow it in `order`, are added
/// to its row of the table one after another, in 32 chunks of columns from 32 s chunk on. All strips s of a row start together, and low
/// ids, which are the frequent ones of most tokenizers, start first: theirs are the longest sums. Bytes: sizeof(T) an element of dy and 8
/// an element of the rows of the table that occur. FLOPs: 1 an element.
template <class T, int chunk>
__global__ void __launch_bounds__(threads)
    embedding_backward_kernel(float* dtable, const T* dy, const std::int32_t* ids, const int* order, int rows, std::int64_t vocabulary,
                              std::int64_t columns, unsigned strips) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int p = static_cast<int>(blockIdx.x / strips) * warps + static_cast<int>(threadIdx.x / 32);
    if (p >= rows) return;
    const int id = row_of_table(ids[order[p]], vocabulary);
    if (id < 0 || (p > 0 && ids[order[p - 1]] == id)) return;
    const std::int64_t column = (std::int64_t{blockIdx.x % strips} * 32 + lane) * chunk;
    const bool live = column < columns;
    float* const to = dtable + id * columns + column;
    float total[chunk] = {};
    if (live) load(total, to);
    for (int all = 32; all == 32; p += 32) {
        const int t = p + lane < rows ? order[p + lane] : -1;
        const unsigned same = __ballot_sync(full_warp, t >= 0 && ids[t] == id);
        all = __popc(same);  // they stand together: in lanes 0 to all - 1
        for (int n = 0; n < all; n += batch) {
            Moved<T, chunk> v[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                const int row = __shfl_sync(full_warp, t, n + b);
                if (n + b < all && live) v[b] = *reinterpret_cast<const Moved<T, chunk>*>(dy + row * columns + column);
            }
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (n + b >= all) break;
                float added[chunk];
                load(added, reinterpret_cast<const T*>(&v[b]));
#pragma unroll
                for (int j = 0; j < chunk; ++j) total[j] += added[j];
            }
        }
    }
    if (live) store(to, total);
}

template <class T, int chunk>
void copy_rows(cudaStream_t stream, Tensor y, Tensor table, const std::int32_t* ids) {
    launch<embedding_forward_kernel<T, chunk>>({.grid = dim3(blocks_for(y.rows, 1)), .block = dim3(threads), .stream = stream}, y.as<T>(),
                                               table.as<const T>(), ids, table.rows, y.columns);
}

template <class T, int chunk>
void add_rows(cudaStream_t stream, Tensor dtable, Tensor dy, const std::int32_t* ids, const int* order) {
    const unsigned strips = blocks_for(dy.columns, 32 * chunk);
    const dim3 grid(blocks_for(std::int64_t{blocks_for(dy.rows, warps)} * strips, 1));
    launch<embedding_backward_kernel<T, chunk>>({.grid = grid, .block = dim3(threads), .stream = stream}, dtable.as<float>(),
                                                dy.as<const T>(), ids, order, static_cast<int>(dy.rows), dtable.rows, dy.columns, strips);
}

}  // namespace

void embedding_forward(cudaStream_t stream, Tensor y, Tensor table, const std::int32_t* ids) {
    if (y.elements() == 0) return;
    with_type(y.dtype, "embedding_forward", [&]<class T>() {
        constexpr int chunk = vector_of<T>;
        if (y.columns % chunk == 0 && aligned_to(16, y.as<T>(), table.as<T>())) {
            copy_rows<T, chunk>(stream, y, table, ids);
        } else {
            copy_rows<T, 1>(stream, y, table, ids);
        }
    });
}

void embedding_backward(cudaStream_t stream, Tensor dtable, Tensor dy, const std::int32_t* ids, std::int32_t* scratch) {
    if (dy.elements() == 0) return;
    launch<order_kernel>({.grid = dim3(blocks_for(dy.rows, sorted_rows)), .block = dim3(threads), .stream = stream}, scratch, ids,
                         static_cast<int>(dy.rows), dtable.rows);
    with_type(dy.dtype, "embedding_backward", [&]<class T>() {
        constexpr int chunk = vector_of<T>;
        if (dy.columns % chunk == 0 && aligned_to(16, dtable.as<float>(), dy.as<T>())) {
            add_rows<T, chunk>(stream, dtable, dy, ids, scratch);
        } else {
            add_rows<T, 1>(stream, dtable, dy, ids, scratch);
        }
    });
}

std::int64_t embedding_scratch(std::int64_t rows) {
    return rows;
}

}  // namespace sherd::cuda
