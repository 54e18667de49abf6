#include "attention_rows.cuh"
#include "attention_tiles.cuh"

namespace sherd::cuda {

namespace {

/// A block takes `rows` keys of a key/value head, each warp 16 `down` of them, and goes through the queries that see them in tiles, of
/// which two are in shared memory. Of heads of more than 128 columns it computes `columns` of the gradients' columns.
template <int padded_dim, int output_columns, int strips, int tile_queries>
struct Tiling {
    static constexpr int D = padded_dim, columns = output_columns, down = strips, queries = tile_queries, rows = 16 * down * tile_warps;
    static constexpr int shared_bytes = (2 * rows + 4 * queries) * D * 2 + rows * 4;
    static_assert(queries <= 32, "a lane holds the statistics of one query");
};

/// Statistics of the queries of a tile, one query a lane: log of the sum of exponentials, to base 2, and dout . out.
struct Statistics {
    float lse_log2 = 0, delta = 0;

    __device__ Statistics(const float* lse, const float* deltas, std::int64_t at, bool valid) {
        if (!valid) return;
        lse_log2 = lse[at] * log2_e;
        delta = deltas[at];
    }
};

/// A tile of queries of one head, and in which of two stages it stands: first q, then dout.
struct Step {
    int head, query, stage;

    /// To the next tile, or the first one of the next head.
    __device__ void advance(int queries, int first, int end) {
        query += queries;
        stage ^= 1;
        if (query < end) return;
        query = first;
        ++head;
    }
};

/// Scores [key, query] become probabilities, dscores (which hold v . dout) the gradients of the scores.
template <int down, int across>
__device__ void through_softmax(Accumulators<down, across>& scores, Accumulators<down, across>& dscores, const Statistics& statistics,
                                float scale_log2) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int n = 0; n < across; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float lse_log2 = __shfl_sync(full_warp, statistics.lse_log2, 8 * n + column + e);
            const float delta = __shfl_sync(full_warp, statistics.delta, 8 * n + column + e);
#pragma unroll
            for (int m = 0; m < down; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float& p = scores.at[m][n][2 * half + e];
                    p = fast_exp2(fmaf(p, scale_log2, -lse_log2));
                    float& d = dscores.at[m][n][2 * half + e];
                    d = p * (d - delta);
                }
            }
        }
    }
}

/// Zeros, in both, for pairs that do not see each other. last: of the lane's first row, the last query that sees it, then those of the rows
/// below; key, query: the lane's first row and first column.
template <int down, int across>
__device__ void mask(Accumulators<down, across>& scores, Accumulators<down, across>& dscores, const int* last, int key, int query) {
#pragma unroll
    for (int m = 0; m < down; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = 16 * m + 8 * half, from = key + r, to = last[r];
#pragma unroll
            for (int n = 0; n < across; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = query + 8 * n + e;
                    if (j < from || j > to) scores.at[m][n][2 * half + e] = dscores.at[m][n][2 * half + e] = 0;
                }
            }
        }
    }
}

/// dk and dv. A block owns its keys and takes the query heads of their group in order, so that the sums need no atomics and have one order.
/// Scores stand [key, query]: as accumulators they are already the left operands of the products with dout and q.
/// Bytes: k, v, dk and dv once, q and dout once for each block of keys, mostly from L2. FLOPs: 8 head_dim for each pair of query and key.
template <class T, class Tile>
__global__ void __launch_bounds__(tile_threads)
    attention_keys_kernel(T* dk, T* dv, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta,
                          const std::int32_t* offsets, AttentionSizes s) {
    if constexpr (has_tensor_cores<T>(Tile::shared_bytes)) {
        constexpr int D = Tile::D, down = Tile::down, across = Tile::queries / 8, out_across = Tile::columns / 8;
        T* const keys = dynamic_shared<T>();
        T *const values = keys + Tile::rows * D, *const stages = values + Tile::rows * D;
        const int kv_head = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * Tile::rows;
        const int column = static_cast<int>(blockIdx.z) * Tile::columns;
        const int lane = static_cast<int>(threadIdx.x % 32), warp_row = static_cast<int>(threadIdx.x / 32) * 16 * down;
        const int q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
        const int kv_column = kv_head * s.head_dim;
        const int used = used_rows(offsets, s), group = s.heads / s.kv_heads;
        const int end = first < used ? last_query(offsets, s, min(first + Tile::rows, used) - 1, used) + 1 : first;
        const int end_head = first < end ? (kv_head + 1) * group : 0;

        Step next{kv_head * group, first, 0};
        const auto copy_step = [&] {
            T* const stage = stages + next.stage * 2 * Tile::queries * D;
            copy_tile<D, Tile::queries>(stage, q + next.head * s.head_dim, q_stride, next.query, used, s);
            copy_tile<D, Tile::queries>(stage + Tile::queries * D, dout + next.head * s.head_dim, q_stride, next.query, used, s);
        };
        if (next.head < end_head) {
            copy_tile<D, Tile::rows>(keys, k + kv_column, kv_stride, first, used, s);
            copy_tile<D, Tile::rows>(values, v + kv_column, kv_stride, first, used, s);
            copy_step();
        }

        int* const last = reinterpret_cast<int*>(stages + 4 * Tile::queries * D);  // query that sees a key
        for (int r = static_cast<int>(threadIdx.x); r < Tile::rows; r += tile_threads) last[r] = last_query(offsets, s, first + r, used);
        // of the warp's rows that belong to documents, the last query that sees the last of them
        const int warp_end = min(first + warp_row + 16 * down, used);
        const bool some = warp_end > first + warp_row, all = warp_end == first + warp_row + 16 * down;
        const int warp_last = some ? last_query(offsets, s, warp_end - 1, used) : -1;
        Accumulators<down, out_across> dkeys, dvalues;
        while (next.head < end_head) {
            const Step now = next;
            const int query = now.query;
            const std::int64_t statistics_at = std::int64_t{now.head} * s.rows + query + lane;
            const Statistics statistics(lse, delta, statistics_at, lane < Tile::queries && query + lane < used);
            next.advance(Tile::queries, first, end);
            wait_for_copies();
            __syncthreads();  // this step's tiles are there, and nobody needs those of the step before
            if (next.head < end_head) copy_step();
            // tiles that see nothing of the warp: before its first key, after the documents of its keys
            if (query + Tile::queries <= first + warp_row || query > warp_last) continue;
            const T *const queries = stages + now.stage * 2 * Tile::queries * D, *const douts = queries + Tile::queries * D;
            Accumulators<down, across> scores, dscores;
            scores.template add_product_of_rows<T, D>(keys, warp_row, queries);
            dscores.template add_product_of_rows<T, D>(values, warp_row, douts);
            through_softmax(scores, dscores, statistics, s.scale * log2_e);
            const int row = warp_row + lane / 4;
            if (!all || query < first + warp_row + 16 * down - 1 || query + Tile::queries - 1 > last[warp_row]) {
                mask(scores, dscores, last + row, first + row, query + lane % 4 * 2);
            }
            dvalues.template add_product<T, D>(scores, douts, column / 8);
            dkeys.template add_product<T, D>(dscores, queries, column / 8);
        }

        float scale[down][2], one[down][2];
#pragma unroll
        for (int m = 0; m < down; ++m) {
            scale[m][0] = scale[m][1] = s.scale;
            one[m][0] = one[m][1] = 1.0f;
        }
        store_rows<D>(keys, warp_row, dkeys, scale, dk + kv_column, kv_stride, first, column, s);
        store_rows<D>(values, warp_row, dvalues, one, dv + kv_column, kv_stride, first, column, s);
    } else {
        __trap();
    }
}

template <class T, class Tile>
bool run(cudaStream_t stream, const DeviceLimits& limits, const BackwardOperands<T>& o, const AttentionSizes& s) {
    if (Tile::shared_bytes > limits.shared_bytes) return false;
    const auto parts = static_cast<unsigned>((s.head_dim + Tile::columns - 1) / Tile::columns);
    const dim3 grid(static_cast<unsigned>(s.kv_heads), few_blocks_for(s.rows, Tile::rows), parts);
    launch<attention_keys_kernel<T, Tile>>(
        {.grid = grid, .block = dim3(tile_threads), .shared_bytes = Tile::shared_bytes, .stream = stream}, o.dk, o.dv, o.dout, o.q, o.k,
        o.v, o.lse, o.delta, o.offsets, s);
    return true;
}

}  // namespace

template <class T>
bool tensor_attention_keys(cudaStream_t stream, const DeviceLimits& limits, const BackwardOperands<T>& o, const AttentionSizes& s) {
    if (s.head_dim <= 64) return run<T, Tiling<64, 64, 2, 32>>(stream, limits, o, s);
    if (s.head_dim > 128) return run<T, Tiling<256, 128, 1, 16>>(stream, limits, o, s);
    return run<T, Tiling<128, 128, 1, 32>>(stream, limits, o, s) || run<T, Tiling<128, 128, 1, 16>>(stream, limits, o, s);
}

template bool tensor_attention_keys(cudaStream_t, const DeviceLimits&, const BackwardOperands<__half>&, const AttentionSizes&);
template bool tensor_attention_keys(cudaStream_t, const DeviceLimits&, const BackwardOperands<__nv_bfloat16>&, const AttentionSizes&);

}  // namespace sherd::cuda
