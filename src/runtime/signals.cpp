#include "sherd/runtime/signals.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace sherd {

namespace {
constexpr std::array<int, 4> caught{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
volatile std::sig_atomic_t last_signal = 0;
std::array<struct sigaction, caught.size()> before;

void remember(int signal) {
    last_signal = signal;
}
}  // namespace

StopSignals::StopSignals() {
    struct sigaction action {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < caught.size(); ++i) ::sigaction(caught[i], &action, &before[i]);
}

StopSignals::~StopSignals() {
    for (std::size_t i = 0; i < caught.size(); ++i) ::sigaction(caught[i], &before[i], nullptr);
}

int StopSignals::received() noexcept {
    return last_signal;
}

void stop_if_interrupted() {
    if (StopSignals::received() != 0) throw Interrupted{StopSignals::received()};
}

std::optional<double> job_end_time() {
    const char* text = std::getenv("SLURM_JOB_END_TIME");
    if (text == nullptr || *text == '\0') return std::nullopt;
    long long seconds = 0;
    const char* end = text + std::strlen(text);
    if (const auto [rest, error] = std::from_chars(text, end, seconds); error != std::errc() || rest != end) {
        log::warning(fmt::format("SLURM_JOB_END_TIME is '{}', not a number of seconds; the end of the job is not watched", text));
        return std::nullopt;
    }
    if (seconds <= static_cast<long long>(std::time(nullptr))) {
        log::warning(fmt::format("SLURM_JOB_END_TIME {} is in the past; the end of the job is not watched", seconds));
        return std::nullopt;
    }
    return static_cast<double>(seconds);
}

}  // namespace sherd
