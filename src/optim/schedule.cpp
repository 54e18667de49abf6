#include "sherd/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sherd {

double learning_rate(const OptimizerSettings& o, std::int64_t s, std::int64_t steps) {
    if (s < o.warmup_steps) return o.learning_rate * static_cast<double>(s + 1) / static_cast<double>(o.warmup_steps);
    const double x = static_cast<double>(s - o.warmup_steps) / static_cast<double>(std::max<std::int64_t>(1, steps - o.warmup_steps));
    const double m = o.min_lr_ratio;
    switch (o.schedule) {
        case Schedule::constant:
            return o.learning_rate;
        case Schedule::linear:
            return o.learning_rate * (1 - (1 - m) * x);
        case Schedule::cosine:
            return o.learning_rate * (m + (1 - m) * (1 + std::cos(std::numbers::pi * x)) / 2);
    }
    return o.learning_rate;
}

double clip_factor(const OptimizerSettings& o, double norm) {
    return o.clip_norm > 0 ? std::min(1.0, o.clip_norm / (norm + 1e-6)) : 1.0;
}

AdamWStep adamw_step(const OptimizerSettings& o, double rate, double clip, std::int64_t t) {
    return {rate,
            o.beta1,
            o.beta2,
            o.epsilon,
            o.weight_decay,
            1 - std::pow(o.beta1, static_cast<double>(t)),
            1 - std::pow(o.beta2, static_cast<double>(t)),
            clip};
}

}  // namespace sherd
