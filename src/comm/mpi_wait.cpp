#include "comm/mpi_wait.hpp"

#include "comm/mpi_check.hpp"

#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <thread>

namespace sherd::detail {

namespace {
/// look: called now and then with the seconds waited. longest_pause: MPI moves most messages on only when it is asked, a few pieces at a
/// time.
void wait_for(MPI_Request* requests, int count, std::chrono::nanoseconds longest_pause, const std::function<void(double)>& look) {
    using namespace std::chrono_literals;
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
        SHERD_MPI(MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE));
        if (done != 0) return;
        const auto waited = std::chrono::steady_clock::now() - start;
        if (waited < 20us) continue;
        // mostly a thread of compute wants this core: the longer nothing came, the less often it is disturbed
        std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(waited / 16, 20us, longest_pause));
        look(std::chrono::duration<double>(waited).count());
    }
}
}  // namespace

namespace {
/// Reports a wait that is long, once, and ends one that is too long.
class Watch {
  public:
    Watch(const WaitLimits& limits, std::function<std::string()> for_whom) : limits_(limits), for_whom_(std::move(for_whom)) {}
    void operator()(double waited) {
        if (waited > limits_.timeout_s)
            throw DeviceError(
                "rank {} (host {}) has waited {:.0f} s for {}, longer than communication.timeout_s; look whether that process and "
                "its node are alive",
                process_rank(), host_name(), waited, for_whom_());
        if (waited <= limits_.hang_report_s || reported_) return;
        reported_ = true;
        log::warning_of_any_rank(
            fmt::format("rank {} (host {}) has waited {:.0f} s for {}; the run ends after {:g} s (communication.timeout_s)", process_rank(),
                        host_name(), waited, for_whom_(), limits_.timeout_s));
    }

  private:
    const WaitLimits& limits_;
    std::function<std::string()> for_whom_;
    bool reported_ = false;
};
}  // namespace

void wait_for(MPI_Request& request, const WaitLimits& limits) {
    wait_for(&request, 1, std::chrono::microseconds(500), Watch(limits, [] { return std::string("another rank in an agreement of all"); }));
}

MPI_Request* PendingMessages::add(int peer) {
    peers_.push_back(peer);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
}

std::string PendingMessages::missing() const {
    std::set<int> ranks;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
        int done = 0;
        SHERD_MPI(MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE));
        if (done == 0) ranks.insert(peers_[i]);
    }
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (const int r : ranks) text += fmt::format("{} {}", r == *ranks.begin() ? "" : ",", r);
    return text;
}

void PendingMessages::wait(const WaitLimits& limits, const std::string& what) {
    if (requests_.empty()) return;
    wait_for(requests_.data(), static_cast<int>(requests_.size()), std::chrono::microseconds(100),
             Watch(limits, [&] { return missing() + " in " + what; }));
    requests_.clear();
    peers_.clear();
}

}  // namespace sherd::detail
