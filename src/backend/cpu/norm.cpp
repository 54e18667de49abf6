#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

namespace sherd::cpu {

namespace {

constexpr std::int64_t row_block = 8;

/// Rows of a block that shares one partial sum of dw: a function of rows alone, at most 32 blocks.
std::int64_t rows_of_partial(std::int64_t rows) {
    return std::max<std::int64_t>(16, (rows + 31) / 32);
}

template <class T>
SHERD_INLINE inline float sum_of_squares(const T* x, std::int64_t n) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = 0; c < n; ++c) total += to_float(x[c]) * to_float(x[c]);
    return total;
}

template <class T>
SHERD_INLINE inline void add_rows(T* sum, const T* x, const T* delta, std::int64_t n) {
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) sum[c] = from_float<T>(to_float(x[c]) + to_float(delta[c]));
}

template <class T>
SHERD_INLINE inline void scale_row(T* y, const T* x, const T* w, float rstd, std::int64_t n) {
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) y[c] = from_float<T>(to_float(x[c]) * rstd * to_float(w[c]));
}

/// dx = rstd (w dy - x rstd^2 mean(w dy x)) or +=, partial += dy x rstd. The compiler must know whether dx is read, or it reads dx in
/// either case.
template <bool accumulate, class T>
SHERD_INLINE inline void backward_row(T* dx, float* partial, const T* dy, const T* x, const T* w, float rstd, std::int64_t n) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t c = 0; c < n; ++c) dot += to_float(dy[c]) * to_float(w[c]) * to_float(x[c]);
    const float shared = dot * rstd * rstd / static_cast<float>(n);
#pragma omp simd
    for (std::int64_t c = 0; c < n; ++c) {
        const float d = to_float(dy[c]), value = to_float(x[c]);
        partial[c] += d * value * rstd;
        dx[c] = from_float<T>((accumulate ? to_float(dx[c]) : 0.0f) + rstd * (to_float(w[c]) * d - value * shared));
    }
}

}  // namespace

void rms_norm_forward(Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon) {
    const std::int64_t n = x.columns;
    with_compute_type(x.dtype, [&]<class T>() {
        for_blocks(x.rows, row_block, [&](std::int64_t first, std::int64_t last) {
            widest([&]() SHERD_INLINE {
                for (std::int64_t t = first; t < last; ++t) {
                    const T* row = x.as<const T>() + t * n;
                    if (delta.data != nullptr) {
                        T* const to = sum.as<T>() + t * n;
                        add_rows(to, row, delta.as<const T>() + t * n, n);
                        row = to;
                    }
                    rstd[t] = 1.0f / std::sqrt(sum_of_squares(row, n) / static_cast<float>(n) + epsilon);
                    scale_row(y.as<T>() + t * n, row, w.as<const T>(), rstd[t], n);
                }
            });
        });
    });
}

void rms_norm_again(Tensor y, Tensor x, const float* rstd, Tensor w) {
    const std::int64_t n = x.columns;
    with_compute_type(x.dtype, [&]<class T>() {
        for_blocks(x.rows, row_block, [&](std::int64_t first, std::int64_t last) {
            widest([&]() SHERD_INLINE {
                for (std::int64_t t = first; t < last; ++t) {
                    scale_row(y.as<T>() + t * n, x.as<const T>() + t * n, w.as<const T>(), rstd[t], n);
                }
            });
        });
    });
}

void rms_norm_backward(Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch, bool accumulate) {
    const std::int64_t n = x.columns, rows = x.rows, per_partial = rows_of_partial(rows);
    const auto run = [&]<class T, bool add>() {
        for_blocks(rows, per_partial, [&](std::int64_t first, std::int64_t last) {
            float* const partial = scratch + first / per_partial * n;
            widest([&]() SHERD_INLINE {
                std::fill(partial, partial + n, 0.0f);
                for (std::int64_t t = first; t < last; ++t) {
                    backward_row<add>(dx.as<T>() + t * n, partial, dy.as<const T>() + t * n, x.as<const T>() + t * n, w.as<const T>(),
                                      rstd[t], n);
                }
            });
        });
    };
    with_compute_type(x.dtype, [&]<class T>() { accumulate ? run.template operator()<T, true>() : run.template operator()<T, false>(); });
    for_blocks(n, 256, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = 0; row < rows; row += per_partial) {
            const float* const partial = scratch + row / per_partial * n;
#pragma omp simd
            for (std::int64_t c = first; c < last; ++c) dw[c] += partial[c];
        }
    });
}

std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns) {
    const std::int64_t per_partial = rows_of_partial(rows);
    return (rows + per_partial - 1) / per_partial * columns;
}

}  // namespace sherd::cpu
