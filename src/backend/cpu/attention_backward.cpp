#include "backend/cpu/kernels.hpp"
#include "backend/cpu/tiles.hpp"

#include <algorithm>

namespace sherd::cpu {

namespace {

/// Buffers of one key tile and one query tile. Scores stand [query][key].
struct Tiles {
    Tiles(Scratch& scratch, std::int64_t padded) {
        float* at = scratch.floats(8 * tile * padded + 2 * tile * tile);
        const auto take = [&](std::int64_t floats) { return std::exchange(at, at + floats); };
        keys = take(tile * padded);
        keys_across = take(tile * padded);
        values = take(tile * padded);
        values_across = take(tile * padded);
        queries = take(tile * padded);
        dout = take(tile * padded);
        dkeys = take(tile * padded);
        dvalues = take(tile * padded);
        scores = take(tile * tile);
        dscores = take(tile * tile);
    }
    float *keys, *values;                ///< [tile, padded]
    float *keys_across, *values_across;  ///< the same transposed, [head_dim, tile]
    float *queries, *dout;               ///< [tile, padded], queries scaled
    float *dkeys, *dvalues;              ///< [tile, padded]
    float *scores, *dscores;             ///< [tile (query), tile (key)]
};

/// Sizes of one pair of tiles. Of the tile on the diagonal, bands of 16 queries meet only the keys up to their own band.
struct Pair {
    std::int64_t queries, keys, head_dim, padded;
    bool diagonal;
    std::int64_t distance, window;  ///< from the first key to the first query; keys that far before a query are out of its sight
};

/// to [query, key] = left [query, head_dim] across [head_dim, key]
void products_with_keys(const Pair& p, float* to, const float* left, const float* across) {
    const std::int64_t band = p.diagonal ? lanes : tile;
    for (std::int64_t b = 0; b < p.queries; b += band) {
        const std::int64_t columns = round_up_to_lanes(p.diagonal ? std::min(p.keys, b + band) : p.keys);
        multiply_tiles(std::min(band, p.queries - b), columns, p.head_dim, {left + b * p.padded, p.padded, 1}, across, tile, to + b * tile,
                       tile, false);
    }
}

/// scores become probabilities, dscores (which held dout values^T) the gradients of the scores.
void through_softmax(const Pair& p, float* scores, float* dscores, const float* lse, const float* dots) {
    widest([=]() SHERD_INLINE {
        for (std::int64_t i = 0; i < p.queries; ++i) {
            float *const row = scores + i * tile, *const drow = dscores + i * tile;
            const std::int64_t keys = p.diagonal ? std::min(p.keys, i + 1) : p.keys;
            const std::int64_t first = std::clamp<std::int64_t>(p.distance + i - p.window + 1, 0, keys);
            const float total = lse[i], dot = dots[i];
            for (std::int64_t j = 0; j < first; ++j) row[j] = drow[j] = 0.0f;
#pragma omp simd
            for (std::int64_t j = first; j < keys; ++j) {
                row[j] = exponential(row[j] - total);
                drow[j] = row[j] * (drow[j] - dot);
            }
            if (!p.diagonal) continue;
            for (std::int64_t j = keys; j < std::min(tile, i / lanes * lanes + lanes); ++j) row[j] = drow[j] = 0.0f;
        }
    });
}

/// to [key, padded] += weights^T rows, weights [query, key], rows [query, padded]
void add_to_keys(const Pair& p, float* to, const float* weights, const float* rows) {
    const std::int64_t band = p.diagonal ? lanes : tile;
    for (std::int64_t b = 0; b < p.keys; b += band) {
        const std::int64_t first = p.diagonal ? b : 0;
        if (first >= p.queries) continue;
        multiply_tiles(std::min(band, p.keys - b), p.padded, p.queries - first, {weights + first * tile + b, 1, tile},
                       rows + first * p.padded, p.padded, to + b * p.padded, p.padded, true);
    }
}

/// to [query, padded] += dscores keys
void add_to_queries(const Pair& p, float* to, const float* dscores, const float* keys) {
    const std::int64_t band = p.diagonal ? lanes : tile;
    for (std::int64_t b = 0; b < p.queries; b += band) {
        multiply_tiles(std::min(band, p.queries - b), p.padded, p.diagonal ? std::min(p.keys, b + band) : p.keys,
                       {dscores + b * tile, tile, 1}, keys, p.padded, to + b * p.padded, p.padded, true);
    }
}

/// The operands of all tasks. A task is one document and one key/value head with its group of query heads: it alone writes their
/// gradients, so that the result does not depend on how tasks are scheduled.
template <class T>
struct Backward {
    T *dq, *dk, *dv;
    const T *dout, *out, *q, *k, *v;
    const float* lse;
    float *sums, *dots;  ///< [heads, rows, padded] of dq in fp32, [heads, rows] of dout . out
    std::int64_t rows;
    AttentionShape shape;

    std::int64_t group() const { return shape.heads / shape.kv_heads; }
    std::int64_t padded() const { return round_up_to_lanes(shape.head_dim); }
    std::int64_t q_at(std::int64_t row, std::int64_t head) const { return (row * shape.heads + head) * shape.head_dim; }
    std::int64_t kv_at(std::int64_t row, std::int64_t head) const { return (row * shape.kv_heads + head) * shape.head_dim; }

    void operator()(const Task& task) const {
        thread_local Scratch scratch;
        const Tiles t(scratch, padded());
        const std::int64_t d = shape.head_dim, kv_stride = shape.kv_heads * d, kv_head = task.head;
        const std::int64_t window = shape.window > 0 ? shape.window : task.rows;
        for (std::int64_t g = 0; g < group(); ++g) prepare(task, kv_head * group() + g);
        for (std::int64_t j = 0; j < task.rows; j += tile) {
            const std::int64_t keys = std::min(tile, task.rows - j), at = kv_at(task.first_row + j, kv_head);
            load_rows(t.keys, padded(), k + at, kv_stride, keys, d);
            load_rows(t.values, padded(), v + at, kv_stride, keys, d);
            transpose_rows(t.keys_across, t.keys, padded(), keys, d);
            transpose_rows(t.values_across, t.values, padded(), keys, d);
            std::fill(t.dkeys, t.dkeys + tile * padded(), 0.0f);
            std::fill(t.dvalues, t.dvalues + tile * padded(), 0.0f);
            for (std::int64_t g = 0; g < group(); ++g) {
                for (std::int64_t i = j; i < task.rows && i - j - keys + 1 < window; i += tile) {
                    pair(t, {std::min(tile, task.rows - i), keys, d, padded(), i == j, i - j, window}, task.first_row + i,
                         kv_head * group() + g);
                }
            }
            store_rows(dk + at, kv_stride, t.dkeys, padded(), keys, d);
            store_rows(dv + at, kv_stride, t.dvalues, padded(), keys, d);
        }
        for (std::int64_t g = 0; g < group(); ++g) {
            const std::int64_t head = kv_head * group() + g;
            store_rows(dq + q_at(task.first_row, head), shape.heads * d, sums + (head * rows + task.first_row) * padded(), padded(),
                       task.rows, d, shape.scale);
        }
    }

    /// Zeroes the sums of one head and forms dout . out, which is the sum of probabilities times their gradients (Dao 2022).
    void prepare(const Task& task, std::int64_t head) const {
        float* const zero = sums + (head * rows + task.first_row) * padded();
        std::fill(zero, zero + task.rows * padded(), 0.0f);
        widest([&]() SHERD_INLINE {
            for (std::int64_t i = 0; i < task.rows; ++i) {
                const T *const a = dout + q_at(task.first_row + i, head), *const b = out + q_at(task.first_row + i, head);
                float dot = 0;
#pragma omp simd reduction(+ : dot)
                for (std::int64_t c = 0; c < shape.head_dim; ++c) dot += to_float(a[c]) * to_float(b[c]);
                dots[head * rows + task.first_row + i] = dot;
            }
        });
    }

    void pair(const Tiles& t, const Pair& p, std::int64_t row, std::int64_t head) const {
        const std::int64_t q_stride = shape.heads * p.head_dim, at = head * rows + row;
        load_rows(t.queries, p.padded, q + q_at(row, head), q_stride, p.queries, p.head_dim, shape.scale);
        load_rows(t.dout, p.padded, dout + q_at(row, head), q_stride, p.queries, p.head_dim);
        products_with_keys(p, t.scores, t.queries, t.keys_across);
        products_with_keys(p, t.dscores, t.dout, t.values_across);
        through_softmax(p, t.scores, t.dscores, lse + at, dots + at);
        add_to_keys(p, t.dvalues, t.scores, t.dout);
        add_to_keys(p, t.dkeys, t.dscores, t.queries);
        add_to_queries(p, sums + at * p.padded, t.dscores, t.keys);
    }
};

}  // namespace

void attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k, Tensor v,
                        const Documents& documents, const AttentionShape& shape, float* scratch) {
    thread_local std::vector<Task> tasks_of_thread;  // keeps its memory from call to call
    std::vector<Task>& tasks = tasks_of_thread;
    list_tasks(tasks, documents, shape.kv_heads, false);
    float* const dots = scratch + shape.heads * q.rows * round_up_to_lanes(shape.head_dim);
    with_compute_type(q.dtype, [&]<class T>() {
        const Backward<T> run{dq.as<T>(),
                              dk.as<T>(),
                              dv.as<T>(),
                              dout.as<const T>(),
                              out.as<const T>(),
                              q.as<const T>(),
                              k.as<const T>(),
                              v.as<const T>(),
                              lse,
                              scratch,
                              dots,
                              q.rows,
                              shape};
#pragma omp parallel for schedule(dynamic, 1)
        for (std::size_t i = 0; i < tasks.size(); ++i) run(tasks[i]);
    });
    zero_surplus(dq, documents);
    zero_surplus(dk, documents);
    zero_surplus(dv, documents);
}

std::int64_t attention_scratch(std::int64_t rows, const AttentionShape& shape) {
    return shape.heads * rows * (round_up_to_lanes(shape.head_dim) + 1);
}

}  // namespace sherd::cpu
