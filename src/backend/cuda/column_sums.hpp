#pragma once
/// The second stage of sums over rows: gradients of biases and norms.
#include <cstdint>
#include <cuda_runtime.h>

namespace sherd::cuda {

/// out[c] += sum over p of partial[p, c], partial [count, columns], always in the same order.
void add_column_sums(cudaStream_t stream, float* out, const float* partial, std::int64_t count, std::int64_t columns);

}  // namespace sherd::cuda
