#pragma once
/// The warp-level PTX instructions of fast attention kernels: mma.sync.m16n8k16 and ldmatrix, with the lane layouts of the PTX ISA
/// ("Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix"). Inline PTX itself cannot be emulated: kernels
/// call them through functions that hold the PTX under nvcc (tensor_core.cuh).
#include "cuda_emulation.hpp"

namespace emu {

template <class T>
struct Mma16816 {
    float* d;
    const T *a, *b;
    const float* c;
};

/// d[16,8] = a[16,16] * b[16,8] + c. Per lane: d and c 4 floats, a 8 and b 4 values of T. The sum runs over rising k in float.
template <class T>
void mma_m16n8k16(float* d, const T* a, const T* b, const float* c, Where where) {
    Mma16816<T> op{d, a, b, c};
    warp_collective(
        0xffffffffU, "mma.m16n8k16", &op,
        [](void* const operands[32], unsigned) {
            float ta[16][16], tb[16][8], tc[16][8];
            const auto row_of_c = [](unsigned l, unsigned i) { return l / 4 + (i / 2) * 8; };
            const auto column_of_c = [](unsigned l, unsigned i) { return l % 4 * 2 + i % 2; };
            for (unsigned l = 0; l < 32; ++l) {
                const auto& o = *static_cast<const Mma16816<T>*>(operands[l]);
                for (unsigned i = 0; i < 8; ++i) ta[l / 4 + (i / 2 % 2) * 8][l % 4 * 2 + i % 2 + (i / 4) * 8] = static_cast<float>(o.a[i]);
                for (unsigned i = 0; i < 4; ++i) tb[l % 4 * 2 + i % 2 + (i / 2) * 8][l / 4] = static_cast<float>(o.b[i]);
                for (unsigned i = 0; i < 4; ++i) tc[row_of_c(l, i)][column_of_c(l, i)] = o.c[i];
            }
            for (unsigned r = 0; r < 16; ++r)
                for (unsigned k = 0; k < 16; ++k)
                    for (unsigned j = 0; j < 8; ++j) tc[r][j] += ta[r][k] * tb[k][j];
            for (unsigned l = 0; l < 32; ++l)
                for (unsigned i = 0; i < 4; ++i) static_cast<const Mma16816<T>*>(operands[l])->d[i] = tc[row_of_c(l, i)][column_of_c(l, i)];
        },
        where);
}

/// Four 8x8 tiles of 16-bit values from shared memory; lane 8m + r gives the address of row r of tile m.
inline void ldmatrix_x4(std::uint32_t* registers, const void* row, bool transposed, Where where) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) fail("ldmatrix at %s:%u: row not aligned to 16 B", file(where), where.line);
    struct Row {
        std::uint16_t at[8];
    } mine;
    for (int i = 0; i < 8; ++i) mine.at[i] = static_cast<const std::uint16_t*>(row)[i];  // read here, so that accesses are this lane's
    struct Op {
        const Row* mine;
        std::uint32_t* registers;
        bool transposed;
    } op{&mine, registers, transposed};
    warp_collective(
        0xffffffffU, "ldmatrix", &op,
        [](void* const operands[32], unsigned) {
            for (unsigned l = 0; l < 32; ++l) {
                const Op& o = *static_cast<const Op*>(operands[l]);
                for (unsigned m = 0; m < 4; ++m) {
                    const auto value = [&](unsigned r, unsigned c) {
                        return std::uint32_t{static_cast<const Op*>(operands[8 * m + r])->mine->at[c]};
                    };
                    const unsigned first = l % 4 * 2, other = l / 4;
                    o.registers[m] = o.transposed ? value(first, other) | value(first + 1, other) << 16
                                                  : value(other, first) | value(other, first + 1) << 16;
                }
            }
        },
        where);
}

}  // namespace emu
