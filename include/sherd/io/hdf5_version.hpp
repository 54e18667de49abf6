#pragma once
#include <string>

namespace sherd::io {

/// Version of the HDF5 library that is loaded, such as "1.10.8"; "unknown" if it does not say.
std::string hdf5_version();

}  // namespace sherd::io
