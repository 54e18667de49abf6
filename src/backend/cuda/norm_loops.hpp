#pragma once
/// RMSNorm at any width and address, one element at a time: for what the kernels of norm.cu do not take.
#include "sherd/tensor/tensor.hpp"

#include <algorithm>
#include <cuda_runtime.h>

namespace sherd::cuda {

void rms_norm_forward_loops(cudaStream_t stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon);
void rms_norm_again_loops(cudaStream_t stream, Tensor y, Tensor x, const float* rstd, Tensor w);
/// The gradient of w is left as rms_norm_partials(rows) partial sums [.., columns].
void rms_norm_backward_loops(cudaStream_t stream, Tensor dx, Tensor dy, Tensor x, const float* rstd, Tensor w, float* partial);

/// Partial sums of the gradient of w, where that many blocks have work: a few blocks for each multiprocessor of the largest GPU.
inline std::int64_t rms_norm_partials(std::int64_t blocks) {
    return std::min<std::int64_t>(blocks, 512);
}

}  // namespace sherd::cuda
