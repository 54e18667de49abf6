#include "launch.hpp"

#include "attention.hpp"

#include "sherd/runtime/error.hpp"

#include <string>
#include <string_view>

namespace sherd::cuda {

namespace {

std::string reason_of(cudaError_t result) {
    return std::string(cudaGetErrorName(result)) + ": " + cudaGetErrorString(result);
}

/// "adamw_kernel<float>" out of "... [with auto Kernel = {anonymous}::adamw_kernel<float>; ...]".
std::string kernel_name(std::string_view pretty) {
    const std::string_view key = "Kernel = ";
    const std::size_t at = pretty.find(key);
    if (at == std::string_view::npos) return std::string(pretty);
    pretty.remove_prefix(at + key.size());
    return std::string(pretty.substr(0, pretty.find_first_of(";]")));
}

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check_call(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

}  // namespace

void check_call(cudaError_t result, const char* call, const char* file, int line) {
    if (result != cudaSuccess) throw DeviceError(call_failure(call, file, line, reason_of(result)));
}

void check_launch(cudaError_t result, const char* kernel, const LaunchShape& shape) {
    if (result == cudaSuccess) return;
    const std::string size = std::to_string(shape.grid.x) + " x " + std::to_string(shape.grid.y) + " x " + std::to_string(shape.grid.z) +
                             " blocks of " + std::to_string(shape.block.x * shape.block.y) + " threads with " +
                             std::to_string(shape.shared_bytes) + " bytes of shared memory";
    const std::string call = "the launch of " + kernel_name(kernel) + " (" + size + ")";
    throw DeviceError(call_failure(call.c_str(), shape.file, shape.line, reason_of(result)));
}

void no_kernel_for(DType type, const char* operation) {
    throw DeviceError(std::string(operation) + ": the GPU has no kernel for " + std::string(name_of(type)) + "; fp32, bf16 or fp16 expected");
}

DeviceLimits device_limits() {
    int device = 0;
    check_call(cudaGetDevice(&device), "cudaGetDevice");
    const int major = attribute(cudaDevAttrComputeCapabilityMajor, device), minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
    return {10 * major + minor, attribute(cudaDevAttrMultiProcessorCount, device),
            attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device), attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)};
}

void check_attention(std::int64_t rows, const AttentionShape& shape) {
    if (shape.head_dim % 2 != 0 || shape.head_dim > 256) {
        throw DeviceError("attention on the GPU takes heads of an even size up to 256, not {}: such a model trains on CPUs (device.kind = cpu)",
                          shape.head_dim);
    }
    if (rows > 0x3fffffff) throw DeviceError("attention on the GPU takes up to 2^30 - 1 rows in a micro-batch, not {}", rows);
}

unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
    const std::int64_t blocks = (n + per_block - 1) / per_block;
    if (blocks > 0x7fffffff) throw DeviceError("an operation on " + std::to_string(n) + " elements is too large for one launch");
    return static_cast<unsigned>(blocks);
}

}  // namespace sherd::cuda
