#pragma once
/// Attention by another library than the project's own kernels, for the shapes that it serves.
#include "backend/cuda/stream.hpp"

#include "sherd/backend/devices.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace sherd::cuda {

class FusedAttention {
  public:
    virtual ~FusedAttention() = default;
    /// "cuDNN 9.19.0", for the banner.
    virtual std::string description() const = 0;
    /// As Backend::attention_forward. False: it does not serve that shape, nothing was enqueued. Throws DeviceError.
    virtual bool forward(CudaStream& stream, const Tensor& out, float* lse, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Documents& documents, const AttentionShape& shape) = 0;
    /// As Backend::attention_backward, likewise; lse may be of either's forward pass.
    virtual bool backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& out,
                          const float* lse, const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                          const AttentionShape& shape, const Tensor& scratch) = 0;
    /// Floats of scratch that it would have for the backward pass; 0: it will not serve it. As Backend::attention_scratch.
    virtual std::int64_t scratch(std::int64_t rows, std::int64_t longest, const AttentionShape& shape, DType compute) = 0;
};

/// cuDNN's; nothing where it is not to be used or cannot be. Throws DeviceError where AttentionBy::cudnn asks for it in vain, or a call
/// fails.
std::unique_ptr<FusedAttention> make_cudnn_attention(const Gpu& gpu, AttentionBy by);
/// "cuDNN 9.19.0 (frontend 1.32.0)" as loaded and compiled, or "no cuDNN", for `sherd --version`.
std::string cudnn_build();

}  // namespace sherd::cuda
