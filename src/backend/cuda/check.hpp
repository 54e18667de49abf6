#pragma once
/// Checked calls: SHERD_CUDA(cudaMalloc(...)) throws DeviceError naming call, file, line, rank, host and the library's own words;
/// CallOutOfMemoryError where those are that memory has ended.
#include <cuda_runtime.h>

namespace sherd::cuda {

void check_cuda(cudaError_t code, const char* call, const char* file, int line);

/// For calls whose failure changes nothing (what ends something; questions that are answered "not yet"): takes the error from where the
/// next launch of a kernel would find it, and returns it.
cudaError_t unreported(cudaError_t code) noexcept;

}  // namespace sherd::cuda

#define SHERD_CUDA(call) ::sherd::cuda::check_cuda((call), #call, __FILE__, __LINE__)
