#pragma once
/// A communicator of NCCL that never blocks the host: every call returns at once, and what is under way is waited for with a deadline.
#include <chrono>
#include <nccl.h>
#include <string>

namespace sherd::detail {

class NcclHandle {
  public:
    /// Begins a communicator over `size` ranks that got the same id. Throws DeviceError.
    NcclHandle(const ncclUniqueId& id, int rank, int size, double timeout_s);
    /// Ends the communicator in order, or at once where an exception is under way.
    ~NcclHandle();
    NcclHandle(const NcclHandle&) = delete;
    NcclHandle& operator=(const NcclHandle&) = delete;

    /// Waits up to `seconds` until all ranks have begun; before anything else, again and again until it is true. Throws DeviceError: NCCL
    /// failed, or the deadline passed.
    bool start(double seconds);
    /// Throws DeviceError after abort().
    ncclComm_t get() const;
    /// Waits until what was called is on its stream. Throws DeviceError: NCCL failed, or the deadline passed; both abort.
    void settle(const std::string& what);
    /// Aborts and throws where NCCL has failed behind the host's back.
    void check(const std::string& what);
    /// Ends all collectives under way, without their results.
    void abort() noexcept;
    bool aborted() const noexcept { return communicator_ == nullptr; }

  private:
    using Clock = std::chrono::steady_clock;
    /// Whether what was called last is done. Aborts and throws where NCCL has failed.
    bool done(const std::string& what);
    [[noreturn]] void fail(ncclResult_t code, const std::string& what);
    /// Aborts and throws where it has taken longer than the deadline.
    void check_deadline(Clock::time_point start, const std::string& what);

    ncclComm_t communicator_ = nullptr;
    double timeout_s_;
    int size_;
    Clock::time_point made_ = Clock::now();
};

}  // namespace sherd::detail
