#include "version.hpp"

#include "sherd/backend/devices.hpp"
#include "sherd/comm/mpi_version.hpp"
#include "sherd/comm/nccl.hpp"
#include "sherd/io/hdf5_version.hpp"

#include <boost/version.hpp>
#include <fmt/format.h>

namespace sherd {

std::string version_text() {
#ifdef __clang__
    constexpr const char* compiler = "clang";
#else
    constexpr const char* compiler = "gcc";
#endif
    return fmt::format("sherd {}\ncompiler {} {}\nMPI {}\nHDF5 {}\nBoost {}.{}.{}\nfmt {}.{}.{}\nGPU {}\nNCCL {}", SHERD_VERSION, compiler,
                       __VERSION__, comm::mpi_version(), io::hdf5_version(), BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                       BOOST_VERSION % 100, FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100, cuda_build(), nccl_build());
}

}  // namespace sherd
