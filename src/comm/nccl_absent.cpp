// Stands in for src/comm/nccl in a build without NCCL.
#include "sherd/comm/nccl.hpp"

namespace sherd {

namespace {
constexpr const char* how_to_get_it = "this binary was built without NCCL; build it with CUDA and NCCL, whose place NCCL_HOME= may give";
}

std::string nccl_build() {
    return std::string("none (") + how_to_get_it + ")";
}
bool built_with_nccl() noexcept {
    return false;
}
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator>, Backend&, const std::vector<int>&, const NcclOptions&) {
    throw DeviceError("communication.backend = nccl: {}; communication.backend = mpi works without", how_to_get_it);
}

}  // namespace sherd
