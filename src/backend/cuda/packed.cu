#include "device.cuh"
#include "packed.hpp"

#include <algorithm>

namespace sherd::cuda {

namespace {

constexpr int threads = 256;

/// Thread i: entry i of each list. Bytes: 32 an entry. No FLOPs.
__global__ void __launch_bounds__(threads) packed_lists_kernel(std::int64_t* queries, std::int64_t* keys, std::int64_t* statistics,
                                                               std::int32_t* lengths, const std::int32_t* offsets, int documents,
                                                               int entries, std::int64_t width, std::int64_t kv_width, std::int64_t heads) {
    const int i = static_cast<int>(blockIdx.x * threads + threadIdx.x);
    if (i > entries) return;
    const std::int64_t begin = offsets[min(i, documents)];
    queries[i] = begin * width;
    keys[i] = begin * kv_width;
    statistics[i] = begin * heads;
    if (i < entries) lengths[i] = i < documents ? offsets[i + 1] - static_cast<std::int32_t>(begin) : 0;
}

constexpr int tile = 32, tile_rows = 8;

/// to [columns, rows] is from [rows, columns] transposed, by tiles, so that both sides are whole lines; rows from *end on, where end is
/// given, are zero instead. Bytes: 8 an element. No FLOPs.
__global__ void __launch_bounds__(tile* tile_rows)
    transpose_kernel(float* to, const float* from, const std::int32_t* end, std::int64_t rows, std::int64_t columns) {
    __shared__ float part[tile][tile + 1];
    const int x = static_cast<int>(threadIdx.x) % tile, y = static_cast<int>(threadIdx.x) / tile;
    const std::int64_t first_row = std::int64_t{blockIdx.x} * tile, first_column = std::int64_t{blockIdx.y} * tile;
    const std::int64_t used = end == nullptr ? rows : std::int64_t{*end};
    for (int i = y; i < tile; i += tile_rows) {
        const std::int64_t row = first_row + i, column = first_column + x;
        part[i][x] = row < used && column < columns ? from[row * columns + column] : 0.0f;
    }
    __syncthreads();
    for (int i = y; i < tile; i += tile_rows) {
        const std::int64_t column = first_column + i, row = first_row + x;
        if (row < rows && column < columns) to[column * rows + row] = part[x][i];
    }
}

void transpose(cudaStream_t stream, float* to, const float* from, const std::int32_t* end, std::int64_t rows, std::int64_t columns) {
    if (rows == 0 || columns == 0) return;
    launch<transpose_kernel>(
        {.grid = dim3(blocks_for(rows, tile), few_blocks_for(columns, tile)), .block = dim3(tile * tile_rows), .stream = stream}, to, from,
        end, rows, columns);
}

/// Each thread takes every so manieth 16 bytes. Bytes: those of surplus rows. No FLOPs.
__global__ void __launch_bounds__(threads) zero_surplus_kernel(uint4* a, uint4* b, uint4* c, const std::int32_t* end, std::int64_t rows,
                                                               std::int64_t a_width, std::int64_t width) {
    const std::int64_t first = *end, start = std::int64_t{blockIdx.x} * threads + threadIdx.x, step = std::int64_t{gridDim.x} * threads;
    for (std::int64_t i = first * a_width + start; i < rows * a_width; i += step) a[i] = make_uint4(0, 0, 0, 0);
    if (b == nullptr) return;
    for (std::int64_t i = first * width + start; i < rows * width; i += step) b[i] = c[i] = make_uint4(0, 0, 0, 0);
}

constexpr unsigned most_blocks = 512;  // surplus rows are few

}  // namespace

void packed_lists(cudaStream_t stream, const PackedLists& lists, const Documents& documents, std::int64_t count,
                  const AttentionShape& shape) {
    launch<packed_lists_kernel>({.grid = dim3(blocks_for(count + 1, threads)), .block = dim3(threads), .stream = stream}, lists.queries,
                                lists.keys, lists.statistics, lists.lengths, documents.offsets, static_cast<int>(documents.count),
                                static_cast<int>(count), shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.heads);
}

void statistics_by_heads(cudaStream_t stream, float* lse, const float* by_rows, std::int64_t rows, std::int64_t heads,
                         const Documents& documents) {
    transpose(stream, lse, by_rows, documents.offsets + documents.count, rows, heads);
}

void statistics_by_rows(cudaStream_t stream, float* by_rows, const float* lse, std::int64_t rows, std::int64_t heads) {
    const std::int32_t* const no_end = nullptr;
    transpose(stream, by_rows, lse, no_end, heads, rows);
}

void zero_surplus(cudaStream_t stream, const Documents& documents, const Tensor& a, const Tensor& b, const Tensor& c) {
    if (a.elements() == 0) return;
    const auto width_of = [](const Tensor& t) { return t.columns * static_cast<std::int64_t>(size_of(t.dtype)) / 16; };
    const unsigned blocks = std::min(most_blocks, blocks_for(a.rows * width_of(a), threads));
    launch<zero_surplus_kernel>({.grid = dim3(blocks), .block = dim3(threads), .stream = stream}, a.as<uint4>(), b.as<uint4>(),
                                c.as<uint4>(), documents.offsets + documents.count, a.rows, width_of(a), width_of(b));
}

}  // namespace sherd::cuda
