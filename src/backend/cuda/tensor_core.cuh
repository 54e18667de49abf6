#pragma once
/// mma.sync and ldmatrix behind functions: PTX under nvcc, emulation elsewhere. sm_80 and newer.
#include "device.cuh"
#ifndef __CUDACC__
#include "harness/mma.hpp"
#endif

namespace sherd::cuda {

/// d += a * b on a 16x8 tile, 16 deep; registers as the PTX ISA lays them out over the warp.
template <class T>
__device__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    static_assert(sizeof(T) == 2);
#ifdef __CUDACC__
    if constexpr (std::is_same_v<T, __half>) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
    T wide_a[8], wide_b[4];
    memcpy(wide_a, a, sizeof wide_a);
    memcpy(wide_b, b, sizeof wide_b);
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

}  // namespace sherd::cuda
