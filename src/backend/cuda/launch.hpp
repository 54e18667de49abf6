#pragma once
/// How kernels are launched, as far as host code of any compiler is concerned.
#include "sherd/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

namespace sherd::cuda {

/// Shape and place of a launch. file and line are those of the launch and stand in the message when it fails.
struct LaunchShape {
    dim3 grid{1, 1, 1}, block{1, 1, 1};
    std::size_t shared_bytes = 0;  ///< dynamic
    cudaStream_t stream = nullptr;
    const char* file = __builtin_FILE();
    int line = __builtin_LINE();
};

/// Throws DeviceError naming the kernel, its shape, file, line and rank, unless the result is cudaSuccess. What an operation that
/// was running did wrong shows at the next launch, too: the message then says so. `kernel` is a __PRETTY_FUNCTION__ that holds the name.
void check_launch(cudaError_t result, const char* kernel, const LaunchShape& shape, const char* call = "the launch of");
/// Throws DeviceError: the operation has no kernel for that type.
[[noreturn]] void no_kernel_for(DType type, const char* operation);

/// What decides which kernel runs on the current device.
struct DeviceLimits {
    int capability;       ///< of the code that it runs: 90 for sm_90
    int shared_bytes;     ///< that a block may have
    int shared_bytes_sm;  ///< of a multiprocessor, shared by its blocks; each block takes 1 KiB besides its own
    int multiprocessors = 1;
};
DeviceLimits device_limits();

/// Blocks that cover n elements, along the first axis of a grid. Throws DeviceError beyond the 2^31 - 1 that it may have.
unsigned blocks_for(std::int64_t n, std::int64_t per_block);
/// The same along the second or third axis, which ends at 65,535: for what never comes near that, or is refused with a reason.
unsigned few_blocks_for(std::int64_t n, std::int64_t per_block);

}  // namespace sherd::cuda
