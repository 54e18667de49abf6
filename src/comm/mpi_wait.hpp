#pragma once
/// Waiting for MPI without burning the core that computes: MPI's own waits spin. Each look also makes progress.
#include <mpi.h>

#include <vector>

namespace sherd::detail {

/// Waits for all and clears the list. Throws DeviceError.
void wait_for(std::vector<MPI_Request>& requests);
void wait_for(MPI_Request& request);

}  // namespace sherd::detail
