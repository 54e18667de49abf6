#include "comm/nccl/family.hpp"

#include "comm/nccl/check.hpp"

#include "sherd/runtime/error.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

namespace sherd::detail {

NcclGroup::NcclGroup() {
    SHERD_NCCL(ncclGroupStart());
}
NcclGroup::~NcclGroup() {
    if (open_) (void)ncclGroupEnd();
}
void NcclGroup::end() {
    open_ = false;
    SHERD_NCCL(ncclGroupEnd());
}

namespace {
/// Unwinding waits for streams. Where NCCL's kernels run on although they were told to end, it would wait for ever and say nothing.
void end_process_unless_stopped(const std::stop_token& stop, double seconds, const std::string& why) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
    if (stop.stop_requested()) return;
    (void)std::fputs(fmt::format("error: {}; rank {} (host {}) could not end in order {:g} s after NCCL was aborted\n", why, process_rank(),
                                 host_name(), seconds)
                         .c_str(),
                     stderr);
    (void)std::fflush(stderr);
    std::_Exit(static_cast<int>(ExitCode::device));
}
}  // namespace

void NcclFamily::add(ncclComm_t communicator) {
    communicators_.push_back(communicator);
}
void NcclFamily::remove(ncclComm_t communicator) noexcept {
    std::erase(communicators_, communicator);
}

void NcclFamily::abort(const std::string& why) noexcept {
    if (std::exchange(aborted_, true) || communicators_.empty()) return;
    try {
        watchdog_ =
            std::jthread([seconds = seconds_to_end_, why](const std::stop_token& stop) { end_process_unless_stopped(stop, seconds, why); });
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no thread to be had: without a watchdog then
    }
    (void)ncclGroupStart();
    for (const ncclComm_t communicator : communicators_) (void)ncclCommAbort(communicator);
    (void)ncclGroupEnd();
    communicators_.clear();
}

}  // namespace sherd::detail
