#pragma once
/// Waiting for MPI without burning the core that computes: MPI's own waits spin. Each look also makes progress.
#include "sherd/comm/communicator.hpp"

#include <mpi.h>

#include <string>
#include <vector>

namespace sherd::detail {

/// Waits for an agreement of all ranks, within limits as PendingMessages does. Throws DeviceError.
void wait_for(MPI_Request& request, const WaitLimits& limits);

/// Messages that are under way between this rank and others.
class PendingMessages {
  public:
    /// Where MPI puts the request of the next message from or to `peer`.
    MPI_Request* add(int peer);
    /// Waits for all and forgets them. What takes longer than limits.hang_report_s is reported once, with the ranks that have not answered;
    /// longer than limits.timeout_s throws DeviceError. `what`: the collective that they are of.
    void wait(const WaitLimits& limits, const std::string& what);

  private:
    std::string missing() const;  ///< "rank 3", "ranks 1, 3"
    std::vector<MPI_Request> requests_;
    std::vector<int> peers_;
};

}  // namespace sherd::detail
