#include "comm/nccl/progress.hpp"

#include "backend/cuda/check.hpp"

#include "sherd/runtime/error.hpp"

namespace sherd::detail {

namespace {
bool passed(const cuda::CudaEvent& event) {
    return cuda::unreported(cudaEventQuery(event.get())) == cudaSuccess;
}
}  // namespace

std::unique_ptr<cuda::CudaEvent> NcclProgress::take_event() {
    if (spare_.empty()) return std::make_unique<cuda::CudaEvent>();
    auto event = std::move(spare_.back());
    spare_.pop_back();
    return event;
}

/// In the order of the stream, so that looking at the oldest is enough.
void NcclProgress::forget_finished() {
    while (!entries_.empty() && entries_.front().end != nullptr && passed(*entries_.front().end)) {
        spare_.push_back(std::move(entries_.front().start));
        spare_.push_back(std::move(entries_.front().end));
        entries_.pop_front();
    }
}

void NcclProgress::before(cudaStream_t stream, CollectiveTag tag) {
    forget_finished();
    entries_.push_back({take_event(), nullptr, tag, std::nullopt});
    SHERD_CUDA(cudaEventRecord(entries_.back().start->get(), stream));
}

void NcclProgress::after(cudaStream_t stream) {
    entries_.back().end = take_event();
    SHERD_CUDA(cudaEventRecord(entries_.back().end->get(), stream));
}

std::optional<NcclProgress::Running> NcclProgress::oldest() {
    forget_finished();
    if (entries_.empty()) return std::nullopt;
    Entry& first = entries_.front();
    if (!first.seen_running) {
        if (!passed(*first.start)) return std::nullopt;
        first.seen_running = Clock::now();
    }
    return Running{first.tag, std::chrono::duration<double>(Clock::now() - *first.seen_running).count()};
}

}  // namespace sherd::detail
