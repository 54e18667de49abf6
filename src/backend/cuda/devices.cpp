#include "sherd/backend/devices.hpp"

#include "backend/cuda/check.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/nvml.hpp"

#include "sherd/runtime/error.hpp"

#include <array>
#include <sstream>

#ifndef SHERD_CUDA_ARCHS
#error "the Makefile defines SHERD_CUDA_ARCHS, the architectures that kernels are compiled for"
#endif

namespace sherd {

namespace {

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    SHERD_CUDA(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

std::string version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// "CUDA 13.0 (580.65.06)"
std::string driver_text() {
    int version = 0;
    SHERD_CUDA(cudaDriverGetVersion(&version));
    const std::string nvml = nvml_driver_version();
    return fmt::format("CUDA {}{}", version_text(version), nvml.empty() ? "" : " (" + nvml + ")");
}

Gpu describe(int index, const std::string& driver) {
    cudaDeviceProp properties{};
    SHERD_CUDA(cudaGetDeviceProperties(&properties, index));
    std::array<char, 32> bus_id{};
    SHERD_CUDA(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index));
    Gpu gpu;
    gpu.index = index;
    gpu.name = properties.name;
    gpu.bus_id = bus_id.data();
    for (const char byte : properties.uuid.bytes) gpu.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    gpu.major = properties.major;
    gpu.minor = properties.minor;
    gpu.memory_bytes = properties.totalGlobalMem;
    // not from the properties: CUDA 13 took them out
    gpu.clock_mhz = attribute(cudaDevAttrClockRate, index) / 1000;
    gpu.memory_clock_mhz = attribute(cudaDevAttrMemoryClockRate, index) / 1000;
    gpu.ecc = properties.ECCEnabled != 0;
    gpu.driver = driver;
    return gpu;
}

/// What keeps a machine from having a GPU, in words; empty for errors that are worth failing for.
std::string why_no_gpu(cudaError_t code) {
    switch (code) {
        case cudaErrorNoDevice:
            return "the driver shows no GPU (is CUDA_VISIBLE_DEVICES set to nothing?)";
        case cudaErrorInsufficientDriver:
            return fmt::format("no driver is loaded, or it is older than CUDA {}", version_text(CUDART_VERSION));
        case cudaErrorSystemDriverMismatch:
        case cudaErrorCompatNotSupportedOnDevice:
            return fmt::format("the driver does not fit CUDA {} ({})", version_text(CUDART_VERSION), cudaGetErrorString(code));
        case cudaErrorStubLibrary:
            return "libcuda is the toolkit's stub, not a driver; take the stubs out of LD_LIBRARY_PATH";
        default:
            return "";
    }
}

std::string architectures_text() {
    std::istringstream list(SHERD_CUDA_ARCHS);
    std::string text;
    for (std::string one; list >> one;) text += (text.empty() ? "sm_" : ", sm_") + one;
    return text;
}

}  // namespace

std::string cuda_build() {
    const auto cublas = cublasLtGetVersion();
    return fmt::format("CUDA {} for {}; cuBLASLt {}.{}.{}; {}", version_text(CUDART_VERSION), architectures_text(), cublas / 10000,
                       cublas / 100 % 100, cublas % 100, cuda::cudnn_build());
}

bool built_with_cuda() noexcept {
    return true;
}

Gpus find_gpus() {
    Gpus found;
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    found.why_none = why_no_gpu(code);
    if (!found.why_none.empty()) {
        (void)cudaGetLastError();
        return found;
    }
    cuda::check_cuda(code, "cudaGetDeviceCount()", __FILE__, __LINE__);
    const std::string driver = driver_text();
    for (int i = 0; i < count; ++i) found.list.push_back(describe(i, driver));
    if (found.list.empty()) found.why_none = why_no_gpu(cudaErrorNoDevice);
    return found;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
    const Gpus gpus = find_gpus();
    if (options.index < 0 || options.index >= static_cast<int>(gpus.list.size()))
        throw DeviceError("there is no GPU {} for rank {} (host {}): {}", options.index, process_rank(), host_name(),
                          gpus.list.empty() ? gpus.why_none : fmt::format("{} are visible", gpus.list.size()));
    const Gpu& gpu = gpus.list[static_cast<std::size_t>(options.index)];
    if (!code_runs_on(SHERD_CUDA_ARCHS, gpu.major, gpu.minor))
        throw DeviceError(
            "GPU {} of rank {} (host {}) is {} with sm_{}{}, and this binary has code for {} only; build it with CUDA_ARCHS='{} {}{}'{}",
            gpu.index, process_rank(), host_name(), gpu.name, gpu.major, gpu.minor, architectures_text(), SHERD_CUDA_ARCHS, gpu.major,
            gpu.minor, 10 * gpu.major + gpu.minor < 75 ? " and a CUDA 12 toolkit, the last that knows it" : "");
    return std::make_unique<cuda::CudaBackend>(gpu, options);
}

}  // namespace sherd
