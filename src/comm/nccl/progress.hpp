#pragma once
/// Which collectives are on their stream, and for how long the oldest has been running: a hang is a collective that started and does not
/// end. One that waits for the compute stream has not started, however long that takes.
#include "backend/cuda/event.hpp"

#include "sherd/comm/communicator.hpp"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd::detail {

class NcclProgress {
  public:
    /// Around the calls of a collective.
    void before(cudaStream_t stream, CollectiveTag tag);
    void after(cudaStream_t stream);

    struct Running {
        CollectiveTag tag;
        double seconds;  ///< since it was first seen running
    };
    /// The oldest collective that has started and not ended.
    std::optional<Running> oldest();

  private:
    using Clock = std::chrono::steady_clock;
    struct Entry {
        std::unique_ptr<cuda::CudaEvent> start, end;
        CollectiveTag tag;
        std::optional<Clock::time_point> seen_running;
    };
    std::unique_ptr<cuda::CudaEvent> take_event();
    void forget_finished();

    std::deque<Entry> entries_;
    std::vector<std::unique_ptr<cuda::CudaEvent>> spare_;
};

}  // namespace sherd::detail
