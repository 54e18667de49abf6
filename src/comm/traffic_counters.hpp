#pragma once
/// Counters of sent bytes that all communicators split from one share.
#include "sherd/comm/communicator.hpp"

#include <array>
#include <atomic>

namespace sherd::detail {

class TrafficCounters {
  public:
    void add(CommunicationPhase phase, std::uint64_t bytes, std::uint64_t between_nodes) noexcept {
        bytes_[static_cast<std::size_t>(phase)] += bytes;
        between_nodes_[static_cast<std::size_t>(phase)] += between_nodes;
    }
    Traffic read() const noexcept {
        Traffic t;
        for (std::size_t i = 0; i < communication_phases; ++i) {
            t.bytes[i] = bytes_[i];
            t.between_nodes[i] = between_nodes_[i];
        }
        return t;
    }

  private:
    std::array<std::atomic<std::uint64_t>, communication_phases> bytes_{}, between_nodes_{};
};

}  // namespace sherd::detail
