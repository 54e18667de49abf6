#include "backend/cpu/kernels.hpp"
#include "backend/cpu/tiles.hpp"

#include <limits>

namespace sherd::cpu {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
// score of a key before the window: finite, since a query's first tile may lie before its window as a whole. What such a tile adds is
// wiped out by the first score within the window, and the query itself always is one.
constexpr float before_window = -1e30f;

/// Buffers of one query tile. Scores stand transposed, [key][query]: then the maxima and sums of all queries are kept in the lanes of
/// registers, and no sum across lanes is needed.
struct Tiles {
    Tiles(Scratch& scratch, std::int64_t padded) {
        float* at = scratch.floats(4 * tile * padded + tile * tile + 3 * tile);
        const auto take = [&](std::int64_t floats) { return std::exchange(at, at + floats); };
        queries = take(padded * tile);
        keys = take(tile * padded);
        values = take(tile * padded);
        out = take(tile * padded);
        scores = take(tile * tile);
        top = take(tile);
        sum = take(tile);
        rescale = take(tile);
    }
    float* queries;              ///< transposed and scaled, [head_dim, tile]
    float *keys, *values;        ///< [tile, padded]
    float* out;                  ///< [tile, padded], not yet divided by sum
    float* scores;               ///< [tile (key), tile (query)], then probabilities
    float *top, *sum, *rescale;  ///< of each query
};

/// scores = keys queries; of the tile on the diagonal only what lies at or after the band of each key.
void score(const Tiles& t, std::int64_t queries, std::int64_t keys, std::int64_t head_dim, std::int64_t padded, bool diagonal) {
    const std::int64_t columns = round_up_to_lanes(queries);
    if (!diagonal) {
        return multiply_tiles(keys, columns, head_dim, {t.keys, padded, 1}, t.queries, tile, t.scores, tile, false);
    }
    for (std::int64_t b = 0; b < keys; b += lanes) {
        multiply_tiles(std::min(lanes, keys - b), columns - b, head_dim, {t.keys + b * padded, padded, 1}, t.queries + b, tile,
                       t.scores + b * tile + b, tile, false);
    }
}

SHERD_INLINE inline void soften_columns(float* scores, float* top, float* sum, float* rescale, std::int64_t columns, std::int64_t keys,
                                        bool diagonal) {
    for (std::int64_t i = 0; i < columns; ++i) rescale[i] = top[i];
    for (std::int64_t j = 0; j < keys; ++j) {
        float* const row = scores + j * tile;
        const std::int64_t first = diagonal ? j / lanes * lanes : 0;
        if (diagonal) {
            for (std::int64_t i = first; i < j; ++i) row[i] = minus_infinity;
        }
#pragma omp simd
        for (std::int64_t i = first; i < columns; ++i) top[i] = top[i] < row[i] ? row[i] : top[i];
    }
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) {
        rescale[i] = exponential(rescale[i] - top[i]);
        sum[i] *= rescale[i];
    }
    for (std::int64_t j = 0; j < keys; ++j) {
        float* const row = scores + j * tile;
#pragma omp simd
        for (std::int64_t i = diagonal ? j / lanes * lanes : 0; i < columns; ++i) {
            row[i] = exponential(row[i] - top[i]);
            sum[i] += row[i];
        }
    }
}

/// Takes out the keys that lie `window` or more before a query; `distance`: from the tile's first key to its first query.
void mask_window(const Tiles& t, std::int64_t queries, std::int64_t keys, std::int64_t distance, std::int64_t window) {
    const std::int64_t columns = round_up_to_lanes(queries);
    for (std::int64_t j = 0; j < keys; ++j)
        for (std::int64_t i = std::max<std::int64_t>(0, window - distance + j); i < columns; ++i) t.scores[j * tile + i] = before_window;
}

/// Scores become probabilities relative to the new maxima; top, sum and rescale follow.
void soften(const Tiles& t, std::int64_t queries, std::int64_t keys, bool diagonal) {
    const std::int64_t columns = round_up_to_lanes(queries);
    float *const top = t.top, *const sum = t.sum, *const rescale = t.rescale, *const scores = t.scores;
    widest([=]() SHERD_INLINE {
        if (columns == tile && !diagonal) {
            soften_columns(scores, top, sum, rescale, tile, keys, false);  // the common case, with loops of known length
        } else {
            soften_columns(scores, top, sum, rescale, columns, keys, diagonal);
        }
    });
}

/// out = rescale * out + probabilities values
void add_values(const Tiles& t, std::int64_t queries, std::int64_t keys, std::int64_t padded, bool diagonal, bool first) {
    if (!first) {
        widest([=]() SHERD_INLINE {
            for (std::int64_t i = 0; i < queries; ++i) {
                float* const row = t.out + i * padded;
                const float factor = t.rescale[i];
#pragma omp simd
                for (std::int64_t c = 0; c < padded; ++c) row[c] *= factor;
            }
        });
    }
    const std::int64_t band = diagonal ? lanes : tile;
    for (std::int64_t b = 0; b < queries; b += band) {
        multiply_tiles(std::min(band, queries - b), padded, diagonal ? std::min(keys, b + band) : keys, {t.scores + b, 1, tile}, t.values,
                       padded, t.out + b * padded, padded, !first);
    }
}

/// The operands of all tasks.
template <class T>
struct Forward {
    T* out;
    float* lse;
    const T *q, *k, *v;
    std::int64_t rows;
    AttentionShape shape;

    void operator()(const Task& task) const {
        thread_local Scratch scratch;
        const std::int64_t d = shape.head_dim, padded = round_up_to_lanes(d), from = task.index * tile;
        const std::int64_t queries = std::min(tile, task.rows - from), row = task.first_row + from, head = task.head;
        const std::int64_t q_stride = shape.heads * d, kv_stride = shape.kv_heads * d, kv_head = head / (shape.heads / shape.kv_heads);
        const Tiles t(scratch, padded);
        load_rows(t.out, padded, q + row * q_stride + head * d, q_stride, queries, d, shape.scale);
        transpose_rows(t.queries, t.out, padded, queries, d);
        std::fill(t.top, t.top + tile, minus_infinity);
        std::fill(t.sum, t.sum + tile, 0.0f);
        const std::int64_t window = shape.window > 0 ? shape.window : task.rows;
        const std::int64_t first_tile = std::max<std::int64_t>(0, from - window + 1) / tile;
        for (std::int64_t j = first_tile; j <= task.index; ++j) {
            const bool diagonal = j == task.index;
            const std::int64_t keys = std::min(tile, task.rows - j * tile);
            const std::int64_t at = (task.first_row + j * tile) * kv_stride + kv_head * d;
            load_rows(t.keys, padded, k + at, kv_stride, keys, d);
            load_rows(t.values, padded, v + at, kv_stride, keys, d);
            score(t, queries, keys, d, padded, diagonal);
            if (from - j * tile + queries > window) mask_window(t, queries, keys, from - j * tile, window);
            soften(t, queries, keys, diagonal);
            add_values(t, queries, keys, padded, diagonal, j == first_tile);
        }
        for (std::int64_t i = 0; i < queries; ++i) {
            store_rows(out + (row + i) * q_stride + head * d, q_stride, t.out + i * padded, padded, 1, d, 1.0f / t.sum[i]);
            lse[head * rows + row + i] = t.top[i] + std::log(t.sum[i]);
        }
    }
};

}  // namespace

void attention_forward(Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents, const AttentionShape& shape) {
    thread_local std::vector<Task> tasks_of_thread;  // keeps its memory from call to call
    std::vector<Task>& tasks = tasks_of_thread;
    list_tasks(tasks, documents, shape.heads, true);
    const std::int64_t used = documents.count > 0 ? documents.offsets[documents.count] : 0;
    with_compute_type(q.dtype, [&]<class T>() {
        const Forward<T> run{out.as<T>(), lse, q.as<const T>(), k.as<const T>(), v.as<const T>(), q.rows, shape};
#pragma omp parallel for schedule(dynamic, 1)
        for (std::size_t i = 0; i < tasks.size(); ++i) run(tasks[i]);
    });
    zero_surplus(out, documents);
    for (std::int64_t h = 0; h < shape.heads; ++h) std::fill(lse + h * q.rows + used, lse + (h + 1) * q.rows, 0.0f);
}

}  // namespace sherd::cpu
