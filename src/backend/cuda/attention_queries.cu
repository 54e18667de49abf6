#include "attention_rows.cuh"
#include "attention_tiles.cuh"

namespace sherd::cuda {

namespace {

/// A block takes `rows` queries of a head, each warp 16 `down` of them, and goes through the keys that they see in tiles, of which two are
/// in shared memory. What belongs to a row stands there too: the sums need the registers.
template <int padded_dim, int strips, int tile_keys>
struct Tiling {
    static constexpr int D = padded_dim, down = strips, keys = tile_keys, rows = 16 * down * tile_warps;
    static constexpr int shared_bytes = (2 * rows + 4 * keys) * D * 2 + 3 * rows * 4;
};

/// What belongs to the rows of a block.
struct Rows {
    float *lse_log2, *delta;
    int* first;  ///< first key that the row sees
};

/// Scores [query, key] and dout . v, in dscores, become the gradients of the scores, in dscores. row: the lane's first row in the block.
template <int down, int across>
__device__ void through_softmax(const Accumulators<down, across>& scores, Accumulators<down, across>& dscores, const Rows& rows,
                                float scale_log2, bool masked, int row, int query, int key) {
#pragma unroll
    for (int m = 0; m < down; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = 16 * m + 8 * half, first = rows.first[row + r];
            const float lse_log2 = rows.lse_log2[row + r], delta = rows.delta[row + r];
#pragma unroll
            for (int n = 0; n < across; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = key + 8 * n + e;
                    float p = fast_exp2(fmaf(scores.at[m][n][2 * half + e], scale_log2, -lse_log2));
                    if (masked && (j > query + r || j < first)) p = 0;
                    float& d = dscores.at[m][n][2 * half + e];
                    d = p * (d - delta);
                }
            }
        }
    }
}

/// dq. Blocks of late rows, which see most keys, start first.
/// Bytes: q, dout and dq once, k and v once for each block of queries, mostly from L2. FLOPs: 6 head_dim for each pair of query and key.
template <class T, class Tile>
__global__ void __launch_bounds__(tile_threads)
    attention_queries_kernel(T* dq, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta,
                             const std::int32_t* offsets, AttentionSizes s) {
    if constexpr (has_tensor_cores<T>(Tile::shared_bytes)) {
        constexpr int D = Tile::D, down = Tile::down, across = Tile::keys / 8;
        T* const queries = dynamic_shared<T>();
        T *const douts = queries + Tile::rows * D, *const stages = douts + Tile::rows * D;
        const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tile::rows;
        const int lane = static_cast<int>(threadIdx.x % 32), warp_row = static_cast<int>(threadIdx.x / 32) * 16 * down;
        const int q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
        const int q_column = head * s.head_dim;
        const int kv_column = head / (s.heads / s.kv_heads) * s.head_dim;
        const int used = used_rows(offsets, s);
        if (first >= used) return zero_rows(dq + q_column, q_stride, first, Tile::rows, s);
        const int from = first_key(offsets, s, first, used), end = min(first + Tile::rows, used);

        const auto copy_step = [&](int key, int step) {
            T* const stage = stages + step % 2 * 2 * Tile::keys * D;
            copy_tile<D, Tile::keys>(stage, k + kv_column, kv_stride, key, used, s);
            copy_tile<D, Tile::keys>(stage + Tile::keys * D, v + kv_column, kv_stride, key, used, s);
        };
        copy_tile<D, Tile::rows>(queries, q + q_column, q_stride, first, used, s);
        copy_tile<D, Tile::rows>(douts, dout + q_column, q_stride, first, used, s);
        copy_step(from, 0);

        float* const statistics = reinterpret_cast<float*>(stages + 4 * Tile::keys * D);
        const Rows rows{statistics, statistics + Tile::rows, reinterpret_cast<int*>(statistics + 2 * Tile::rows)};
        for (int r = static_cast<int>(threadIdx.x); r < Tile::rows; r += tile_threads) {
            const bool valid = first + r < used;
            const std::int64_t at = std::int64_t{head} * s.rows + first + r;
            rows.first[r] = first_key(offsets, s, first + r, used);
            rows.lse_log2[r] = valid ? lse[at] * log2_e : 0.0f;
            rows.delta[r] = valid ? delta[at] : 0.0f;
        }
        Accumulators<down, D / 8> dqueries;
        int step = 0;
        for (int key = from; key < end; key += Tile::keys, ++step) {
            wait_for_copies();
            __syncthreads();  // this step's tiles are there, and nobody needs those of the step before
            if (key + Tile::keys < end) copy_step(key + Tile::keys, step + 1);
            // tiles of which the warp sees nothing: after its last row, before its first document
            if (key >= first + warp_row + 16 * down || key + Tile::keys <= rows.first[warp_row]) continue;
            const T *const keys = stages + step % 2 * 2 * Tile::keys * D, *const values = keys + Tile::keys * D;
            Accumulators<down, across> scores, dscores;
            scores.template add_product_of_rows<T, D>(queries, warp_row, keys);
            dscores.template add_product_of_rows<T, D>(douts, warp_row, values);
            const bool masked = key + Tile::keys > first + warp_row + 1 || key < rows.first[warp_row + 16 * down - 1];
            const int row = warp_row + lane / 4;
            through_softmax(scores, dscores, rows, s.scale * log2_e, masked, row, first + row, key + lane % 4 * 2);
            dqueries.template add_product<T, D>(dscores, keys, 0);
        }

        float scale[down][2];
#pragma unroll
        for (int m = 0; m < down; ++m) scale[m][0] = scale[m][1] = s.scale;
        store_rows<D>(queries, warp_row, dqueries, scale, dq + q_column, q_stride, first, 0, s);
    } else {
        __trap();
    }
}

template <class T, class Tile>
bool run(cudaStream_t stream, const DeviceLimits& limits, const BackwardOperands<T>& o, const AttentionSizes& s) {
    if (Tile::shared_bytes > limits.shared_bytes) return false;
    const dim3 grid(static_cast<unsigned>(s.heads), few_blocks_for(s.rows, Tile::rows));
    launch<attention_queries_kernel<T, Tile>>(
        {.grid = grid, .block = dim3(tile_threads), .shared_bytes = Tile::shared_bytes, .stream = stream}, o.dq, o.dout, o.q, o.k, o.v,
        o.lse, o.delta, o.offsets, s);
    return true;
}

/// Whether two blocks of that tiling fit a multiprocessor at once, so that one computes while the other waits.
template <class Tile>
bool fits_twice(const DeviceLimits& limits) {
    return 2 * (Tile::shared_bytes + 1024) <= limits.shared_bytes_sm;
}

}  // namespace

template <class T>
bool tensor_attention_queries(cudaStream_t stream, const DeviceLimits& limits, const BackwardOperands<T>& o, const AttentionSizes& s) {
    if (s.head_dim <= 64) return run<T, Tiling<64, 2, 32>>(stream, limits, o, s);
    if (s.head_dim > 128) return run<T, Tiling<256, 1, 16>>(stream, limits, o, s);
    using Large = Tiling<128, 2, 32>;
    if (fits_twice<Large>(limits)) return run<T, Large>(stream, limits, o, s);
    return run<T, Tiling<128, 1, 32>>(stream, limits, o, s) || run<T, Tiling<128, 1, 16>>(stream, limits, o, s);
}

template bool tensor_attention_queries(cudaStream_t, const DeviceLimits&, const BackwardOperands<__half>&, const AttentionSizes&);
template bool tensor_attention_queries(cudaStream_t, const DeviceLimits&, const BackwardOperands<__nv_bfloat16>&, const AttentionSizes&);

}  // namespace sherd::cuda
