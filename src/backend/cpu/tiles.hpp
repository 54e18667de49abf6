#pragma once
/// Tiles of attention: small products in registers, and copies of rows into dense fp32 tiles.
#include "backend/cpu/vector_math.hpp"

#include <cstdint>
#include <vector>

namespace sherd::cpu {

/// Queries and keys of a tile.
inline constexpr std::int64_t tile = 64;
/// Floats of a 512-bit register, or of two of AVX2; the columns of a product are a multiple of it.
inline constexpr std::int64_t lanes = 16;

constexpr std::int64_t round_up_to_lanes(std::int64_t n) {
    return (n + lanes - 1) / lanes * lanes;
}

/// The left operand of a small product: element (i, p) is data[i * row + p * column].
struct Left {
    const float* data;
    std::int64_t row, column;
};

/// to [m, n] = left [m, k] right [k, n], or += with accumulate; n a multiple of `lanes`, rows of right and to dense within their strides.
void multiply_tiles(std::int64_t m, std::int64_t n, std::int64_t k, Left left, const float* right, std::int64_t right_stride, float* to,
                    std::int64_t to_stride, bool accumulate);

/// to [rows, padded] = factor * from [rows, columns], padded with zeros; from has rows of from_stride elements.
template <class T>
void load_rows(float* to, std::int64_t padded, const T* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
               float factor = 1.0f) {
    widest([=]() SHERD_INLINE {
        for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
            for (std::int64_t c = 0; c < columns; ++c) to[r * padded + c] = factor * to_float(from[r * from_stride + c]);
            for (std::int64_t c = columns; c < padded; ++c) to[r * padded + c] = 0.0f;
        }
    });
}

/// to [rows, columns] = factor * from; to has rows of to_stride elements.
template <class T>
void store_rows(T* to, std::int64_t to_stride, const float* from, std::int64_t padded, std::int64_t rows, std::int64_t columns,
                float factor = 1.0f) {
    widest([=]() SHERD_INLINE {
        for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
            for (std::int64_t c = 0; c < columns; ++c) to[r * to_stride + c] = from_float<T>(factor * from[r * padded + c]);
        }
    });
}

/// to [columns, tile] = transpose of from [rows, padded], with zeros in the columns behind `rows`; columns <= padded.
void transpose_rows(float* to, const float* from, std::int64_t padded, std::int64_t rows, std::int64_t columns);

/// Zeroes the rows of t behind the last document.
inline void zero_surplus(Tensor t, const Documents& documents) {
    const std::int64_t used = documents.count > 0 ? documents.offsets[documents.count] : 0;
    const Tensor rest = t.slice(used, t.rows - used);
    auto* const bytes = static_cast<unsigned char*>(rest.data);
    std::fill(bytes, bytes + rest.bytes(), static_cast<unsigned char>(0));
}

/// Work that one thread does alone: a document and a head, or query tile number `index` of them.
struct Task {
    std::int64_t first_row, rows, head, index;
};

/// Tasks for all documents with rows and all heads; those of one head, which read the same keys, follow one another, the later tiles (which
/// meet more keys) first, and long documents come before short ones, so that what is handed out last is small.
void list_tasks(std::vector<Task>& tasks, const Documents& documents, std::int64_t heads, bool by_tile);

}  // namespace sherd::cpu
