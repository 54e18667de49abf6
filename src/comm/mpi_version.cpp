#include "sherd/comm/mpi_version.hpp"

#include <mpi.h>

#include <array>

namespace sherd::comm {

std::string mpi_version() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
    int length = 0;
    if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
    const std::string whole(text.data(), static_cast<std::size_t>(length));
    return whole.substr(0, whole.find_first_of(",\n"));  // the rest is about the build
}

}  // namespace sherd::comm
