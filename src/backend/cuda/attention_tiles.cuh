#pragma once
/// Tiles of 16-bit values in shared memory, and products of tiles on tensor cores, for the attention kernels.
///
/// A tile has rows of D values. Its 16-byte pieces are swizzled: piece c of row r stands where piece c ^ (r % 8) would, so that ldmatrix,
/// which reads the same piece of eight rows, and copies, which write all pieces of a row, both meet all banks once.
#include "attention.hpp"
#include "tensor_core.cuh"

namespace sherd::cuda {

inline constexpr int tile_warps = 4, tile_threads = tile_warps * 32;

template <int D>
__device__ int place(int row, int piece) {
    return row * D + (piece ^ (row & 7)) * 8;
}

/// Begins to copy rows [first, first + count) of one head into a tile. Rows from `end` on and columns from head_dim on become zero.
/// from: element (0, 0) of the head. One address advances from row to row: computed for each, they would take registers from the sums.
template <int D, int count, class T>
__device__ void copy_tile(T* tile, const T* from, int stride, int first, int end, const AttentionSizes& s) {
    constexpr int pieces = D / 8, step = tile_threads / pieces;
    static_assert(count % step == 0);
    const int c = static_cast<int>(threadIdx.x) % pieces, r = static_cast<int>(threadIdx.x) / pieces;
    const int valid_rows = c * 8 < s.head_dim ? end - first : 0;
    const T* at = from + std::int64_t{first + r} * stride + c * 8;
#pragma unroll
    for (int i = 0; i < count; i += step, at += step * stride) copy_async(tile + place<D>(r + i, c), at, r + i < valid_rows);
}

/// Offset in a tile of what a lane passes to ldmatrix for the first two pieces of its row; `second`: it passes the second of them. Opaque
/// to the compiler, which would else keep the offsets of all pieces in registers over the loop: advance() is one or two instructions.
template <int D>
__device__ int operand_offset(int row, bool second) {
    return opaque(place<D>(row, second ? 1 : 0));
}

/// From the first two pieces of a row to pieces `piece` and piece + 1, `piece` even: the swizzle leaves bits above the third alone.
__device__ inline int advance(int offset, int piece) {
    return (offset ^ ((piece & 7) * 8)) + piece / 8 * 64;
}

/// Accumulators of a warp: `across` products of 16 x 8 for each of its `down` strips of 16 rows. Lane 4g + t holds of each product rows
/// g and g + 8, columns 2t and 2t + 1: at [..][..][2 half + e].
template <int down, int across>
struct Accumulators {
    float at[down][across][4] = {};

    /// += left right^T over D columns: left rows [row, row + 16 down), right rows [0, 8 across).
    template <class T, int D>
    __device__ void add_product_of_rows(const T* left, int row, const T* right) {
        // left: rows 0-7 and 8-15 of a piece, then of the next; right: both pieces of rows 0-7, then of rows 8-15
        const int lane = static_cast<int>(threadIdx.x % 32);
        const int left_at = operand_offset<D>(row + lane % 16, lane / 16 != 0);
        const int right_at = operand_offset<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2 != 0);
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            std::uint32_t a[down][4];
#pragma unroll
            for (int m = 0; m < down; ++m) ldmatrix_x4<false>(a[m], left + advance(left_at, 2 * k) + 16 * m * D);
#pragma unroll
            for (int n = 0; n < across; n += 2) {
                std::uint32_t b[4];
                ldmatrix_x4<false>(b, right + advance(right_at, 2 * k) + 8 * n * D);
#pragma unroll
                for (int m = 0; m < down; ++m) {
                    mma_m16n8k16<T>(at[m][n], a[m], {b[0], b[1]});
                    mma_m16n8k16<T>(at[m][n + 1], a[m], {b[2], b[3]});
                }
            }
        }
    }

    /// += left right: left from the accumulators of a former product, rounded to T; right columns from `piece` on.
    template <class T, int D, int depth>
    __device__ void add_product(const Accumulators<down, depth>& left, const T* right, int piece) {
        // right, transposed: rows 0-7 and 8-15 of a piece, then of the next
        const int lane = static_cast<int>(threadIdx.x % 32), right_at = operand_offset<D>(lane % 16, lane / 16 != 0);
#pragma unroll
        for (int k = 0; k < depth / 2; ++k) {
            std::uint32_t a[down][4];
#pragma unroll
            for (int m = 0; m < down; ++m) {
                const float(&low)[4] = left.at[m][2 * k], (&high)[4] = left.at[m][2 * k + 1];
                a[m][0] = pack_pair<T>(low[0], low[1]);
                a[m][1] = pack_pair<T>(low[2], low[3]);
                a[m][2] = pack_pair<T>(high[0], high[1]);
                a[m][3] = pack_pair<T>(high[2], high[3]);
            }
#pragma unroll
            for (int n = 0; n < across; n += 2) {
                std::uint32_t b[4];
                ldmatrix_x4<true>(b, right + advance(right_at, piece + n) + 16 * k * D);
#pragma unroll
                for (int m = 0; m < down; ++m) {
                    mma_m16n8k16<T>(at[m][n], a[m], {b[0], b[1]});
                    mma_m16n8k16<T>(at[m][n + 1], a[m], {b[2], b[3]});
                }
            }
        }
    }
};

/// Writes the warp's rows, times a factor of each row, through a tile of which no other warp uses these rows, to rows [first, rows) of a
/// head. factor[m][half] belongs to row 16m + g + 8 half. Columns begin at `column`.
template <int D, int down, int across, class T>
__device__ void store_rows(T* tile, int row, const Accumulators<down, across>& values, const float (&factor)[down][2], T* to, int stride,
                           int first, int column, const AttentionSizes& s) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    __syncwarp();  // the warp has read what stood there
#pragma unroll
    for (int m = 0; m < down; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + 16 * m + lane / 4 + 8 * half;
#pragma unroll
            for (int n = 0; n < across; ++n) {
                const float(&v)[4] = values.at[m][n];
                *reinterpret_cast<std::uint32_t*>(tile + place<D>(r, n) + lane % 4 * 2) =
                    pack_pair<T>(v[2 * half] * factor[m][half], v[2 * half + 1] * factor[m][half]);
            }
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * down * across; i += 32) {
        const int r = row + i / across, c = i % across;
        if (first + r >= s.rows || column + c * 8 >= s.head_dim) continue;
        *reinterpret_cast<uint4*>(to + std::int64_t{first + r} * stride + column + c * 8) =
            *reinterpret_cast<const uint4*>(tile + place<D>(r, c));
    }
}

/// Zeros in rows [first, first + count) of a head, as far as there are such rows, by the whole block.
template <class T>
__device__ void zero_rows(T* to, int stride, int first, int count, const AttentionSizes& s) {
    const int pieces = s.head_dim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < count * pieces; i += tile_threads) {
        const int r = first + i / pieces;
        if (r < s.rows) *reinterpret_cast<uint4*>(to + std::int64_t{r} * stride + i % pieces * 8) = make_uint4(0, 0, 0, 0);
    }
}

}  // namespace sherd::cuda
