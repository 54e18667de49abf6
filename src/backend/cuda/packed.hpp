#pragma once
/// Between the project's packed documents and what cuDNN's attention is told of them (cudnn/graph.hpp). Device memory everywhere.
#include "sherd/backend/shapes.hpp"

#include <cuda_runtime.h>

namespace sherd::cuda {

/// Where documents start in [rows, heads * head_dim], [rows, kv_heads * head_dim] and [rows, heads], in elements, one more than there are
/// documents; and their lengths.
struct PackedLists {
    std::int64_t *queries, *keys, *statistics;
    std::int32_t* lengths;
};

// packed.cu

/// Fills lists of `documents` documents, at least documents.count: those beyond start where the last one ends and have no rows.
void packed_lists(cudaStream_t stream, const PackedLists& lists, const Documents& documents, std::int64_t count,
                  const AttentionShape& shape);
/// lse [heads, rows] from [rows, heads]; 0 in surplus rows.
void statistics_by_heads(cudaStream_t stream, float* lse, const float* by_rows, std::int64_t rows, std::int64_t heads,
                         const Documents& documents);
/// [rows, heads] from lse [heads, rows].
void statistics_by_rows(cudaStream_t stream, float* by_rows, const float* lse, std::int64_t rows, std::int64_t heads);
/// Surplus rows of all that have data become zero; b and c are alike. 16 bytes divide addresses and rows.
void zero_surplus(cudaStream_t stream, const Documents& documents, const Tensor& a, const Tensor& b = {}, const Tensor& c = {});

}  // namespace sherd::cuda
