#pragma once
/// mma.sync, ldmatrix and cp.async behind functions: PTX under nvcc, emulation elsewhere. sm_80 and newer have all of them; sm_75 has
/// products of fp16 and ldmatrix, and copies without delay.
#include "device.cuh"
#ifndef __CUDACC__
#include "harness/mma.hpp"
#endif

namespace sherd::cuda {

/// Whether the architecture being compiled for multiplies tiles of T on tensor cores through these functions, and grants a block that much
/// shared memory: what sm_75, which has 64 KiB, can never run is not compiled for it. Of the tiles that remain there, those of keys for
/// heads up to 64 and of queries for heads up to 128 spill four or five registers.
template <class T>
__device__ constexpr bool has_tensor_cores([[maybe_unused]] int shared_bytes) {
#if defined(__CUDA_ARCH__)
    return __CUDA_ARCH__ >= 800 || (__CUDA_ARCH__ >= 750 && std::is_same_v<T, __half> && shared_bytes <= 64 << 10);
#else
    return true;
#endif
}

/// d += a * b on a 16x8 tile, 16 deep; registers as the PTX ISA lays them out over the warp. Volatile because the whole warp takes part:
/// the compiler must not move it to where only some lanes want the result.
template <class T>
__device__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    static_assert(sizeof(T) == 2);
#ifdef __CUDACC__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    // two products of half the depth: their registers are the halves of the larger one's
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#else
    if constexpr (std::is_same_v<T, __half>) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#endif
#else
    T wide_a[8], wide_b[4];
    memcpy(static_cast<void*>(wide_a), a, sizeof wide_a);
    memcpy(static_cast<void*>(wide_b), b, sizeof wide_b);
    emu::mma_m16n8k16(d, wide_a, wide_b, d, emu::Where::current());
#endif
}

/// Four 8x8 tiles from shared memory; lane 8m + r passes the 16-byte aligned address of row r of tile m.
template <bool Transposed>
__device__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
#ifdef __CUDACC__
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
    if constexpr (Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    }
#else
    emu::ldmatrix_x4(r, row, Transposed, emu::Where::current());
#endif
}

/// Begins to copy 16 bytes from global to shared memory, or zeros where not `valid`; then nothing is read. Seen by the own thread after
/// wait_for_copies(), by others after a barrier that follows.
__device__ inline void copy_async(void* to, const void* from, bool valid) {
#ifdef __CUDACC__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#else
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
    const int read = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(read) : "memory");
#endif
#else
    __pipeline_memcpy_async(to, from, 16, valid ? 0 : 16);
#endif
}

/// Waits for all copies that the thread has begun.
#ifdef __CUDACC__
__device__ inline void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#else
inline void wait_for_copies(emu::Where where = emu::Where::current()) {
    __pipeline_commit();
    __pipeline_wait_prior(0, where);
}
#endif

}  // namespace sherd::cuda
