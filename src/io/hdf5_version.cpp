#include "sherd/io/hdf5_version.hpp"

#include <fmt/format.h>
#include <hdf5.h>

namespace sherd::io {

std::string hdf5_version() {
    unsigned major = 0, minor = 0, release = 0;
    return H5get_libversion(&major, &minor, &release) < 0 ? "unknown" : fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace sherd::io
