#pragma once
#include <string>

namespace sherd::comm {

/// Name and version of the MPI library that is loaded, such as "Open MPI v4.1.4"; "unknown" if it does not say. Does not start MPI.
std::string mpi_version();

}  // namespace sherd::comm
