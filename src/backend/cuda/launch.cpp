#include "backend/cuda/launch.hpp"

#include "backend/cuda/attention.hpp"
#include "backend/cuda/check.hpp"

#include "sherd/backend/devices.hpp"
#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace sherd::cuda {

namespace {

/// "adamw_kernel<float>" out of "... [with auto Kernel = sherd::cuda::{anonymous}::adamw_kernel<float>; ...]".
std::string kernel_name(std::string_view pretty) {
    const std::string_view key = "Kernel = ";
    const std::size_t at = pretty.find(key);
    std::string name(at == std::string_view::npos ? pretty : pretty.substr(at + key.size()));
    name.resize(std::min(name.size(), name.find_first_of(";]")));
    for (const std::string_view scope : {"sherd::cuda::", "{anonymous}::", "(anonymous namespace)::", "<unnamed>::"}) {
        for (std::size_t i = name.find(scope); i != std::string::npos; i = name.find(scope)) name.erase(i, scope.size());
    }
    return name;
}

unsigned blocks_up_to(std::int64_t most, std::int64_t n, std::int64_t per_block) {
    const std::int64_t blocks = (n + per_block - 1) / per_block;
    if (blocks > most) {
        throw DeviceError("an operation on {} rows or elements is too large for one launch, which takes {} at most: use smaller batches", n,
                          most * per_block);
    }
    return static_cast<unsigned>(blocks);
}

/// Errors of work that was running, which whatever call comes next reports.
bool is_asynchronous(cudaError_t code) {
    switch (code) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
        case cudaErrorMisalignedAddress:
        case cudaErrorIllegalInstruction:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorHardwareStackError:
        case cudaErrorAssert:
        case cudaErrorECCUncorrectable:
            return true;
        default:
            return false;
    }
}

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    SHERD_CUDA(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

}  // namespace

void check_launch(cudaError_t result, const char* kernel, const LaunchShape& shape, const char* call) {
    if (result == cudaSuccess) return;
    const char* const doubt = is_asynchronous(result) ? "an operation before or at " : "";
    const std::string all =
        fmt::format("{}{} {}, {} x {} x {} blocks of {} threads with {} bytes of shared memory,", doubt, call, kernel_name(kernel),
                    shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x * shape.block.y * shape.block.z, shape.shared_bytes);
    check_cuda(result, all.c_str(), shape.file, shape.line);
}

void no_kernel_for(DType type, const char* operation) {
    throw DeviceError("{}: the GPU has no kernel for {}; fp32, bf16 or fp16 expected", operation, name_of(type));
}

DeviceLimits device_limits() {
    int device = 0;
    SHERD_CUDA(cudaGetDevice(&device));
    const int major = attribute(cudaDevAttrComputeCapabilityMajor, device), minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
    // kernels are chosen by the code that runs, which on a newer device may be PTX of an older architecture; that before sm_80 has no
    // tiles of more than the 64 KiB that those devices have
    const int code = code_for(SHERD_CUDA_ARCHS, major, minor), capability = code > 0 ? code : 10 * major + minor;
    const int shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return {capability, capability < 80 ? std::min(shared, 64 << 10) : shared,
            attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device), attribute(cudaDevAttrMultiProcessorCount, device)};
}

void check_attention(std::int64_t rows, const AttentionShape& shape) {
    if (shape.head_dim % 2 != 0 || shape.head_dim > 256) {
        throw DeviceError(
            "attention on the GPU takes heads of an even size up to 256, not {}: such a model trains on CPUs (device.kind = cpu)",
            shape.head_dim);
    }
    if (rows > 0x3fffffff) throw DeviceError("attention on the GPU takes up to 2^30 - 1 rows in a micro-batch, not {}", rows);
}

unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
    return blocks_up_to(0x7fffffff, n, per_block);
}

unsigned few_blocks_for(std::int64_t n, std::int64_t per_block) {
    return blocks_up_to(65535, n, per_block);
}

}  // namespace sherd::cuda
