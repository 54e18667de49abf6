#pragma once
/// Parameters of device operations, apart from the operations themselves: kernels of a GPU need no more, and their compiler cannot read all
/// that the rest includes.
#include "sherd/tensor/tensor.hpp"

#include <cstdint>

namespace sherd {

/// Sizes of an attention operation. Query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
    std::int64_t heads, kv_heads, head_dim;
    float scale;              ///< of the scores: 1 / sqrt(head_dim)
    std::int64_t window = 0;  ///< a row sees itself and the window - 1 rows before it; 0: all before it
};

/// One AdamW step with decoupled weight decay, as torch.optim.AdamW (Loshchilov and Hutter 2019).
struct AdamWStep {
    // double, because 1 - 0.999f is off by 1.3e-5: the constants are formed in double and rounded once
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double bias1, bias2;    ///< 1 - beta1^t, 1 - beta2^t for the t-th step, from 1
    double gradient_scale;  ///< the gradient is multiplied by it first (clipping)
};

}  // namespace sherd
