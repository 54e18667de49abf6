#include "backend/cpu/tiles.hpp"

#include <xmmintrin.h>

namespace sherd::cpu {

namespace {

/// 16 floats at any address of floats: one AVX-512 register, or two of AVX2.
using Vector [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;

SHERD_INLINE inline const Vector& vector_at(const float* p) {
    return *reinterpret_cast<const Vector*>(p);
}
SHERD_INLINE inline Vector& vector_at(float* p) {
    return *reinterpret_cast<Vector*>(p);
}

/// A block of M rows and V vectors of columns, its sums in registers throughout.
template <int M, int V>
SHERD_INLINE inline void block(std::int64_t k, Left left, const float* right, std::int64_t right_stride, float* to, std::int64_t to_stride,
                               bool accumulate) {
    Vector sums[M][V];
    for (int i = 0; i < M; ++i) {
        for (int v = 0; v < V; ++v) sums[i][v] = accumulate ? vector_at(to + i * to_stride + v * lanes) : Vector{};
    }
    for (std::int64_t p = 0; p < k; ++p) {
        Vector columns[V];
        for (int v = 0; v < V; ++v) columns[v] = vector_at(right + p * right_stride + v * lanes);
        for (int i = 0; i < M; ++i) {
            const float factor = left.data[i * left.row + p * left.column];
            for (int v = 0; v < V; ++v) sums[i][v] += factor * columns[v];
        }
    }
    for (int i = 0; i < M; ++i) {
        for (int v = 0; v < V; ++v) vector_at(to + i * to_stride + v * lanes) = sums[i][v];
    }
}

struct Sizes {
    std::int64_t m, k, right_stride, to_stride;
    bool accumulate;
};

/// All rows of V vectors of columns, M rows at a time.
template <int M, int V>
SHERD_INLINE inline void panel(const Sizes& s, Left left, const float* right, float* to) {
    std::int64_t i = 0;
    for (; i + M <= s.m; i += M) {
        block<M, V>(s.k, {left.data + i * left.row, left.row, left.column}, right, s.right_stride, to + i * s.to_stride, s.to_stride,
                    s.accumulate);
    }
    for (; i < s.m; ++i) {
        block<1, V>(s.k, {left.data + i * left.row, left.row, left.column}, right, s.right_stride, to + i * s.to_stride, s.to_stride,
                    s.accumulate);
    }
}

SHERD_AVX512 void multiply_avx512(const Sizes& s, std::int64_t n, Left left, const float* right, float* to) {
    std::int64_t j = 0;  // 4 x 4 sums, 4 columns and a factor: 21 of 32 registers
    for (; j + 4 * lanes <= n; j += 4 * lanes) panel<4, 4>(s, left, right + j, to + j);
    for (; j + 2 * lanes <= n; j += 2 * lanes) panel<8, 2>(s, left, right + j, to + j);
    for (; j < n; j += lanes) panel<8, 1>(s, left, right + j, to + j);
}

void multiply_baseline(const Sizes& s, std::int64_t n, Left left, const float* right, float* to) {
    for (std::int64_t j = 0; j < n; j += lanes) panel<4, 1>(s, left, right + j, to + j);  // 8 sums, 2 columns, a factor of 16 registers
}

}  // namespace

void multiply_tiles(std::int64_t m, std::int64_t n, std::int64_t k, Left left, const float* right, std::int64_t right_stride, float* to,
                    std::int64_t to_stride, bool accumulate) {
    const Sizes sizes{m, k, right_stride, to_stride, accumulate};
    if (has_avx512()) {
        multiply_avx512(sizes, n, left, right, to);
    } else {
        multiply_baseline(sizes, n, left, right, to);
    }
}

void transpose_rows(float* to, const float* from, std::int64_t padded, std::int64_t rows, std::int64_t columns) {
    const std::int64_t whole = rows / 4 * 4;  // columns behind `columns` are padding of `from`, but not there in `to`
    for (std::int64_t c = 0; c < columns / 4 * 4; c += 4) {
        for (std::int64_t r = 0; r < whole; r += 4) {
            __m128 a = _mm_loadu_ps(from + r * padded + c), b = _mm_loadu_ps(from + (r + 1) * padded + c);
            __m128 d = _mm_loadu_ps(from + (r + 2) * padded + c), e = _mm_loadu_ps(from + (r + 3) * padded + c);
            _MM_TRANSPOSE4_PS(a, b, d, e);
            _mm_storeu_ps(to + c * tile + r, a);
            _mm_storeu_ps(to + (c + 1) * tile + r, b);
            _mm_storeu_ps(to + (c + 2) * tile + r, d);
            _mm_storeu_ps(to + (c + 3) * tile + r, e);
        }
    }
    for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t r = c < columns / 4 * 4 ? whole : 0; r < rows; ++r) to[c * tile + r] = from[r * padded + c];
        for (std::int64_t r = rows; r < tile; ++r) to[c * tile + r] = 0.0f;
    }
}

void list_tasks(std::vector<Task>& tasks, const Documents& documents, std::int64_t heads, bool by_tile) {
    tasks.clear();
    for (std::int64_t n = 0; n < documents.count; ++n) {
        const std::int64_t first = documents.offsets[n], rows = documents.offsets[n + 1] - first;
        const std::int64_t parts = by_tile ? (rows + tile - 1) / tile : std::min<std::int64_t>(rows, 1);
        for (std::int64_t head = 0; head < heads; ++head) {
            for (std::int64_t i = parts - 1; i >= 0; --i) tasks.push_back({first, rows, head, i});
        }
    }
    std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.rows > b.rows; });
}

}  // namespace sherd::cpu
