#include "backend/cpu/stream.hpp"

#include "backend/cpu/machine.hpp"

#include "sherd/runtime/error.hpp"

#include <chrono>
#include <omp.h>
#include <system_error>
#include <utility>

namespace sherd::cpu {

void Progress::finish_one() {
    {
        const std::lock_guard lock(mutex_);
        ++done_;
    }
    changed_.notify_all();
}

void Progress::wait_for(std::uint64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= count; });
}

CpuStream::CpuStream(const std::string& name, int threads, StreamOrder order)
    : threads_(threads), order_(order), random_(std::hash<std::string>{}(name) | 1u) {
    try {
        worker_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
        throw DeviceError("cannot start the thread of stream '{}' on {}: {}; is the number of processes limited (ulimit -u)?", name,
                          host_name(), error.what());
    }
}

CpuStream::~CpuStream() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    arrived_.notify_one();
    worker_.join();
}

void CpuStream::enqueue(Operation operation) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(operation));
        ++enqueued_;
    }
    arrived_.notify_one();
}

CpuStream::Position CpuStream::position() {
    const std::lock_guard lock(mutex_);
    return {progress_, enqueued_};
}

void CpuStream::synchronize() {
    progress_->wait_for(position().count);
    std::exception_ptr error;
    {
        const std::lock_guard lock(mutex_);
        error = std::exchange(error_, nullptr);
    }
    if (error) std::rethrow_exception(error);
}

void CpuStream::work() {
    omp_set_num_threads(threads_);  // holds for this thread alone
    flush_denormals();
#pragma omp parallel
    flush_denormals();
    for (;;) {
        Operation operation;
        bool skip = false;
        {
            std::unique_lock lock(mutex_);
            arrived_.wait(lock, [&] { return closing_ || !queue_.empty(); });
            if (queue_.empty()) return;
            operation = std::move(queue_.front());
            queue_.pop_front();
            skip = error_ != nullptr;
        }
        if (!skip) run(operation);
        operation = nullptr;  // what it holds is released before anyone sees it done
        progress_->finish_one();
    }
}

void CpuStream::run(const Operation& operation) noexcept {
    if (order_ == StreamOrder::delayed) delay();
    try {
        operation();
    } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
    }
}

void CpuStream::delay() {
    random_ ^= random_ << 13;  // xorshift64 (Marsaglia 2003)
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    std::this_thread::sleep_for(std::chrono::microseconds(random_ % 201));
}

void CpuEvent::record(CpuStream& stream) {
    auto position = stream.position();
    const std::lock_guard lock(mutex_);
    position_ = std::move(position);
}

CpuStream::Position CpuEvent::position() const {
    const std::lock_guard lock(mutex_);
    return position_;
}

}  // namespace sherd::cpu
