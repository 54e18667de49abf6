#include "train/report.hpp"

#include "sherd/runtime/error.hpp"

#include <cmath>

namespace sherd {

namespace {
std::string duration(double seconds) {
    const auto s = std::int64_t{std::llround(seconds)};
    if (s < 60) return fmt::format("{}s", s);
    if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
    return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}
}  // namespace

JsonLine step_line(const StepReport& r) {
    JsonLine line("step");
    line.add("step", r.step).add("epoch", r.epoch);
    if (r.loss)
        line.add("loss", *r.loss).add("grad_norm", r.grad_norm);
    else
        line.add_null("loss").add_null("grad_norm");
    return line.add("lr", r.rate)
        .add("targets", r.targets)
        .add("tokens", r.tokens)
        .add("sequences", r.sequences)
        .add("micro_steps", r.micro_steps)
        .add("step_s", r.seconds)
        .add("tokens_per_s", static_cast<double>(r.tokens) / r.seconds)
        .add("memory_bytes", r.memory_bytes);
}

JsonLine validation_line(std::int64_t step, const EvaluationResult& result) {
    return JsonLine("validation")
        .add("step", step)
        .add("loss", result.loss)
        .add("perplexity", result.perplexity)
        .add("targets", result.targets);
}

std::string progress_text(const StepReport& r, std::int64_t end) {
    const std::string loss = r.loss ? fmt::format("loss {:.5f}  norm {:.3f}", *r.loss, r.grad_norm) : "no targets";
    return fmt::format("step {}/{}  {}  lr {:.3e}  {:.0f} tokens/s  {} left", r.step, r.steps, loss, r.rate,
                       static_cast<double>(r.tokens) / r.seconds, duration(static_cast<double>(end - r.step) * r.seconds));
}

}  // namespace sherd
