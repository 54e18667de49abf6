#pragma once
/// Ranks that are threads of one process: host agreements and messages between them, without MPI.
#include "comm/staged_movement.hpp"

#include "sherd/comm/communicator.hpp"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sherd::tests {

/// What the ranks of one communicator share.
class ThreadHub {
  public:
    explicit ThreadHub(int size) : size_(size), texts_(static_cast<std::size_t>(size)) {}
    int size() const noexcept { return size_; }

    std::vector<std::string> exchange(int rank, std::string_view mine) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return leaving_ == 0; });  // the exchange before is read by all
        texts_[static_cast<std::size_t>(rank)] = std::string(mine);
        if (++arrived_ == size_) {
            arrived_ = 0;
            leaving_ = size_;
            ++round_;
            changed_.notify_all();
        } else {
            const auto mine_round = round_;
            changed_.wait(lock, [&] { return round_ != mine_round; });
        }
        auto all = texts_;
        if (--leaving_ == 0) changed_.notify_all();
        return all;
    }

    /// The hub of the ranks with that color; made by whoever asks first.
    std::shared_ptr<ThreadHub> part(std::uint64_t number, int color, int size) {
        const std::lock_guard lock(mutex_);
        auto& hub = parts_[{number, color}];
        if (!hub) hub = std::make_shared<ThreadHub>(size);
        return hub;
    }

    void send(int from, int to, std::string bytes) {
        const std::lock_guard lock(mutex_);
        mail_[{from, to}].push_back(std::move(bytes));
        changed_.notify_all();
    }
    std::string receive(int from, int to) {
        std::unique_lock lock(mutex_);
        auto& box = mail_[{from, to}];
        changed_.wait(lock, [&] { return !box.empty(); });
        std::string bytes = std::move(box.front());
        box.pop_front();
        return bytes;
    }

  private:
    const int size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::string> texts_;
    int arrived_ = 0, leaving_ = 0;
    std::uint64_t round_ = 0;
    std::map<std::pair<std::uint64_t, int>, std::shared_ptr<ThreadHub>> parts_;
    std::map<std::pair<int, int>, std::deque<std::string>> mail_;
};

class ThreadMessages final : public detail::Messages {
  public:
    ThreadMessages(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
    void receive(int peer, void* to, std::int64_t bytes) override { wanted_.push_back({peer, to, bytes}); }
    void send(int peer, const void* from, std::int64_t bytes) override {
        hub_->send(rank_, peer, std::string(static_cast<const char*>(from), static_cast<std::size_t>(bytes)));
    }
    void finish(CollectiveTag) override {
        for (const Wanted& w : wanted_) {
            const std::string bytes = hub_->receive(w.peer, rank_);
            if (static_cast<std::int64_t>(bytes.size()) != w.bytes)
                throw DeviceError("a message of {} bytes where {} were expected", bytes.size(), w.bytes);
            std::memcpy(w.to, bytes.data(), bytes.size());
        }
        wanted_.clear();
    }

  private:
    struct Wanted {
        int peer;
        void* to;
        std::int64_t bytes;
    };
    std::shared_ptr<ThreadHub> hub_;
    int rank_;
    std::vector<Wanted> wanted_;
};

/// Agreements; with a backend also movements, staged through the host.
class ThreadCommunicator final : public Communicator {
  public:
    ThreadCommunicator(std::shared_ptr<ThreadHub> hub, int rank, Backend* backend = nullptr)
        : hub_(std::move(hub)), rank_(rank), backend_(backend), messages_(hub_, rank) {
        if (backend_ != nullptr) staged_ = std::make_unique<detail::StagedMovement>(*backend_, messages_, rank, hub_->size());
    }
    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return hub_->size(); }
    void redistribute(Stream& stream, const Redistribution& movement, CollectiveTag tag) override {
        staged_->enqueue(stream, movement, tag);
    }
    std::vector<std::string> exchange(std::string_view mine) override { return hub_->exchange(rank_, mine); }
    std::unique_ptr<Communicator> split(int color) override {
        const auto colors = exchange(std::to_string(color));
        int rank = 0, size = 0;
        for (int r = 0; r < hub_->size(); ++r) {
            if (std::stoi(colors[static_cast<std::size_t>(r)]) != color) continue;
            if (r < rank_) ++rank;
            ++size;
        }
        return std::make_unique<ThreadCommunicator>(hub_->part(splits_++, color, size), rank, backend_);
    }
    std::uint64_t staging_bytes() const noexcept override { return staged_ ? staged_->bytes() : 0; }
    Traffic traffic() const noexcept override { return {}; }

  private:
    std::shared_ptr<ThreadHub> hub_;
    int rank_;
    Backend* backend_;
    std::uint64_t splits_ = 0;
    ThreadMessages messages_;
    std::unique_ptr<detail::StagedMovement> staged_;
};

/// Runs `body` once a rank, each in a thread of its own; the first exception of any comes out.
inline void as_ranks(int size, const std::function<void(int rank, const std::shared_ptr<ThreadHub>&)>& body) {
    const auto hub = std::make_shared<ThreadHub>(size);
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            try {
                body(rank, hub);
            } catch (...) {
                errors[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace sherd::tests
