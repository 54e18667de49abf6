#include "backend/cuda/check.hpp"

#include "backend/cuda/blas_check.hpp"

#include "sherd/backend/backend.hpp"
#include "sherd/runtime/error.hpp"

#include <string>
#include <string_view>

namespace sherd::cuda {

namespace {

std::string function_of(const char* call) {
    const std::string_view whole(call);
    return std::string(whole.substr(0, whole.find('(')));
}

/// What to do about errors that have a usual cause; else nothing.
const char* advice(cudaError_t code) noexcept {
    switch (code) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchFailure:
        case cudaErrorMisalignedAddress:
            return "; run again with CUDA_LAUNCH_BLOCKING=1 to learn which operation it was";
        case cudaErrorECCUncorrectable:
            return "; the GPU's memory is faulty: leave this node out and tell its operators";
        case cudaErrorInsufficientDriver:
            return "; the driver is older than the CUDA run time that this binary was built with";
        case cudaErrorNoKernelImageForDevice:
            return "; build with this GPU's architecture in CUDA_ARCHS";
        case cudaErrorDevicesUnavailable:
            return "; another process holds the GPU alone (compute mode 'exclusive process')";
        default:
            return "";
    }
}

}  // namespace

void check_cuda(cudaError_t code, const char* call, const char* file, int line) {
    if (code == cudaSuccess) return;
    (void)cudaGetLastError();  // an error that is reported here must not be reported again by the next launch
    const std::string reason = fmt::format("{} ({}){}", cudaGetErrorString(code), cudaGetErrorName(code), advice(code));
    const std::string failure = call_failure(function_of(call).c_str(), file, line, reason);
    if (code == cudaErrorMemoryAllocation) throw CallOutOfMemoryError(failure);
    throw DeviceError(failure);
}

cudaError_t unreported(cudaError_t code) noexcept {
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code;
}

const char* words_of(cublasStatus_t code) noexcept {
    switch (code) {
        case CUBLAS_STATUS_NOT_INITIALIZED:
            return "the library could not be initialized (CUBLAS_STATUS_NOT_INITIALIZED)";
        case CUBLAS_STATUS_ALLOC_FAILED:
            return "out of memory (CUBLAS_STATUS_ALLOC_FAILED)";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "invalid value (CUBLAS_STATUS_INVALID_VALUE)";
        case CUBLAS_STATUS_ARCH_MISMATCH:
            return "the GPU lacks what the product needs (CUBLAS_STATUS_ARCH_MISMATCH)";
        case CUBLAS_STATUS_EXECUTION_FAILED:
            return "the product failed on the GPU (CUBLAS_STATUS_EXECUTION_FAILED)";
        case CUBLAS_STATUS_INTERNAL_ERROR:
            return "internal error (CUBLAS_STATUS_INTERNAL_ERROR)";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "not supported (CUBLAS_STATUS_NOT_SUPPORTED)";
        default:
            return "unknown status";
    }
}

void check_cublas(cublasStatus_t code, const char* call, const char* file, int line) {
    if (code == CUBLAS_STATUS_SUCCESS) return;
    fail_cublas(code, function_of(call).c_str(), file, line, fmt::format("{}, status {}", words_of(code), static_cast<int>(code)));
}

void fail_cublas(cublasStatus_t code, const char* function, const char* file, int line, const std::string& reason) {
    const std::string failure = call_failure(function, file, line, reason);
    if (code == CUBLAS_STATUS_ALLOC_FAILED) throw CallOutOfMemoryError(failure);
    throw DeviceError(failure);
}

}  // namespace sherd::cuda
