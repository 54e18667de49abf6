#pragma once
/// Streams and events of the CPU: a queue with one worker thread each, and positions in such queues.
#include "sherd/backend/backend.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace sherd::cpu {

/// How many operations of a stream are done. It outlives its stream, because events may.
class Progress {
  public:
    void finish_one();
    /// Blocks until `count` operations are done.
    void wait_for(std::uint64_t count);

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t done_ = 0;
};

class CpuStream final : public Stream {
  public:
    using Operation = std::function<void()>;

    /// threads: of the OpenMP team that operations of this stream get.
    CpuStream(const std::string& name, int threads, StreamOrder order);
    ~CpuStream() override;

    /// From any host thread.
    void enqueue(Operation operation);
    /// Until all operations enqueued so far are done; rethrows the first error since the last call.
    void synchronize();

    struct Position {
        std::shared_ptr<Progress> progress;
        std::uint64_t count = 0;
    };
    /// Behind all operations enqueued so far.
    Position position();

  private:
    void work();
    void run(const Operation& operation) noexcept;
    void delay();

    const int threads_;
    const StreamOrder order_;
    std::uint64_t random_;
    const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();

    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Operation> queue_;
    std::uint64_t enqueued_ = 0;
    bool closing_ = false;
    std::exception_ptr error_;  ///< of the first failed operation; later ones are skipped until synchronize() takes it

    std::thread worker_;  ///< last: it uses all of the above
};

class CpuEvent final : public Event {
  public:
    void record(CpuStream& stream);
    CpuStream::Position position() const;

  private:
    mutable std::mutex mutex_;
    CpuStream::Position position_;  ///< without progress: never recorded
};

}  // namespace sherd::cpu
