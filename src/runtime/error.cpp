#include "sherd/runtime/error.hpp"

#include <atomic>
#include <string_view>
#include <unistd.h>

namespace sherd {

namespace {
std::atomic<int> rank_of_process{0};
const auto program_began = std::chrono::steady_clock::now();
}  // namespace

int process_rank() noexcept {
    return rank_of_process.load(std::memory_order_relaxed);
}
void set_process_rank(int rank) noexcept {
    rank_of_process.store(rank, std::memory_order_relaxed);
}

std::chrono::steady_clock::time_point process_start() noexcept {
    return program_began;
}

const std::string& host_name() {
    static const std::string name = [] {
        char buffer[256] = {};
        return ::gethostname(buffer, sizeof buffer - 1) == 0 ? std::string(buffer) : std::string("unknown-host");
    }();
    return name;
}

std::string call_failure(const char* call, const char* file, int line, const std::string& reason) {
    std::string_view place(file);
    if (const auto at = place.rfind("src/"); at != std::string_view::npos) place.remove_prefix(at + 4);
    return fmt::format("{} failed at {}:{} on rank {} (host {}): {}", call, place, line, process_rank(), host_name(), reason);
}

}  // namespace sherd
