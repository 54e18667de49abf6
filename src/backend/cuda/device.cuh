#pragma once
/// What kernels include: CUDA under nvcc, the emulation under any other compiler. The only place that tells them apart.
#include "launch.hpp"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <mma.h>
#else
#include "harness/copy_async.hpp"
#include "harness/wmma.hpp"
#endif

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace sherd::cuda {

/// Dynamic shared memory of the block.
template <class T>
__device__ T* dynamic_shared() {
#ifdef __CUDACC__
    extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
    return reinterpret_cast<T*>(dynamic_shared_memory);
#else
    return static_cast<T*>(emu::dynamic_shared());
#endif
}

#ifdef __CUDACC__
inline void check_launch(const char* launch) {
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess) throw std::runtime_error(std::string(launch) + ": " + cudaGetErrorString(e));
}
#endif

/// launch<kernel>(shape, arguments...): kernel<<<grid, block, shared_bytes, stream>>>(arguments...), checked.
template <auto Kernel, class... A>
void launch(const LaunchShape& s, A... arguments) {
#ifdef __CUDACC__
    if (s.shared_bytes > 48 * 1024) {
        cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(s.shared_bytes));
    }
    Kernel<<<s.grid, s.block, s.shared_bytes, s.stream>>>(arguments...);
    check_launch(__PRETTY_FUNCTION__);
#else
    const std::string all = __PRETTY_FUNCTION__;
    const std::size_t from = all.find("Kernel = ") + 9;
    emu::launch(all.substr(from, all.find_first_of(";]", from) - from), Kernel, s.grid, s.block, s.shared_bytes, s.stream, arguments...);
#endif
}

// ---- numbers --------------------------------------------------------------------------------------------------------

__device__ inline float to_float(float x) {
    return x;
}
__device__ inline float to_float(__half x) {
    return __half2float(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
    return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
    return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

/// 16 bytes of T, moved as one load or store. The address must be a multiple of 16.
template <class T>
struct alignas(16) Pack {
    static constexpr int size = 16 / sizeof(T);
    T at[size];
};

template <class T>
__device__ Pack<T> load_pack(const T* p) {
    const uint4 bits = *reinterpret_cast<const uint4*>(p);  // a member-wise copy would be eight 2-byte loads
    Pack<T> v;
    memcpy(&v, &bits, 16);
    return v;
}

template <class T>
__device__ void store_pack(T* p, const Pack<T>& v) {
    uint4 bits;
    memcpy(&bits, &v, 16);
    *reinterpret_cast<uint4*>(p) = bits;
}

// ---- reductions -----------------------------------------------------------------------------------------------------

constexpr unsigned kFullWarp = 0xffffffffU;

__device__ inline float warp_sum(float v) {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(kFullWarp, v, bits);
    return v;
}

__device__ inline float warp_max(float v) {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, bits));
    return v;
}

/// Sum over the block, in every thread. `scratch`: 32 floats of shared memory. blockDim.x a multiple of 32.
__device__ inline float block_sum(float v, float* scratch) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = warp_sum(v);
    __syncthreads();  // scratch may still be read from the previous call
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    return warp_sum(lane < blockDim.x / 32 ? scratch[lane] : 0.0F);
}

}  // namespace sherd::cuda
