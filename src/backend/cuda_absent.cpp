// Stands in for src/backend/cuda in a build without CUDA.
#include "sherd/backend/devices.hpp"
#include "sherd/runtime/error.hpp"

namespace sherd {

namespace {
constexpr const char* how_to_get_it =
    "this binary was built without CUDA; build it where nvcc is found, or with make CUDA=1 CUDA_HOME=PLACE";
}

std::string cuda_build() {
    return std::string("none (") + how_to_get_it + ")";
}
bool built_with_cuda() noexcept {
    return false;
}
Gpus find_gpus() {
    return {{}, how_to_get_it};
}
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
    throw DeviceError("there is no GPU for rank {} (host {}): {}", process_rank(), host_name(), how_to_get_it);
}

struct GpuMonitor::Nvml {};
GpuMonitor::GpuMonitor(const std::string&) {}
GpuMonitor::~GpuMonitor() = default;
GpuHealth GpuMonitor::read() const {
    return {};
}

}  // namespace sherd
