#pragma once
/// What the kernels of attention share with the host code that chooses among them.
#include "kernels.hpp"
#include "launch.hpp"

namespace sherd::cuda {

/// What kernels are told of an operation. Pointers are arguments of their own.
struct AttentionSizes {
    int rows, documents;
    int heads, kv_heads, head_dim;
    int window;  ///< at least 1, at most rows where there are rows
    float scale;
    bool wide;  ///< 16 bytes divide all addresses and the width of a head
};

/// The operations of kernels.hpp on a device with these limits.
void attention_forward(cudaStream_t stream, const DeviceLimits& limits, Tensor out, float* lse, Tensor q, Tensor k, Tensor v,
                       const Documents& documents, const AttentionShape& shape);
void attention_backward(cudaStream_t stream, const DeviceLimits& limits, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                        const float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents, const AttentionShape& shape,
                        float* scratch);

/// Throws DeviceError where no kernel takes that shape: head_dim odd or above 256.
void check_attention(std::int64_t rows, const AttentionShape& shape);

/// Operands of the forward pass, of the backward pass; T is the type of tensors.
template <class T>
struct ForwardOperands {
    T* out;
    float* lse;
    const T *q, *k, *v;
    const std::int32_t* offsets;
};
template <class T>
struct BackwardOperands {
    T *dq, *dk, *dv;
    const T *dout, *q, *k, *v;
    const float *lse, *delta;  ///< delta [heads, rows]: dout . out of each row and head
    const std::int32_t* offsets;
};

// attention_forward.cu, attention_keys.cu, attention_queries.cu: on tensor cores, for __half and __nv_bfloat16, where sizes.wide.
// False: tiles of that size do not fit the device.
template <class T>
bool tensor_attention_forward(cudaStream_t stream, const DeviceLimits& limits, const ForwardOperands<T>& o, const AttentionSizes& sizes);
template <class T>
bool tensor_attention_keys(cudaStream_t stream, const DeviceLimits& limits, const BackwardOperands<T>& o, const AttentionSizes& sizes);
template <class T>
bool tensor_attention_queries(cudaStream_t stream, const DeviceLimits& limits, const BackwardOperands<T>& o, const AttentionSizes& sizes);

// attention_simple.cu: on every device, for float too.
template <class T>
void simple_attention_forward(cudaStream_t stream, const ForwardOperands<T>& o, const AttentionSizes& sizes);
template <class T>
void simple_attention_keys(cudaStream_t stream, const BackwardOperands<T>& o, const AttentionSizes& sizes);
template <class T>
void simple_attention_queries(cudaStream_t stream, const BackwardOperands<T>& o, const AttentionSizes& sizes);

}  // namespace sherd::cuda
