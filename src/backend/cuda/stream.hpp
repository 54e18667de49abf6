#pragma once
/// Streams of a GPU. Host functions of a stream may fail: their error waits for synchronize(), and later host functions of the
/// stream are skipped meanwhile (enqueued kernels cannot be; what they compute is not used).
#include "backend/cuda/event.hpp"
#include "backend/cuda/staging.hpp"

#include "sherd/backend/backend.hpp"

#include <cuda_runtime.h>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace sherd::cuda {

class WaitWatchers;

/// Errors of host functions, shared with functions that are still enqueued.
class HostErrors {
  public:
    void set(std::exception_ptr error) noexcept;  ///< only the first stays
    bool pending() const noexcept;
    std::exception_ptr take() noexcept;

  private:
    mutable std::mutex mutex_;
    std::exception_ptr first_;
};

class CudaStream final : public Stream {
  public:
    /// first: work of this stream goes before that of others where both could run. scratch: device memory for operations that need some
    /// (workspace of products, partial sums), used in stream order. Throws DeviceError.
    CudaStream(std::string name, bool first, DeviceMemory scratch, Backend& backend, WaitWatchers& watchers);
    ~CudaStream() override;

    cudaStream_t get() const noexcept { return stream_; }
    const std::string& name() const noexcept { return name_; }
    const DeviceMemory& scratch() const noexcept { return scratch_; }
    Staging& staging() noexcept { return staging_; }

    /// What is being enqueued, for messages about errors that show later.
    void enqueues(const char* operation) noexcept { last_operation_ = operation; }
    const char* last_operation() const noexcept { return last_operation_; }

    /// Runs `task` in stream order on a thread of the driver.
    void host_function(std::function<void()> task);
    /// Waits until all is done, looking after collectives meanwhile; rethrows the first error of a host function.
    void synchronize();
    /// Waits until the stream has passed the last record of an event.
    void await(const CudaEvent& event);

  private:
    template <class Query>
    void look_after(Query query);
    void wait();

    std::string name_;
    WaitWatchers& watchers_;
    cudaStream_t stream_ = nullptr;
    const char* last_operation_ = "nothing";
    DeviceMemory scratch_;
    std::shared_ptr<HostErrors> errors_ = std::make_shared<HostErrors>();
    Staging staging_;
};

/// Somebody whose work on a stream may never end by itself: a collective whose other ranks are gone.
class WaitWatcher {
  public:
    virtual ~WaitWatcher() = default;
    /// Called now and then while the host waits for a stream. Throws DeviceError after it made the stream's work end.
    virtual void check() = 0;
    /// Makes the work end at once: an exception is under way, and nobody will wait for the other ranks.
    virtual void abandon() noexcept = 0;
};

/// All watchers of a device.
class WaitWatchers {
  public:
    void add(WaitWatcher& watcher);
    void remove(WaitWatcher& watcher) noexcept;
    bool empty() const noexcept { return watchers_.empty(); }
    void check() const;
    void abandon() const noexcept;

  private:
    std::vector<WaitWatcher*> watchers_;
};

}  // namespace sherd::cuda
