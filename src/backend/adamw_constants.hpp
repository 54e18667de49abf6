#pragma once
/// What every device makes of an AdamW step.
#include "sherd/backend/shapes.hpp"

#include <cmath>

namespace sherd {

/// The constants of a step as torch.optim.AdamW forms them: in double, rounded once.
struct AdamWConstants {
    float beta1, rest1, beta2, rest2, decay, step_size, root_bias2, epsilon, gradient_scale;

    explicit AdamWConstants(const AdamWStep& s)
        : beta1(static_cast<float>(s.beta1)),
          rest1(static_cast<float>(1.0 - s.beta1)),
          beta2(static_cast<float>(s.beta2)),
          rest2(static_cast<float>(1.0 - s.beta2)),
          decay(static_cast<float>(1.0 - s.learning_rate * s.weight_decay)),
          step_size(static_cast<float>(s.learning_rate / s.bias1)),
          root_bias2(static_cast<float>(1.0 / std::sqrt(s.bias2))),
          epsilon(static_cast<float>(s.epsilon)),
          gradient_scale(static_cast<float>(s.gradient_scale)) {}
};

}  // namespace sherd
