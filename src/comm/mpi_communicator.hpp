#pragma once
/// Communicator over MPI point-to-point messages on host memory.
#include "sherd/comm/communicator.hpp"

#include <mpi.h>

#include <memory>
#include <vector>

namespace sherd::detail {

/// Collective over `parent`. backend may be nullptr: then only host collectives are allowed. nodes: by rank of parent.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, Backend* backend, std::vector<int> nodes,
                                                    const WaitLimits& limits = {});

}  // namespace sherd::detail
