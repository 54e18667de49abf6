#pragma once
#include <cstddef>
#include <cuda_runtime.h>

namespace sherd::cuda {

struct LaunchShape {
    dim3 grid{1, 1, 1}, block{1, 1, 1};
    std::size_t shared_bytes = 0;  ///< dynamic
    cudaStream_t stream = nullptr;
};

}  // namespace sherd::cuda
