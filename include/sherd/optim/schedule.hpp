#pragma once
/// Learning rate by optimizer step, and AdamW's constants of a step.
#include "sherd/backend/backend.hpp"

#include <cstdint>

namespace sherd {

enum class Schedule { constant, linear, cosine };

/// Settings of AdamW and of the schedule (docs/deck.md, section optimizer).
struct OptimizerSettings {
    double learning_rate = 1e-5;
    Schedule schedule = Schedule::cosine;
    std::int64_t warmup_steps = 0;
    double min_lr_ratio = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    double clip_norm = 1.0;  ///< 0: off
};

/// Learning rate of step s (from 0) of S steps, m = min_lr_ratio, W = warmup_steps: base*(s+1)/W for s < W; then with x = (s-W)/max(1,
/// S-W): constant base; linear base*(1-(1-m)x); cosine base*(m + (1-m)(1+cos(pi x))/2).
double learning_rate(const OptimizerSettings& settings, std::int64_t s, std::int64_t steps);

/// Factor of the gradients: min(1, clip_norm/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 where clipping is off.
double clip_factor(const OptimizerSettings& settings, double norm);

/// Constants of the t-th AdamW step (t from 1).
AdamWStep adamw_step(const OptimizerSettings& settings, double rate, double clip, std::int64_t t);

}  // namespace sherd
