#pragma once
/// From the type that a tensor carries to the C++ type of its elements on a device.
#include "launch.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace sherd::cuda {

/// Calls f.operator()<T>() with the device's type of a compute type; `operation` is for the message where there is none.
template <class F>
void with_type(DType type, const char* operation, const F& f) {
    switch (type) {
        case DType::f32:
            return f.template operator()<float>();
        case DType::bf16:
            return f.template operator()<__nv_bfloat16>();
        case DType::f16:
            return f.template operator()<__half>();
        default:
            no_kernel_for(type, operation);
    }
}

}  // namespace sherd::cuda
