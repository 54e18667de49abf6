#include "backend/cpu/tiles.hpp"

#include <xmmintrin.h>

namespace sherd::cpu {

namespace {

// One register of floats, at any address of floats. Vectors wider than a register would be spilled at every step. Members of a struct,
// because a vector type loses its alignment as an argument of a template.
struct Avx512 {
    typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
};
struct Avx2 {
    typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));
};

/// A block of M rows and N vectors of columns, its sums in registers throughout.
template <class Isa, int M, int N>
SHERD_INLINE inline void block(std::int64_t k, Left left, const float* right, std::int64_t right_stride, float* to, std::int64_t to_stride,
                               bool accumulate) {
    using Vector = typename Isa::Vector;
    constexpr std::int64_t width = sizeof(Vector) / sizeof(float);
    Vector sums[M][N];
    for (int i = 0; i < M; ++i) {
        for (int v = 0; v < N; ++v) sums[i][v] = accumulate ? *reinterpret_cast<const Vector*>(to + i * to_stride + v * width) : Vector{};
    }
    for (std::int64_t p = 0; p < k; ++p) {
        Vector columns[N];
        for (int v = 0; v < N; ++v) columns[v] = *reinterpret_cast<const Vector*>(right + p * right_stride + v * width);
        for (int i = 0; i < M; ++i) {
            const float factor = left.data[i * left.row + p * left.column];
            for (int v = 0; v < N; ++v) sums[i][v] += factor * columns[v];
        }
    }
    for (int i = 0; i < M; ++i) {
        for (int v = 0; v < N; ++v) *reinterpret_cast<Vector*>(to + i * to_stride + v * width) = sums[i][v];
    }
}

struct Sizes {
    std::int64_t m, k, right_stride, to_stride;
    bool accumulate;
};

/// All rows of N vectors of columns, M rows at a time.
template <class Isa, int M, int N>
SHERD_INLINE inline void panel(const Sizes& s, Left left, const float* right, float* to) {
    const auto rows = [&]<int count>(std::int64_t i) SHERD_INLINE {
        block<Isa, count, N>(s.k, {left.data + i * left.row, left.row, left.column}, right, s.right_stride, to + i * s.to_stride,
                             s.to_stride, s.accumulate);
    };
    std::int64_t i = 0;
    for (; i + M <= s.m; i += M) rows.template operator()<M>(i);
    for (; i < s.m; ++i) rows.template operator()<1>(i);
}

SHERD_AVX512 void multiply_avx512(const Sizes& s, std::int64_t n, Left left, const float* right, float* to) {
    std::int64_t j = 0;  // 4 x 4 sums, 4 columns and a factor: 21 of 32 registers
    for (; j + 4 * lanes <= n; j += 4 * lanes) panel<Avx512, 4, 4>(s, left, right + j, to + j);
    for (; j + 2 * lanes <= n; j += 2 * lanes) panel<Avx512, 8, 2>(s, left, right + j, to + j);
    for (; j < n; j += lanes) panel<Avx512, 8, 1>(s, left, right + j, to + j);
}

void multiply_baseline(const Sizes& s, std::int64_t n, Left left, const float* right, float* to) {
    // 4 x 2 sums, 2 columns, a factor: 11 of AVX2's 16 registers
    for (std::int64_t j = 0; j < n; j += lanes) panel<Avx2, 4, 2>(s, left, right + j, to + j);
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
