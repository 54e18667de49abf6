#pragma once
/// The operations of a CUDA device that are own kernels, as plain functions that enqueue on a stream: backend.hpp says what each does.
/// Products with weights are cuBLASLt's and not here. All pointers are device memory. Errors of a launch are thrown as DeviceError.
#include "sherd/backend/shapes.hpp"

#include <cuda_runtime.h>

namespace sherd::cuda {

// elementwise.cu
void cast(cudaStream_t stream, Tensor to, Tensor from);
void add(cudaStream_t stream, Tensor y, Tensor x, bool accumulate);
void rope(cudaStream_t stream, Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions,
          bool inverse);
void swiglu_forward(cudaStream_t stream, Tensor out, Tensor gate, Tensor up);
void swiglu_backward(cudaStream_t stream, Tensor gate, Tensor up, Tensor dout);

// optimizer.cu
void adamw(cudaStream_t stream, const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient,
           Tensor weights, std::int64_t n);

// reduce.cu; scratch: reduce_scratch doubles, the same for every n
void sum(cudaStream_t stream, double* out, const float* x, std::int64_t n, double* scratch);
void sum_squares(cudaStream_t stream, double* out, const float* x, std::int64_t n, double* scratch);
inline constexpr std::int64_t reduce_scratch = 1024;

// bias.cu; scratch: bias_scratch(rows, columns) floats
void bias_backward(cudaStream_t stream, float* dbias, Tensor dy, float* scratch);
std::int64_t bias_scratch(std::int64_t rows, std::int64_t columns);

// embedding.cu; scratch: embedding_scratch(rows) integers
void embedding_forward(cudaStream_t stream, Tensor y, Tensor table, const std::int32_t* ids);
void embedding_backward(cudaStream_t stream, Tensor dtable, Tensor dy, const std::int32_t* ids, std::int32_t* scratch);
std::int64_t embedding_scratch(std::int64_t rows);

// norm.cu; rms_norm_scratch: of the current device
void rms_norm_forward(cudaStream_t stream, Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon);
void rms_norm_again(cudaStream_t stream, Tensor y, Tensor x, const float* rstd, Tensor w);
void rms_norm_backward(cudaStream_t stream, Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch,
                       bool accumulate);
std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns);

// attention_*.cu
void attention_forward(cudaStream_t stream, Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents,
                       const AttentionShape& shape);
void attention_backward(cudaStream_t stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k,
                        Tensor v, const Documents& documents, const AttentionShape& shape, float* scratch);
std::int64_t attention_scratch(std::int64_t rows, const AttentionShape& shape);

// loss.cu
void cross_entropy(cudaStream_t stream, float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale);

}  // namespace sherd::cuda
