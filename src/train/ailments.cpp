#include "train/ailments.hpp"

#include <fmt/format.h>

#include <utility>

namespace sherd {

std::string GpuAilments::news(const GpuHealth& health) {
    const std::string throttling = health.throttling.value_or("");
    std::string ails;
    if (!throttling.empty() && throttling != "power" && !std::exchange(throttling_told_, true)) ails = "is held down by " + throttling;
    if (health.ecc_errors > 0 && !std::exchange(errors_told_, true))
        ails += fmt::format("{}has {} uncorrected memory error(s)", ails.empty() ? "" : " and ", health.ecc_errors);
    return ails;
}

}  // namespace sherd
