#pragma once
/// Checked calls of cuBLASLt, apart from those of CUDA, which kernels use too: SHERD_CUBLAS(cublasLtCreate(...)).
#include <cublasLt.h>
#include <string>

namespace sherd::cuda {

void check_cublas(cublasStatus_t code, const char* call, const char* file, int line);
/// Throws CallOutOfMemoryError where that is the status, else DeviceError.
[[noreturn]] void fail_cublas(cublasStatus_t code, const char* function, const char* file, int line, const std::string& reason);

/// What a status of cuBLAS means, in words: "out of memory (CUBLAS_STATUS_ALLOC_FAILED)".
const char* words_of(cublasStatus_t code) noexcept;

}  // namespace sherd::cuda

#define SHERD_CUBLAS(call) ::sherd::cuda::check_cublas((call), #call, __FILE__, __LINE__)
