#include "comm/mpi_wait.hpp"

#include "comm/mpi_check.hpp"

#include <chrono>
#include <thread>

namespace sherd::detail {

namespace {
void wait_for(MPI_Request* requests, int count) {
    using namespace std::chrono_literals;
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
        SHERD_MPI(MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE));
        if (done != 0) return;
        const auto waited = std::chrono::steady_clock::now() - start;
        if (waited < 20us) continue;
        if (waited < 200us)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(waited < 5ms ? 20us : 100us);
    }
}
}  // namespace

void wait_for(std::vector<MPI_Request>& requests) {
    if (!requests.empty()) wait_for(requests.data(), static_cast<int>(requests.size()));
    requests.clear();
}

void wait_for(MPI_Request& request) {
    wait_for(&request, 1);
}

}  // namespace sherd::detail
