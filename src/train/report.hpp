#pragma once
/// How a step and a validation look to people and to programs.
#include "train/evaluator.hpp"
#include "train/metrics.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace sherd {

struct StepReport {
    std::int64_t step, steps, epoch;
    std::optional<double> loss;  ///< nothing: the step had no target
    double grad_norm, rate;
    std::int64_t targets, tokens, sequences, micro_steps;
    double seconds;
    std::int64_t memory_bytes;
};

JsonLine step_line(const StepReport& report);
JsonLine validation_line(std::int64_t step, const EvaluationResult& result);
/// "step 12/40  loss 3.1234  norm 2.10  lr 1.00e-03  5120 tokens/s  1m20s left"
std::string progress_text(const StepReport& report, std::int64_t end);

}  // namespace sherd
