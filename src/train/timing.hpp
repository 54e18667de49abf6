#pragma once
/// Where the time went: seconds by phase, and their table over ranks at the end.
#include "sherd/comm/communicator.hpp"

#include <array>
#include <chrono>
#include <string>

namespace sherd {

enum class Phase { compute, communication, data, optimizer, checkpoint, evaluation };

class Timing {
  public:
    /// Adds the time from construction to destruction to a phase.
    class Scope {
      public:
        Scope(Timing& timing, Phase phase) : timing_(timing), phase_(phase), start_(std::chrono::steady_clock::now()) {}
        ~Scope() {
            timing_.seconds_[static_cast<std::size_t>(phase_)] +=
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        Timing& timing_;
        Phase phase_;
        std::chrono::steady_clock::time_point start_;
    };
    /// Collective: lines of a table with minimum, average and maximum over ranks, and the rest up to `total_seconds`.
    std::string table(Communicator& communicator, double total_seconds) const;

  private:
    std::array<double, 6> seconds_{};
};

}  // namespace sherd
