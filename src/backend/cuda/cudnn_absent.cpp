// Stands in for src/backend/cuda/cudnn in a build without cuDNN or its frontend.
#include "backend/cuda/fused_attention.hpp"

#include "sherd/runtime/error.hpp"

namespace sherd::cuda {

std::unique_ptr<FusedAttention> make_cudnn_attention(const Gpu&, AttentionBy by) {
    if (by == AttentionBy::cudnn)
        throw DeviceError(
            "device.attention = cudnn, and this binary was built without cuDNN; build it with make CUDNN=1 CUDNN_HOME=PLACE "
            "CUDNN_FRONTEND_HOME=PLACE, or say auto or own");
    return nullptr;
}

std::string cudnn_build() {
    return "no cuDNN";
}

}  // namespace sherd::cuda
