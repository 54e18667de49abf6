#include "backend/cpu/kernels.hpp"
#include "backend/cpu/vector_math.hpp"

#include <cstring>

namespace sherd::cpu {

namespace {

void check_ids(const std::int32_t* ids, std::int64_t rows, std::int64_t vocabulary) {
    for (std::int64_t t = 0; t < rows; ++t) {
        if (ids[t] >= vocabulary) {
            throw InputError(
                "row {} of the micro-batch holds token id {}, but the embedding has {} rows: do the tokens belong to this model?", t,
                ids[t], vocabulary);
        }
    }
}

}  // namespace

void embedding_forward(Tensor y, Tensor table, const std::int32_t* ids) {
    check_ids(ids, y.rows, table.rows);
    const std::size_t bytes = static_cast<std::size_t>(y.columns) * size_of(y.dtype);
    for_blocks(y.rows, 16, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = first; t < last; ++t) {
            void* const row = y.slice(t, 1).data;
            if (ids[t] < 0) {
                std::memset(row, 0, bytes);
            } else {
                std::memcpy(row, table.slice(ids[t], 1).data, bytes);
            }
        }
    });
}

void embedding_backward(Tensor dtable, Tensor dy, const std::int32_t* ids) {
    check_ids(ids, dy.rows, dtable.rows);
    const std::int64_t columns = dy.columns;
    float* const sums = dtable.as<float>();
    with_compute_type(dy.dtype, [&]<class T>() {
        const T* const from = dy.as<const T>();
        // threads share the columns, so that each row of the table is summed by one thread in the order of the tokens
        for_blocks(columns, 64, [=](std::int64_t first, std::int64_t last) {
            for (std::int64_t t = 0; t < dy.rows; ++t) {
                if (ids[t] < 0) continue;
                float* const to = sums + ids[t] * columns;
                const T* const row = from + t * columns;
#pragma omp simd
                for (std::int64_t c = first; c < last; ++c) to[c] += to_float(row[c]);
            }
        });
    });
}

}  // namespace sherd::cpu
