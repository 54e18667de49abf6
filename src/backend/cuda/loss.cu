#include "device.cuh"
#include "dispatch.hpp"
#include "kernels.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace sherd::cuda {

namespace {

constexpr int chunk = 4;  ///< logits that a thread moves at once: 16 bytes
constexpr int batch = 4;  ///< of those, on their way from memory at once
constexpr int most_threads = 1024;
constexpr int static_bytes = 256;  ///< of shared memory, for sums over the block

/// Largest logit so far and the sum of exponentials relative to it, of the logits that a thread or a block has seen.
struct Softmax {
    float top = -FLT_MAX, sum = 0;  // finite: -infinity minus itself would be NaN

    template <int N>
    __device__ void take(const float (&z)[N]) {
        float highest = z[0];
#pragma unroll
        for (int j = 1; j < N; ++j) highest = fmaxf(highest, z[j]);
        const float higher = fmaxf(top, highest);
        sum *= fast_exp2((top - higher) * log2_e);
#pragma unroll
        for (int j = 0; j < N; ++j) sum += fast_exp2((z[j] - higher) * log2_e);
        top = higher;
    }
    /// Of all threads of the block, in each of them.
    __device__ void join_block(float* tops, float* sums) {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
        float highest = lane_max(top);
        sum = lane_sum(sum * fast_exp2((top - highest) * log2_e));
        if (lane == 0) {
            tops[warp] = highest;
            sums[warp] = sum;
        }
        __syncthreads();
        const float mine = lane < warps ? tops[lane] : -FLT_MAX;
        top = lane_max(mine);
        sum = lane_sum(lane < warps ? sums[lane] * fast_exp2((mine - top) * log2_e) : 0.0f);
    }
};

/// Calls body(v, i) for elements [i, i + N) of a row of n, v holding what fetch(v, i) put there: four at a time from the first whose
/// address is a multiple of 16 bytes on (`head` elements before it), a batch of which are fetched before the first is used; single ones
/// before and after those.
template <class Fetch, class Body>
__device__ void over_row(int head, int n, const Fetch& fetch, const Body& body) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), turn = threads * chunk;
    const int last = head + (n - head) / chunk * chunk;
    const auto single = [&](int i) {
        float v[1];
        fetch(v, i);
        body(v, i);
    };
    for (int s = thread; s < head; s += threads) single(s);
    const auto several = [&]<int count>(int i) {
        float v[count][chunk];
#pragma unroll
        for (int b = 0; b < count; ++b) fetch(v[b], i + b * turn);
#pragma unroll
        for (int b = 0; b < count; ++b) body(v[b], i + b * turn);
    };
    int i = head + thread * chunk;
    for (; i + (batch - 1) * turn < last; i += batch * turn) several.template operator()<batch>(i);
    for (; i < last; i += turn) several.template operator()<1>(i);
    for (i = last + thread; i < n; i += threads) single(i);
}

/// A block a row. One pass for the largest logit and the sum of exponentials, which keeps the first `kept` logits in shared memory, and one
/// for the gradient, which may overwrite the logits: a thread reads and writes what is its own. A target beyond the vocabulary, which the
/// host should have refused, gives a loss that is not a number.
/// Bytes: 4 a logit read, sizeof(T) written; the logits beyond `kept` are read once more, from the L2 cache as far as those of all rows
/// under way fit there (of 128,256, with 227 KiB of shared memory, 70,000: 37 MB for 132 blocks).
/// FLOPs: 9 a logit, two of them exponentials.
template <class T>
__global__ void __launch_bounds__(most_threads)
    cross_entropy_kernel(float* loss, T* gradient, const float* logits, const std::int32_t* targets, int n, float scale, bool aligned,
                         int kept) {
    __shared__ float tops[32], sums[32];
    static_assert(sizeof tops + sizeof sums == static_bytes);
    float* const store_of_row = dynamic_shared<float>();
    const std::int64_t row = std::int64_t{blockIdx.x} * n;
    const int target = targets[blockIdx.x];
    // the address of element i of the row is a multiple of 16 bytes where row + i is one of 4, and that of the gradient of 4 elements
    const int head = aligned ? min(n, static_cast<int>((chunk - row % chunk) % chunk)) : n;
    const auto write = [&]<int N>(const float(&v)[N], int i) { store(gradient + row + i, v); };
    if (target < 0) {
        if (threadIdx.x == 0) loss[blockIdx.x] = 0;
        if (gradient == nullptr) return;
        over_row(
            head, n,
            [&]<int N>(float(&v)[N], int) {
#pragma unroll
                for (int j = 0; j < N; ++j) v[j] = 0;
            },
            write);
        return;
    }
    const float* const z = logits + row;
    const float at_target = target < n ? z[target] : NAN;
    Softmax softmax;
    over_row(
        head, n, [&]<int N>(float(&v)[N], int i) { load(v, z + i); },
        [&]<int N>(const float(&v)[N], int i) {
            softmax.take(v);
            if constexpr (N == chunk) {
                if (i - head < kept) store(store_of_row + (i - head), v);
            }
        });
    softmax.join_block(tops, sums);  // after its barrier no thread needs z[target] any more
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(softmax.sum) + (softmax.top - at_target);
    if (gradient == nullptr) return;
    const float factor = scale / softmax.sum;
    over_row(
        head, n,
        [&]<int N>(float(&v)[N], int i) {
            const bool here = N == chunk && i - head < kept;
            load(v, here ? store_of_row + (i - head) : z + i);
        },
        [&]<int N>(float(&v)[N], int i) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                v[j] = fast_exp2((v[j] - softmax.top) * log2_e) * factor;
                if (i + j == target) v[j] -= scale;
            }
            write(v, i);
        });
}

}  // namespace

void cross_entropy(cudaStream_t stream, float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale) {
    if (logits.rows == 0) return;
    const std::int64_t n = logits.columns;
    // from 8,192 on a row takes so much shared memory that few blocks share a multiprocessor
    const auto threads = static_cast<unsigned>(n >= 8192 ? most_threads : n >= 2048 ? 512 : 128);
    with_type(gradient.data == nullptr ? DType::f32 : gradient.dtype, "cross_entropy", [&]<class T>() {
        const bool aligned = aligned_to(16, logits.as<float>()) && aligned_to(chunk * sizeof(T), gradient.as<T>());
        const std::int64_t room = (device_limits().shared_bytes - static_bytes) / 16 * chunk;
        const auto kept = static_cast<int>(aligned && gradient.data != nullptr ? std::min(n / chunk * chunk, room) : 0);
        launch<cross_entropy_kernel<T>>({.grid = dim3(blocks_for(logits.rows, 1)),
                                         .block = dim3(threads),
                                         .shared_bytes = static_cast<std::size_t>(kept) * sizeof(float),
                                         .stream = stream},
                                        loss, gradient.as<T>(), logits.as<const float>(), targets, static_cast<int>(n), scale, aligned,
                                        kept);
    });
}

}  // namespace sherd::cuda
