#include "attention_rows.cuh"
#include "attention_tiles.cuh"

namespace sherd::cuda {

namespace {

/// A block takes `rows` queries of a head, each warp 16 `down` of them, and goes through the keys in tiles.
template <int padded_dim, int strips, int tile_keys>
struct Tiling {
    static constexpr int D = padded_dim, down = strips, keys = tile_keys, rows = 16 * down * tile_warps;
    static constexpr int shared_bytes = (rows + 2 * keys) * D * 2;
};

/// The softmax of the rows that a lane shares with the three others of its quad: running maxima of the raw scores, and sums of exponentials
/// of which each lane holds its own columns' part.
template <int down, int across>
struct Softmax {
    float top[down][2], sum[down][2] = {};
    int first[down][2];  ///< first key that the row sees

    /// Scores become probabilities relative to the new maxima, and `out`, which is relative to the old ones, follows.
    template <int columns>
    __device__ void soften(Accumulators<down, across>& scores, Accumulators<down, columns>& out, float scale_log2) {
#pragma unroll
        for (int m = 0; m < down; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float higher = top[m][half];
#pragma unroll
                for (int n = 0; n < across; ++n) higher = fmaxf(higher, fmaxf(scores.at[m][n][2 * half], scores.at[m][n][2 * half + 1]));
                higher = lane_max(higher, 4);
                const float base = higher == -INFINITY ? 0.0f : higher * scale_log2;  // so far the row has seen no key of its document
                const float shrink = fast_exp2(top[m][half] * scale_log2 - base);
                top[m][half] = higher;
                float total = sum[m][half] * shrink;
#pragma unroll
                for (int n = 0; n < across; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& s = scores.at[m][n][2 * half + e];
                        s = fast_exp2(fmaf(s, scale_log2, -base));
                        total += s;
                    }
                }
                sum[m][half] = total;
                if (!__any_sync(full_warp, shrink != 1.0f)) continue;  // the more keys were seen, the rarer is a new maximum
#pragma unroll
                for (int n = 0; n < columns; ++n) {
                    out.at[m][n][2 * half] *= shrink;
                    out.at[m][n][2 * half + 1] *= shrink;
                }
            }
        }
    }

    /// Takes out the keys that a row does not see; `key`: that of the lane's first column, `query`: the lane's first row.
    __device__ void mask(Accumulators<down, across>& scores, int query, int key) const {
#pragma unroll
        for (int m = 0; m < down; ++m) {
#pragma unroll
            for (int n = 0; n < across; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int j = key + 8 * n + i % 2;
                    if (j > query + 16 * m + i / 2 * 8 || j < first[m][i / 2]) scores.at[m][n][i] = -INFINITY;
                }
            }
        }
    }
};

/// Flash attention 2 (Dao 2023): scores never leave the registers. Blocks of late rows, which see most keys, start first; the heads of a
/// group run side by side and share keys and values in the L2 cache. The values of a tile are on their way while its scores are computed,
/// the next keys while these become probabilities.
/// Bytes: q and out once, k and v once for each block of queries, mostly from L2. FLOPs: 4 head_dim for each pair of query and key.
template <class T, class Tile>
__global__ void __launch_bounds__(tile_threads)
    attention_forward_kernel(T* out, float* lse, const T* q, const T* k, const T* v, const std::int32_t* offsets, AttentionSizes s) {
    if constexpr (has_tensor_cores<T>(Tile::shared_bytes)) {
        constexpr int D = Tile::D, down = Tile::down, across = Tile::keys / 8;
        T* const queries = dynamic_shared<T>();
        T *const keys = queries + Tile::rows * D, *const values = keys + Tile::keys * D;
        const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tile::rows;
        const int lane = static_cast<int>(threadIdx.x % 32), warp_row = static_cast<int>(threadIdx.x / 32) * 16 * down;
        const int q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
        const int kv_column = head / (s.heads / s.kv_heads) * s.head_dim;
        T* const out_head = out + head * s.head_dim;
        float* const lse_head = lse + std::int64_t{head} * s.rows;
        const int used = used_rows(offsets, s);
        if (first >= used) {
            zero_rows(out_head, q_stride, first, Tile::rows, s);
            for (int r = static_cast<int>(threadIdx.x); r < Tile::rows && first + r < s.rows; r += tile_threads) lse_head[first + r] = 0;
            return;
        }
        const int from = first_key(offsets, s, first, used), end = min(first + Tile::rows, used);
        copy_tile<D, Tile::rows>(queries, q + head * s.head_dim, q_stride, first, used, s);
        copy_tile<D, Tile::keys>(keys, k + kv_column, kv_stride, from, used, s);

        Softmax<down, across> softmax;
        const int query = first + warp_row + lane / 4;  // the lane's first row
#pragma unroll
        for (int m = 0; m < down; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                softmax.top[m][half] = -INFINITY;
                softmax.first[m][half] = first_key(offsets, s, query + 16 * m + 8 * half, used);
            }
        }
        const int warp_first = __shfl_sync(full_warp, softmax.first[0][0], 0);         // that the warp's first row sees
        const int warp_last = __shfl_sync(full_warp, softmax.first[down - 1][1], 31);  // and its last
        const float scale_log2 = s.scale * log2_e;
        Accumulators<down, D / 8> sums;
        for (int key = from; key < end; key += Tile::keys) {
            wait_for_copies();
            __syncthreads();  // the keys are there, and nobody needs the values of the tile before
            copy_tile<D, Tile::keys>(values, v + kv_column, kv_stride, key, used, s);
            // tiles of which the warp sees nothing: after its last row, before its first document
            const bool seen = key < first + warp_row + 16 * down && key + Tile::keys > warp_first;
            Accumulators<down, across> scores;
            if (seen) scores.template add_product_of_rows<T, D>(queries, warp_row, keys);
            wait_for_copies();
            __syncthreads();  // the values are there, and nobody needs these keys
            if (key + Tile::keys < end) copy_tile<D, Tile::keys>(keys, k + kv_column, kv_stride, key + Tile::keys, used, s);
            if (!seen) continue;
            if (key + Tile::keys > first + warp_row + 1 || key < warp_last) softmax.mask(scores, query, key + lane % 4 * 2);
            softmax.soften(scores, sums, scale_log2);
            sums.template add_product<T, D>(scores, values, 0);
        }

        float factor[down][2];
#pragma unroll
        for (int m = 0; m < down; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = query + 16 * m + 8 * half;
                const float sum = lane_sum(softmax.sum[m][half], 4);
                factor[m][half] = row < used ? 1.0f / sum : 0.0f;
                if (lane % 4 == 0 && row < s.rows) lse_head[row] = row < used ? softmax.top[m][half] * s.scale + logf(sum) : 0.0f;
            }
        }
        store_rows<D>(queries, warp_row, sums, factor, out_head, q_stride, first, 0, s);
    } else {
        __trap();
    }
}

template <class T, class Tile>
bool run(cudaStream_t stream, const DeviceLimits& limits, const ForwardOperands<T>& o, const AttentionSizes& s) {
    if (Tile::shared_bytes > limits.shared_bytes) return false;
    const dim3 grid(static_cast<unsigned>(s.heads), few_blocks_for(s.rows, Tile::rows));
    launch<attention_forward_kernel<T, Tile>>(
        {.grid = grid, .block = dim3(tile_threads), .shared_bytes = Tile::shared_bytes, .stream = stream}, o.out, o.lse, o.q, o.k, o.v,
        o.offsets, s);
    return true;
}

}  // namespace

template <class T>
bool tensor_attention_forward(cudaStream_t stream, const DeviceLimits& limits, const ForwardOperands<T>& o, const AttentionSizes& s) {
    if (s.head_dim <= 64) return run<T, Tiling<64, 2, 64>>(stream, limits, o, s);
    if (s.head_dim <= 128) return run<T, Tiling<128, 2, 48>>(stream, limits, o, s);
    return run<T, Tiling<256, 1, 64>>(stream, limits, o, s) || run<T, Tiling<256, 1, 32>>(stream, limits, o, s);  // the latter on sm_75
}

template bool tensor_attention_forward(cudaStream_t, const DeviceLimits&, const ForwardOperands<__half>&, const AttentionSizes&);
template bool tensor_attention_forward(cudaStream_t, const DeviceLimits&, const ForwardOperands<__nv_bfloat16>&, const AttentionSizes&);

}  // namespace sherd::cuda
