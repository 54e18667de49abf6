#pragma once
/// Checked calls: SHERD_CUDA(cudaMalloc(...)) and SHERD_CUBLAS(cublasLtCreate(...)) throw DeviceError naming call, file, line, rank, host
/// and the library's own words.
#include <cublasLt.h>
#include <cuda_runtime.h>

namespace sherd::cuda {

void check_cuda(cudaError_t code, const char* call, const char* file, int line);
void check_cublas(cublasStatus_t code, const char* call, const char* file, int line);

/// For calls whose failure changes nothing (what ends something; questions that are answered "not yet"): takes the error from where the
/// next launch of a kernel would find it, and returns it.
cudaError_t unreported(cudaError_t code) noexcept;

/// What a status of cuBLAS means, in words: "out of memory (CUBLAS_STATUS_ALLOC_FAILED)".
const char* words_of(cublasStatus_t code) noexcept;

}  // namespace sherd::cuda

#define SHERD_CUDA(call) ::sherd::cuda::check_cuda((call), #call, __FILE__, __LINE__)
#define SHERD_CUBLAS(call) ::sherd::cuda::check_cublas((call), #call, __FILE__, __LINE__)
