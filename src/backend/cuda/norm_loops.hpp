#pragma once
/// RMSNorm at any width and address, one element at a time: for what the kernels of norm.cu do not take.
#include "launch.hpp"

#include "sherd/tensor/tensor.hpp"

#include <algorithm>
#include <cuda_runtime.h>

namespace sherd::cuda {

void rms_norm_forward_loops(cudaStream_t stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon);
void rms_norm_again_loops(cudaStream_t stream, Tensor y, Tensor x, const float* rstd, Tensor w);
/// The gradient of w is left as rms_norm_loop_blocks(rows) partial sums [.., columns].
void rms_norm_backward_loops(cudaStream_t stream, Tensor dx, Tensor dy, Tensor x, const float* rstd, Tensor w, float* partial,
                             bool accumulate);

/// Blocks of the backward pass: a few for each multiprocessor, where that many have work.
inline std::int64_t rms_norm_loop_blocks(std::int64_t rows) {
    return std::min<std::int64_t>(rows, std::int64_t{4} * device_limits().multiprocessors);
}

}  // namespace sherd::cuda
