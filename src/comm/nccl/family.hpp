#pragma once
/// All communicators of NCCL that a rank has. They end by force together, never one by one: freeing one waits for the device, where a
/// collective of another may wait for ranks that are gone (github.com/NVIDIA/nccl/issues/1013).
#include <nccl.h>
#include <string>
#include <thread>
#include <vector>

namespace sherd::detail {

/// Calls of NCCL from here to end() are one; the group is closed whatever happens.
class NcclGroup {
  public:
    /// Throws DeviceError.
    NcclGroup();
    ~NcclGroup();
    NcclGroup(const NcclGroup&) = delete;
    NcclGroup& operator=(const NcclGroup&) = delete;
    /// Throws DeviceError.
    void end();

  private:
    bool open_ = true;
};

class NcclFamily {
  public:
    /// The process ends with exit code 5 where it still has this family so long after an abort: then not even aborting helped.
    explicit NcclFamily(double seconds_to_end = 60) : seconds_to_end_(seconds_to_end) {}
    NcclFamily(const NcclFamily&) = delete;
    NcclFamily& operator=(const NcclFamily&) = delete;
    ~NcclFamily() = default;

    void add(ncclComm_t communicator);
    void remove(ncclComm_t communicator) noexcept;
    bool aborted() const noexcept { return aborted_; }
    /// Ends all collectives under way, without their results; no communicator may be used any more. why: for the last words.
    void abort(const std::string& why) noexcept;

  private:
    double seconds_to_end_;
    bool aborted_ = false;
    std::vector<ncclComm_t> communicators_;
    std::jthread watchdog_;
};

}  // namespace sherd::detail
