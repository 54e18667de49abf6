#include "backend/cuda/stream.hpp"

#include "backend/cuda/check.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace sherd::cuda {

void HostErrors::set(std::exception_ptr error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(error);
}
bool HostErrors::pending() const noexcept {
    const std::lock_guard lock(mutex_);
    return first_ != nullptr;
}
std::exception_ptr HostErrors::take() noexcept {
    const std::lock_guard lock(mutex_);
    return std::exchange(first_, nullptr);
}

namespace {

struct HostFunction {
    std::function<void()> task;
    std::shared_ptr<HostErrors> errors;
};

void CUDART_CB run_host_function(void* data) {
    const std::unique_ptr<HostFunction> function(static_cast<HostFunction*>(data));
    if (function->errors->pending()) return;
    try {
        function->task();
    } catch (...) {
        function->errors->set(std::current_exception());
    }
}

cudaStream_t make_stream(bool first) {
    int lowest = 0, highest = 0;
    SHERD_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t stream = nullptr;
    // non-blocking: without it every use of the default stream, by whichever library, would order all streams
    SHERD_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, first ? highest : lowest));
    return stream;
}

}  // namespace

CudaStream::CudaStream(std::string name, bool first, DeviceMemory scratch, Backend& backend, WaitWatchers& watchers)
    : name_(std::move(name)), watchers_(watchers), scratch_(std::move(scratch)), staging_(backend, name_) {
    stream_ = make_stream(first);
}

CudaStream::~CudaStream() {
    if (std::uncaught_exceptions() > 0) {
        // the memory that queued functions write to may be gone with what the exception left: they are skipped
        errors_->set(std::make_exception_ptr(DeviceError("stream '{}' was left by an exception", name_)));
        watchers_.abandon();
    }
    try {
        wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): what made it throw also made the stream's work end
    }
    (void)unreported(cudaStreamSynchronize(stream_));
    (void)unreported(cudaStreamDestroy(stream_));
}

void CudaStream::host_function(std::function<void()> task) {
    auto function = std::make_unique<HostFunction>(HostFunction{std::move(task), errors_});
    SHERD_CUDA(cudaLaunchHostFunc(stream_, run_host_function, function.get()));
    (void)function.release();  // run_host_function owns it now
}

/// The driver waits best, but for a collective whose other ranks are gone it would wait without end. So, where there are collectives of
/// NCCL, this asks until the work is done and looks after them: at first without a pause, since most waits are short, then with pauses,
/// since the core may be needed.
template <class Query>
void CudaStream::look_after(Query query) {
    using namespace std::chrono_literals;
    if (watchers_.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    auto looked = start;
    while (query() == cudaErrorNotReady) {  // any other error is reported by the wait that follows
        const auto now = std::chrono::steady_clock::now();
        if (now - looked > 10ms) {
            watchers_.check();
            looked = now;
        }
        if (now - start > 200us) std::this_thread::sleep_for(now - start > 10ms ? 50us : 10us);
    }
}

void CudaStream::wait() {
    look_after([this] { return unreported(cudaStreamQuery(stream_)); });
    SHERD_CUDA(cudaStreamSynchronize(stream_));
}

void CudaStream::await(const CudaEvent& event) {
    look_after([&event] { return unreported(cudaEventQuery(event.get())); });
    SHERD_CUDA(cudaEventSynchronize(event.get()));
}

void CudaStream::synchronize() {
    try {
        wait();
    } catch (const DeviceError& error) {
        if (const auto first = errors_->take()) std::rethrow_exception(first);  // it came before and is likely the cause
        throw DeviceError("{} (stream '{}', last operation enqueued: {})", error.what(), name_, last_operation_);
    }
    if (const auto first = errors_->take()) std::rethrow_exception(first);
}

CudaEvent::CudaEvent() {
    SHERD_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
}
CudaEvent::~CudaEvent() {
    (void)unreported(cudaEventDestroy(event_));
}

void WaitWatchers::add(WaitWatcher& watcher) {
    watchers_.push_back(&watcher);
}
void WaitWatchers::remove(WaitWatcher& watcher) noexcept {
    std::erase(watchers_, &watcher);
}
void WaitWatchers::check() const {
    for (WaitWatcher* watcher : watchers_) watcher->check();
}
void WaitWatchers::abandon() const noexcept {
    for (WaitWatcher* watcher : watchers_) watcher->abandon();
}

}  // namespace sherd::cuda
