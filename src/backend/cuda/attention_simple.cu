#include "attention_rows.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace sherd::cuda {

namespace {

// Attention without tensor cores: fp32, and 16-bit types where there are none for them. Tiles stand in shared memory as fp32. A block owns
// R rows and goes through the other side in tiles of C rows: scores by all threads, two by two; sums by warps, each of which owns every
// eighth row, its lanes the columns.

constexpr int warps = 8, threads = warps * 32;

template <int padded_dim, int rows, int columns>
struct Tiling {
    static constexpr int D = padded_dim, R = rows, C = columns;
    static constexpr int pitch = D + 4;  ///< of a tile's row: 16-byte loads of eight rows meet different banks
    static constexpr int score_pitch = C + 1;
    static constexpr int forward_bytes = ((R + 2 * C) * pitch + R * score_pitch) * 4;
    static constexpr int keys_bytes = ((2 * R + 2 * C) * pitch + 2 * R * score_pitch) * 4;
    static constexpr int queries_bytes = ((2 * R + 2 * C) * pitch + R * score_pitch) * 4;
};

/// Rows [first, first + count) of one head as fp32; rows from `end` on and columns from head_dim on become zero.
template <class Tile, int count, class T>
__device__ void load_tile(float* tile, const T* from, std::int64_t stride, int first, int end, const AttentionSizes& s) {
    constexpr int quads = Tile::D / 4;
    for (int i = static_cast<int>(threadIdx.x); i < count * quads; i += threads) {
        const int r = i / quads, c = i % quads * 4;
        const T* const at = from + (first + r) * stride + c;
        float v[4] = {};
        if (first + r < end) {
            if (s.wide && c < s.head_dim) {
                load(v, at);
            } else {
                for (int j = 0; j < 4; ++j) {
                    if (c + j < s.head_dim) v[j] = to_float(at[j]);
                }
            }
        }
        store(tile + r * Tile::pitch + c, v);
    }
}

/// Four products of rows of two tiles: rows r and r + R/2 of the left one with rows c and c + C/2 of the right one, [i][j].
template <class Tile>
__device__ void multiply_rows(float (&sums)[2][2], const float* left, const float* right, int r, int c) {
    constexpr int pitch = Tile::pitch;
    for (int i = 0; i < 2; ++i) sums[i][0] = sums[i][1] = 0;
#pragma unroll 4
    for (int d = 0; d < Tile::D; d += 4) {
        float a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            load(a[i], left + (r + i * (Tile::R / 2)) * pitch + d);
            load(b[i], right + (c + i * (Tile::C / 2)) * pitch + d);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                sums[i][0] += a[i][e] * b[0][e];
                sums[i][1] += a[i][e] * b[1][e];
            }
        }
    }
}

/// Sums of a warp: row warp + 8i, column lane + 32j of the block's R x D.
template <class Tile>
struct Sums {
    static constexpr int down = Tile::R / warps, across = Tile::D / 32;
    float at[down][across] = {};

    /// += weights [R, C] times the rows of a tile.
    __device__ void add(const float* weights, const float* tile) {
        const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll 4
        for (int c = 0; c < Tile::C; ++c) {
            float v[across];
#pragma unroll
            for (int j = 0; j < across; ++j) v[j] = tile[c * Tile::pitch + lane + 32 * j];
#pragma unroll
            for (int i = 0; i < down; ++i) {
                const float w = weights[(warp + warps * i) * Tile::score_pitch + c];
#pragma unroll
                for (int j = 0; j < across; ++j) at[i][j] += w * v[j];
            }
        }
    }
    template <class T>
    __device__ void store_rows(T* to, std::int64_t stride, int first, const float (&factor)[down], const AttentionSizes& s) const {
        const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
        for (int i = 0; i < down; ++i) {
            const int row = first + warp + warps * i;
#pragma unroll
            for (int j = 0; j < across; ++j) {
                if (row < s.rows && lane + 32 * j < s.head_dim) to[row * stride + lane + 32 * j] = from_float<T>(at[i][j] * factor[i]);
            }
        }
    }
};

/// Bytes: q and out once, k and v once for each block of queries, mostly from L2. FLOPs: 4 head_dim for each pair of query and key.
template <class T, class Tile>
__global__ void __launch_bounds__(threads)
    simple_forward_kernel(T* out, float* lse, const T* q, const T* k, const T* v, const std::int32_t* offsets, AttentionSizes s) {
    constexpr int R = Tile::R, C = Tile::C, down = Sums<Tile>::down;
    float* const queries = dynamic_shared<float>();
    float *const keys = queries + R * Tile::pitch, *const values = keys + C * Tile::pitch, *const scores = values + C * Tile::pitch;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * R;
    const std::int64_t q_stride = std::int64_t{s.heads} * s.head_dim, kv_stride = std::int64_t{s.kv_heads} * s.head_dim;
    const int q_column = head * s.head_dim, kv_column = head / (s.heads / s.kv_heads) * s.head_dim;
    const int used = used_rows(offsets, s), end = min(first + R, used);
    const int from = first < used ? first_key(offsets, s, first, used) : end;
    load_tile<Tile, R>(queries, q + q_column, q_stride, first, used, s);
    Sums<Tile> sums;
    int seen_from[down];
    float top[down], sum[down] = {};
#pragma unroll
    for (int i = 0; i < down; ++i) {
        seen_from[i] = first_key(offsets, s, first + warp + warps * i, used);
        top[i] = -INFINITY;
    }
    const int r = static_cast<int>(threadIdx.x) / (C / 2), c = static_cast<int>(threadIdx.x) % (C / 2);
    for (int key = from; key < end; key += C) {
        __syncthreads();  // nobody needs the tile before
        load_tile<Tile, C>(keys, k + kv_column, kv_stride, key, used, s);
        load_tile<Tile, C>(values, v + kv_column, kv_stride, key, used, s);
        __syncthreads();
        if (r < R / 2) {
            float score[2][2];
            multiply_rows<Tile>(score, queries, keys, r, c);
            for (int i = 0; i < 4; ++i) scores[(r + i / 2 * (R / 2)) * Tile::score_pitch + c + i % 2 * (C / 2)] = score[i / 2][i % 2];
        }
        __syncthreads();
        float factor[down];
#pragma unroll
        for (int i = 0; i < down; ++i) {
            const int row = warp + warps * i;
            const bool seen = lane < C && key + lane <= first + row && key + lane >= seen_from[i];
            float* const at = scores + row * Tile::score_pitch + lane;
            const float score = seen ? *at * s.scale * log2_e : -INFINITY;
            const float higher = fmaxf(top[i], lane_max(score));
            const float base = higher == -INFINITY ? 0.0f : higher;  // so far the row has seen no key of its document
            const float p = fast_exp2(score - base);
            factor[i] = fast_exp2(top[i] - base);
            sum[i] = sum[i] * factor[i] + lane_sum(p);
            top[i] = higher;
            if (lane < C) *at = p;
#pragma unroll
            for (int j = 0; j < Sums<Tile>::across; ++j) sums.at[i][j] *= factor[i];
        }
        __syncwarp();
        sums.add(scores, values);
    }
    float factor[down];
#pragma unroll
    for (int i = 0; i < down; ++i) {
        const int row = first + warp + warps * i;
        factor[i] = row < used ? 1.0f / sum[i] : 0.0f;
        if (lane == 0 && row < s.rows) lse[std::int64_t{head} * s.rows + row] = row < used ? (top[i] + log2f(sum[i])) / log2_e : 0.0f;
    }
    sums.store_rows(out + q_column, q_stride, first, factor, s);
}

/// dk and dv, [key, query] as in attention_keys.cu: a block owns its keys and takes the query heads of their group in order.
/// Bytes: k, v, dk and dv once, q and dout once for each block of keys, mostly from L2. FLOPs: 8 head_dim for each pair of query and key.
template <class T, class Tile>
__global__ void __launch_bounds__(threads)
    simple_keys_kernel(T* dk, T* dv, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta,
                       const std::int32_t* offsets, AttentionSizes s) {
    constexpr int R = Tile::R, C = Tile::C, down = Sums<Tile>::down;
    float* const keys = dynamic_shared<float>();
    float *const values = keys + R * Tile::pitch, *const queries = values + R * Tile::pitch, *const douts = queries + C * Tile::pitch;
    float *const weights = douts + C * Tile::pitch, *const dscores = weights + R * Tile::score_pitch;
    const int kv_head = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * R;
    const std::int64_t q_stride = std::int64_t{s.heads} * s.head_dim, kv_stride = std::int64_t{s.kv_heads} * s.head_dim;
    const int kv_column = kv_head * s.head_dim, used = used_rows(offsets, s), group = s.heads / s.kv_heads;
    const int end = first < used ? last_query(offsets, s, min(first + R, used) - 1, used) + 1 : first;
    load_tile<Tile, R>(keys, k + kv_column, kv_stride, first, used, s);
    load_tile<Tile, R>(values, v + kv_column, kv_stride, first, used, s);
    const int r = static_cast<int>(threadIdx.x) / (C / 2), c = static_cast<int>(threadIdx.x) % (C / 2);
    const int last[2] = {last_query(offsets, s, first + r, used), last_query(offsets, s, first + r + R / 2, used)};
    Sums<Tile> dkeys, dvalues;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const std::int64_t statistics = std::int64_t{head} * s.rows;
        for (int query = first; query < end; query += C) {
            __syncthreads();  // nobody needs the tile before
            load_tile<Tile, C>(queries, q + std::int64_t{head} * s.head_dim, q_stride, query, used, s);
            load_tile<Tile, C>(douts, dout + std::int64_t{head} * s.head_dim, q_stride, query, used, s);
            __syncthreads();
            if (r < R / 2) {
                float score[2][2], product[2][2];
                multiply_rows<Tile>(score, keys, queries, r, c);
                multiply_rows<Tile>(product, values, douts, r, c);
                for (int i = 0; i < 4; ++i) {
                    const int row = r + i / 2 * (R / 2), column = c + i % 2 * (C / 2), j = query + column;
                    float p = 0, d = 0;
                    if (j >= first + row && j <= last[i / 2]) {
                        p = fast_exp2((score[i / 2][i % 2] * s.scale - lse[statistics + j]) * log2_e);
                        d = p * (product[i / 2][i % 2] - delta[statistics + j]);
                    }
                    weights[row * Tile::score_pitch + column] = p;
                    dscores[row * Tile::score_pitch + column] = d;
                }
            }
            __syncthreads();
            dvalues.add(weights, douts);
            dkeys.add(dscores, queries);
        }
    }
    float scale[down], one[down];
#pragma unroll
    for (int i = 0; i < down; ++i) {
        scale[i] = s.scale;
        one[i] = 1.0f;
    }
    dkeys.store_rows(dk + kv_column, kv_stride, first, scale, s);
    dvalues.store_rows(dv + kv_column, kv_stride, first, one, s);
}

/// dq. Bytes: q, dout and dq once, k and v once for each block of queries, mostly from L2. FLOPs: 6 head_dim for each pair.
template <class T, class Tile>
__global__ void __launch_bounds__(threads) simple_queries_kernel(T* dq, const T* dout, const T* q, const T* k, const T* v, const float* lse,
                                                                 const float* delta, const std::int32_t* offsets, AttentionSizes s) {
    constexpr int R = Tile::R, C = Tile::C, down = Sums<Tile>::down;
    float* const queries = dynamic_shared<float>();
    float *const douts = queries + R * Tile::pitch, *const keys = douts + R * Tile::pitch, *const values = keys + C * Tile::pitch;
    float* const dscores = values + C * Tile::pitch;
    const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * R;
    const std::int64_t q_stride = std::int64_t{s.heads} * s.head_dim, kv_stride = std::int64_t{s.kv_heads} * s.head_dim;
    const int q_column = head * s.head_dim, kv_column = head / (s.heads / s.kv_heads) * s.head_dim;
    const int used = used_rows(offsets, s), end = min(first + R, used);
    const int from = first < used ? first_key(offsets, s, first, used) : end;
    load_tile<Tile, R>(queries, q + q_column, q_stride, first, used, s);
    load_tile<Tile, R>(douts, dout + q_column, q_stride, first, used, s);
    const int r = static_cast<int>(threadIdx.x) / (C / 2), c = static_cast<int>(threadIdx.x) % (C / 2);
    int seen_from[2];
    float total[2] = {}, dot[2] = {};
    for (int i = 0; i < 2; ++i) {
        const int row = first + r + i * (R / 2);
        seen_from[i] = first_key(offsets, s, row, used);
        if (r >= R / 2 || row >= used) continue;
        total[i] = lse[std::int64_t{head} * s.rows + row];
        dot[i] = delta[std::int64_t{head} * s.rows + row];
    }
    Sums<Tile> dqueries;
    for (int key = from; key < end; key += C) {
        __syncthreads();  // nobody needs the tile before
        load_tile<Tile, C>(keys, k + kv_column, kv_stride, key, used, s);
        load_tile<Tile, C>(values, v + kv_column, kv_stride, key, used, s);
        __syncthreads();
        if (r < R / 2) {
            float score[2][2], product[2][2];
            multiply_rows<Tile>(score, queries, keys, r, c);
            multiply_rows<Tile>(product, douts, values, r, c);
            for (int i = 0; i < 4; ++i) {
                const int row = r + i / 2 * (R / 2), column = c + i % 2 * (C / 2), j = key + column;
                float d = 0;
                if (j <= first + row && j >= seen_from[i / 2]) {
                    const float p = fast_exp2((score[i / 2][i % 2] * s.scale - total[i / 2]) * log2_e);
                    d = p * (product[i / 2][i % 2] - dot[i / 2]);
                }
                dscores[row * Tile::score_pitch + column] = d;
            }
        }
        __syncthreads();
        dqueries.add(dscores, keys);
    }
    float scale[down];
#pragma unroll
    for (int i = 0; i < down; ++i) scale[i] = s.scale;
    dqueries.store_rows(dq + q_column, q_stride, first, scale, s);
}

LaunchShape shape_of(cudaStream_t stream, const AttentionSizes& s, int heads, int rows, int shared_bytes,
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {.grid = dim3(static_cast<unsigned>(heads), few_blocks_for(s.rows, rows)),
            .block = dim3(threads),
            .shared_bytes = static_cast<std::size_t>(shared_bytes),
            .stream = stream,
            .file = file,
            .line = line};
}

/// Calls f.operator()<Tile>(): tiles that fit the 64 KiB of shared memory that every GPU since sm_70 grants.
template <class Small, class Middle, class Large, class F>
void with_tile(int head_dim, const F& f) {
    static_assert(Small::keys_bytes <= 65536 && Middle::keys_bytes <= 65536 && Large::keys_bytes <= 65536);
    if (head_dim <= Small::D) return f.template operator()<Small>();
    if (head_dim <= Middle::D) return f.template operator()<Middle>();
    f.template operator()<Large>();
}

}  // namespace

template <class T>
void simple_attention_forward(cudaStream_t stream, const ForwardOperands<T>& o, const AttentionSizes& s) {
    with_tile<Tiling<64, 32, 32>, Tiling<128, 32, 16>, Tiling<256, 16, 8>>(s.head_dim, [&]<class Tile>() {
        launch<simple_forward_kernel<T, Tile>>(shape_of(stream, s, s.heads, Tile::R, Tile::forward_bytes), o.out, o.lse, o.q, o.k, o.v,
                                               o.offsets, s);
    });
}

template <class T>
void simple_attention_keys(cudaStream_t stream, const BackwardOperands<T>& o, const AttentionSizes& s) {
    with_tile<Tiling<64, 32, 32>, Tiling<128, 32, 16>, Tiling<256, 16, 8>>(s.head_dim, [&]<class Tile>() {
        launch<simple_keys_kernel<T, Tile>>(shape_of(stream, s, s.kv_heads, Tile::R, Tile::keys_bytes), o.dk, o.dv, o.dout, o.q, o.k, o.v,
                                            o.lse, o.delta, o.offsets, s);
    });
}

template <class T>
void simple_attention_queries(cudaStream_t stream, const BackwardOperands<T>& o, const AttentionSizes& s) {
    with_tile<Tiling<64, 32, 32>, Tiling<128, 32, 16>, Tiling<256, 16, 8>>(s.head_dim, [&]<class Tile>() {
        launch<simple_queries_kernel<T, Tile>>(shape_of(stream, s, s.heads, Tile::R, Tile::queries_bytes), o.dq, o.dout, o.q, o.k, o.v,
                                               o.lse, o.delta, o.offsets, s);
    });
}

#define SHERD_SIMPLE_ATTENTION(T)                                                                           \
    template void simple_attention_forward(cudaStream_t, const ForwardOperands<T>&, const AttentionSizes&); \
    template void simple_attention_keys(cudaStream_t, const BackwardOperands<T>&, const AttentionSizes&);   \
    template void simple_attention_queries(cudaStream_t, const BackwardOperands<T>&, const AttentionSizes&);
SHERD_SIMPLE_ATTENTION(float)
SHERD_SIMPLE_ATTENTION(__half)
SHERD_SIMPLE_ATTENTION(__nv_bfloat16)
#undef SHERD_SIMPLE_ATTENTION

}  // namespace sherd::cuda
