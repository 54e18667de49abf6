#pragma once
/// Movements of device memory through the host: down to pinned memory in stream order, by messages to other ranks, and up again. The way
/// for GPUs without NCCL, and for several ranks on one GPU. Sums are taken on the host in rank order: the bits are those of ranks on CPUs.
#include "comm/wire.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/comm/communicator.hpp"

#include <cstdint>
#include <vector>

namespace sherd::detail {

/// Messages between the ranks of a communicator, from and to host memory. Used by one thread at a time.
class Messages {
  public:
    virtual ~Messages() = default;
    virtual void receive(int peer, void* to, std::int64_t bytes) = 0;
    virtual void send(int peer, const void* from, std::int64_t bytes) = 0;
    /// Waits for all since the last call; tag: the collective that they are of, for messages. Throws DeviceError.
    virtual void finish(CollectiveTag tag) = 0;
};

class StagedMovement {
  public:
    /// Pins all of its memory now, whatever will be moved. Throws DeviceError.
    StagedMovement(Backend& backend, Messages& messages, int rank, int size);

    void enqueue(Stream& stream, const Redistribution& movement, CollectiveTag tag);
    std::uint64_t bytes() const noexcept;

  private:
    using Movement = Redistribution;
    void copy(Stream& stream, const Movement& m, CollectiveTag tag);
    void copy_own(Stream& stream, const Movement& m);
    void copy_round(Stream& stream, const Movement& m, CollectiveTag tag, std::int64_t at, std::int64_t length);
    void sum(Stream& stream, const Movement& m, CollectiveTag tag);
    void sum_round(Stream& stream, const Movement& m, CollectiveTag tag, std::int64_t at, std::int64_t length);
    void exchange_addends(const Movement& m, CollectiveTag tag, std::int64_t at, std::int64_t length);
    void add_up_window(const Movement& m, Interval mine);

    unsigned char* outgoing(int rank) const noexcept { return outgoing_.as<unsigned char>() + static_cast<std::int64_t>(rank) * slot_; }
    unsigned char* incoming(int rank) const noexcept { return incoming_.as<unsigned char>() + static_cast<std::int64_t>(rank) * slot_; }
    static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }

    Backend& backend_;
    Messages& messages_;
    int rank_, size_;
    std::int64_t slot_;  ///< bytes to or from one rank in one round
    HostMemory outgoing_, incoming_, result_;
    std::vector<std::uint16_t> encoded_;
    std::vector<Addend> addends_;
};

}  // namespace sherd::detail
