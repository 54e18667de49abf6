#include "device.cuh"
#include "dispatch.hpp"
#include "kernels.hpp"

#include <cmath>

namespace sherd::cuda {

namespace {

constexpr int threads = 256, warps = threads / 32;

/// A block a row. An id beyond the table, which the host should have refused, gives a row of NaN: the step ends as not finite instead of
/// reading foreign memory. Bytes: 2 sizeof(T) an element.
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

constexpr int looked_at = 4;  ///< ids that a thread compares between two barriers

/// Whether an earlier row than t has its id; the nearest are asked first, for words that are frequent return soon.
__device__ bool seen_before(const std::int32_t* ids, int t) {
    const std::int32_t id = ids[t];
    for (int end = t; end > 0; end -= threads * looked_at) {
        bool same = false;
#pragma unroll
        for (int j = 0; j < looked_at; ++j) {
            const int i = end - 1 - j * threads - static_cast<int>(threadIdx.x);
            same = same || (i >= 0 && ids[i] == id);
        }
        if (__syncthreads_or(same)) return true;
    }
    return false;
}

constexpr int batch = 8;  ///< rows that are on their way from memory at once

/// Block (t, s): where row t is the first with its id, the gradients of all rows with that id are added to its row of the table, in their
/// order; the block owns columns [s threads chunk, ...). So neither atomics nor a sorted list of the ids are needed.
/// Bytes: sizeof(T) an element of dy and 8 an element of the rows of the table that occur; every block reads the ids from the L2 cache,
/// 4 rows^2 bytes in all. FLOPs: 1 an element.
template <class T, int chunk>
__global__ void __launch_bounds__(threads) embedding_backward_kernel(float* dtable, const T* dy, const std::int32_t* ids, int rows,
                                                                     std::int64_t vocabulary, std::int64_t columns) {
    __shared__ int found[threads], counts[2][warps];
    const int t = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const std::int64_t id = ids[t];
    if (id < 0 || id >= vocabulary || seen_before(ids, t)) return;
    const std::int64_t column = (std::int64_t{blockIdx.y} * threads + threadIdx.x) * chunk;
    const bool live = column < columns;
    float* const to = dtable + id * columns + column;
    float total[chunk] = {};
    if (live) load(total, to);
    int parity = 0;
    for (int start = t; start < rows; start += threads, parity ^= 1) {
        const int i = start + static_cast<int>(threadIdx.x);
        const bool mine = i < rows && ids[i] == id;
        const unsigned vote = __ballot_sync(full_warp, mine);
        if (lane == 0) counts[parity][warp] = __popc(vote);
        __syncthreads();
        int before = 0, all = 0;
#pragma unroll
        for (int w = 0; w < warps; ++w) {
            before += w < warp ? counts[parity][w] : 0;
            all += counts[parity][w];
        }
        if (all == 0) continue;  // the other half of counts is next, so that nobody has to wait for who still reads this one
        if (mine) found[before + __popc(vote & ((1u << lane) - 1u))] = i;
        __syncthreads();
        if (!live) continue;
        for (int n = 0; n < all; n += batch) {
            float v[batch][chunk];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (n + b < all) load(v[b], dy + found[n + b] * columns + column);
            }
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (n + b >= all) break;
#pragma unroll
                for (int j = 0; j < chunk; ++j) total[j] += v[b][j];
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
void add_rows(cudaStream_t stream, Tensor dtable, Tensor dy, const std::int32_t* ids) {
    const dim3 grid(blocks_for(dy.rows, 1), blocks_for(dy.columns, std::int64_t{threads} * chunk));
    launch<embedding_backward_kernel<T, chunk>>({.grid = grid, .block = dim3(threads), .stream = stream}, dtable.as<float>(),
                                                dy.as<const T>(), ids, static_cast<int>(dy.rows), dtable.rows, dy.columns);
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

void embedding_backward(cudaStream_t stream, Tensor dtable, Tensor dy, const std::int32_t* ids) {
    if (dy.elements() == 0) return;
    with_type(dy.dtype, "embedding_backward", [&]<class T>() {
        constexpr int chunk = vector_of<T>;
        if (dy.columns % chunk == 0 && aligned_to(16, dtable.as<float>(), dy.as<T>())) {
            add_rows<T, chunk>(stream, dtable, dy, ids);
        } else {
            add_rows<T, 1>(stream, dtable, dy, ids);
        }
    });
}

}  // namespace sherd::cuda
