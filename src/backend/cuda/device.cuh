#pragma once
/// What kernels include: CUDA under nvcc, the emulation of tests/emulation under any other compiler. The only place that tells them apart.
#include "launch.hpp"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "harness/copy_async.hpp"
#include "harness/cuda_emulation.hpp"
#endif

#include <cstdint>
#include <cstring>
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

#ifndef __CUDACC__
/// The emulation wants arguments of exactly the kernel's types.
template <class... P>
void emulate(const LaunchShape& s, const char* name, void (*kernel)(P...), P... arguments) {
    const std::string all = name;
    const std::size_t from = all.find("Kernel = ") + 9;
    emu::launch(all.substr(from, all.find_first_of(";]", from) - from), kernel, s.grid, s.block, s.shared_bytes, s.stream, arguments...);
}
#endif

/// launch<kernel>(shape, arguments...): kernel<<<grid, block, shared_bytes, stream>>>(arguments...). Throws DeviceError where it fails.
template <auto Kernel, class... A>
void launch(const LaunchShape& s, A... arguments) {
    // 48 KiB hold without this, with what a kernel declares beside; none declares more than 16
    if (s.shared_bytes > 32 * 1024) {
        check_launch(cudaFuncSetAttribute(reinterpret_cast<const void*>(Kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(s.shared_bytes)),
                     __PRETTY_FUNCTION__, s, "cudaFuncSetAttribute() for the launch of");
    }
#ifdef __CUDACC__
    Kernel<<<s.grid, s.block, s.shared_bytes, s.stream>>>(arguments...);
#else
    const char* name = __PRETTY_FUNCTION__;  // in the lambda it would be the lambda's
    [&]<class... P>(void (*kernel)(P...)) { emulate<P...>(s, name, kernel, arguments...); }(Kernel);
#endif
    check_launch(cudaGetLastError(), __PRETTY_FUNCTION__, s);
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

/// Round to nearest even.
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

/// Two 16-bit floats in a register, `low` at the lower address: one conversion instruction on sm_80 and newer.
template <class T>
__device__ std::uint32_t pack_pair(float low, float high);
template <>
__device__ inline std::uint32_t pack_pair<__half>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    std::uint32_t bits;
    memcpy(&bits, &pair, 4);
    return bits;
}
template <>
__device__ inline std::uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    std::uint32_t bits;
    memcpy(&bits, &pair, 4);
    return bits;
}

inline constexpr float log2_e = 1.4426950408889634f;

/// 2^x with a relative error of 2^-22, flushing denormals: one instruction. -infinity gives 0, NaN stays NaN.
__device__ inline float fast_exp2(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return std::exp2(x);
#endif
}

/// 1 / (1 + e^-x) with a relative error below 2^-20.
__device__ inline float fast_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + fast_exp2(-log2_e * x));
}

/// x, of which the compiler is to know nothing.
__device__ inline int opaque(int x) {
#ifdef __CUDACC__
    asm volatile("" : "+r"(x));
#endif
    return x;
}

__device__ inline uint4 opaque(const uint4& x) {
    return make_uint4(static_cast<unsigned>(opaque(static_cast<int>(x.x))), static_cast<unsigned>(opaque(static_cast<int>(x.y))),
                      static_cast<unsigned>(opaque(static_cast<int>(x.z))), static_cast<unsigned>(opaque(static_cast<int>(x.w))));
}

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Elements of T in the 16 bytes that a thread moves best.
template <class T>
inline constexpr int vector_of = 16 / static_cast<int>(sizeof(T));

/// N elements as floats. from: a multiple of 16 bytes, or of N elements where these are fewer.
template <int N, class T>
__device__ void load(float (&to)[N], const T* from) {
    constexpr int bytes = N * static_cast<int>(sizeof(T));
    if constexpr (N == 1) {
        to[0] = to_float(*from);
    } else {
        T values[N];
        if constexpr (bytes % 16 == 0) {
#pragma unroll
            for (int i = 0; i < bytes / 16; ++i) {
                const uint4 bits = reinterpret_cast<const uint4*>(from)[i];  // a copy of members would be loads of single elements
                memcpy(static_cast<void*>(values + i * vector_of<T>), &bits, 16);
            }
        } else {
            static_assert(bytes == 8);
            const uint2 bits = *reinterpret_cast<const uint2*>(from);
            memcpy(static_cast<void*>(values), &bits, 8);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = to_float(values[i]);
    }
}

/// N floats, rounded to T. Alignment as for load().
template <int N, class T>
__device__ void store(T* to, const float (&from)[N]) {
    constexpr int bytes = N * static_cast<int>(sizeof(T));
    if constexpr (N == 1) {
        *to = from_float<T>(from[0]);
    } else {
        std::uint32_t words[bytes / 4];
#pragma unroll
        for (int i = 0; i < bytes / 4; ++i) {
            if constexpr (sizeof(T) == 4) {
                words[i] = __float_as_uint(from[i]);
            } else {
                words[i] = pack_pair<T>(from[2 * i], from[2 * i + 1]);
            }
        }
        if constexpr (bytes % 16 == 0) {
#pragma unroll
            for (int i = 0; i < bytes / 16; ++i) {
                reinterpret_cast<uint4*>(to)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
            }
        } else {
            static_assert(bytes == 8);
            *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
        }
    }
}

/// 16 bytes as they lie in memory, as floats and back. Values that wait in registers take half as many of them so.
template <class T>
__device__ void unpack(float (&to)[vector_of<T>], const uint4& bits) {
    load(to, reinterpret_cast<const T*>(&bits));
}
template <class T>
__device__ uint4 pack(const float (&from)[vector_of<T>]) {
    uint4 bits;
    store(reinterpret_cast<T*>(&bits), from);
    return bits;
}

/// Whether all addresses are multiples of `bytes`; a null pointer is.
template <class... T>
bool aligned_to(std::uintptr_t bytes, const T*... addresses) {
    return ((reinterpret_cast<std::uintptr_t>(addresses) % bytes == 0) && ...);
}

// ---- reductions -----------------------------------------------------------------------------------------------------

inline constexpr unsigned full_warp = 0xffffffffu;

/// Sum over groups of `width` neighbouring lanes (a power of two up to 32), in each of their lanes. All lanes take part.
template <class T>
__device__ T lane_sum(T v, int width = 32) {
    for (int bits = width / 2; bits > 0; bits /= 2) v += __shfl_xor_sync(full_warp, v, bits);
    return v;
}

__device__ inline float lane_max(float v, int width = 32) {
    for (int bits = width / 2; bits > 0; bits /= 2) v = fmaxf(v, __shfl_xor_sync(full_warp, v, bits));
    return v;
}

/// Sum over the block, in every thread. scratch: 32 values of shared memory that no thread has touched since the last barrier but one:
/// a loop alternates between two of them and needs this one barrier only. blockDim.x: a multiple of 32.
template <class T>
__device__ T block_sum(T v, T* scratch) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = lane_sum(v);
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    return lane_sum(lane < blockDim.x / 32 ? scratch[lane] : T(0));
}

}  // namespace sherd::cuda
